package session

import (
	"fmt"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// The codes of this package, beside those of package sandbox.
const (
	CodeNotFound       sandbox.Code = "session_not_found" // also for a session of another tenant
	CodeExists         sandbox.Code = "session_exists"
	CodeExpired        sandbox.Code = "session_expired"
	CodeEnded          sandbox.Code = "session_ended"
	CodeLost           sandbox.Code = "session_lost"
	CodeSpecConflict   sandbox.Code = "spec_conflict"
	CodeInvalidKey     sandbox.Code = "invalid_key"
	CodeQueueFull      sandbox.Code = "queue_full"
	CodeLimit          sandbox.Code = "session_limit" // snapshots, output
	CodeNoExtension    sandbox.Code = "no_extension_left"
	CodePaused         sandbox.Code = "session_paused"
	CodeMoved          sandbox.Code = "session_moved" // hibernated or restored during the call
	CodeSnapshotName   sandbox.Code = "snapshot_not_found"
	CodeSnapshotExists sandbox.Code = "snapshot_exists"
	CodeVarUnknown     sandbox.Code = "variable_not_found"
	CodeDataLocked                  = store.CodeLocked
	CodeStoreCorrupt                = store.CodeCorrupt
	CodeStoreBusy                   = store.CodeBusy
	CodeClosing        sandbox.Code = "closing"
	CodeRefused                     = gate.CodeRefused
)

// errClosing is the error of every call after the manager was detached or closed.
var errClosing = &sandbox.Error{Code: CodeClosing, Op: "use session", Message: "the session manager is being closed", Remedy: "ask its successor; sessions live on", Retry: true}

func notFound(key Key) error {
	return &sandbox.Error{Code: CodeNotFound, Op: "find session", Message: fmt.Sprintf("no session %q", key.Name), Remedy: "list sessions, or open it"}
}

func expired(key Key, reason string) error {
	return &sandbox.Error{Code: CodeExpired, Op: "use session", Message: fmt.Sprintf("session %q has expired: %s", key.Name, reason), Remedy: "open it anew"}
}

func invalid(op, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: op, Message: fmt.Sprintf(format, args...)}
}

func cancelled(op string, err error) error {
	return &sandbox.Error{Code: sandbox.CodeCancelled, Op: op, Message: "given up", Err: err}
}
