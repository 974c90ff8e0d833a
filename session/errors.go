package session

import "github.com/recluse-dev/recluse/sandbox"

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
	CodeSnapshotName   sandbox.Code = "snapshot_not_found"
	CodeSnapshotExists sandbox.Code = "snapshot_exists"
	CodeVarUnknown     sandbox.Code = "variable_not_found"
	CodeDataLocked     sandbox.Code = "data_directory_locked"
	CodeStoreCorrupt   sandbox.Code = "store_corrupt"
	CodeClosing        sandbox.Code = "closing"
	CodeRefused        sandbox.Code = "refused_by_gate"
)
