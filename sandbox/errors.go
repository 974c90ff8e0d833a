package sandbox

import (
	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Sentinel errors for errors.Is: a *v1.Error matches the sentinel with the same code.
var (
	ErrNotSupported   = &v1.Error{Code: v1.CodeNotSupported}
	ErrSandboxLost    = &v1.Error{Code: v1.CodeSandboxLost}
	ErrGuestLost      = &v1.Error{Code: v1.CodeGuestLost}
	ErrNoBackend      = &v1.Error{Code: v1.CodeNoBackend}
	ErrSnapshotStale  = &v1.Error{Code: v1.CodeSnapshotStale}
	ErrNotFound       = &v1.Error{Code: v1.CodeNotFound}
	ErrMountRefused   = &v1.Error{Code: v1.CodeMountRefused}
	ErrInvalidSpec    = &v1.Error{Code: v1.CodeInvalidSpec}
	ErrNoPython       = &v1.Error{Code: v1.CodeNoPython}
	ErrCancelled      = &v1.Error{Code: v1.CodeCancelled}
	ErrConsentMissing = &v1.Error{Code: v1.CodeConsentMissing}
)
