package v1

// The codes of errors. They are stable: programs may switch on them.
const (
	// Sandboxes and their files.
	CodeNotSupported      Code = "not_supported"
	CodeBackendUnknown    Code = "backend_unknown"
	CodeBackendMissing    Code = "backend_unavailable"
	CodeNoBackend         Code = "no_backend"
	CodeConsentMissing    Code = "consent_missing"
	CodeInvalidSpec       Code = "invalid_spec"
	CodeInvalidRequest    Code = "invalid_request"
	CodeMountRefused      Code = "mount_refused"
	CodeImageNotFound     Code = "image_not_found"
	CodeImageDenied       Code = "image_denied"
	CodeImageUnreachable  Code = "image_unreachable"
	CodeImageCorrupt      Code = "image_corrupt"
	CodeImageArch         Code = "image_arch"
	CodeRootFS            Code = "rootfs_unusable"
	CodeNoPython          Code = "no_python"
	CodeNoShell           Code = "no_shell"
	CodeStartFailed       Code = "start_failed"
	CodeOperationExists   Code = "operation_exists" // the id of a cell or command is in use
	CodeSandboxLost       Code = "sandbox_lost"
	CodeGuestLost         Code = "guest_lost"
	CodeNotFound          Code = "not_found"
	CodeBusy              Code = "busy"
	CodeCancelled         Code = "cancelled"
	CodeSnapshotStale     Code = "snapshot_stale"
	CodeSnapshotCorrupt   Code = "snapshot_corrupt"
	CodeSnapshotVersion   Code = "snapshot_version"
	CodeDiskFull          Code = "disk_full"
	CodeFileNotFound      Code = "file_not_found"
	CodeFileExists        Code = "file_exists"
	CodeFilePermission    Code = "file_permission"
	CodeFileNotRegular    Code = "file_not_regular"
	CodeFileIsDirectory   Code = "file_is_directory"
	CodeFileNotDirectory  Code = "file_not_directory"
	CodeFileNotEmpty      Code = "file_not_empty"
	CodePathEscapes       Code = "path_escapes"
	CodePathInvalid       Code = "path_invalid"
	CodePortClosed        Code = "port_closed"
	CodePortResponse      Code = "port_response" // a program at a port sent no valid HTTP response
	CodeTooLarge          Code = "too_large"
	CodeTooMany           Code = "too_many"
	CodeEngineMissing     Code = "engine_missing"
	CodeProtocol          Code = "protocol"
	CodeInternal          Code = "internal"
	CodeHostCallUndefined Code = "host_call_undefined"
	CodeVolumeNotFound    Code = "volume_not_found" // also for a volume of another tenant
	CodeVolumeExists      Code = "volume_exists"
	CodeVolumeBusy        Code = "volume_busy" // a sandbox uses the volume

	// Sessions.
	CodeSessionNotFound  Code = "session_not_found" // also for a session of another tenant
	CodeSessionExists    Code = "session_exists"
	CodeSessionExpired   Code = "session_expired"
	CodeSessionEnded     Code = "session_ended"
	CodeSessionLost      Code = "session_lost"
	CodeSpecConflict     Code = "spec_conflict"
	CodeInvalidKey       Code = "invalid_key"
	CodeQueueFull        Code = "queue_full"
	CodeQuotaExceeded    Code = "quota_exceeded"  // of the server, a tenant or a key
	CodeNetworkExceeds   Code = "network_exceeds" // a network policy allows more than the operator of a model's tools
	CodeSessionLimit     Code = "session_limit"   // of one session: snapshots, output
	CodeSessionPaused    Code = "session_paused"
	CodeSessionMoved     Code = "session_moved" // hibernated or restored during the call
	CodeSnapshotNotFound Code = "snapshot_not_found"
	CodeSnapshotExists   Code = "snapshot_exists"
	CodeVarNotFound      Code = "variable_not_found"
	CodeNetworkChanged   Code = "network_changed" // the network policy has another generation
	CodeDataLocked       Code = "data_directory_locked"
	CodeStoreCorrupt     Code = "store_corrupt"
	CodeStoreBusy        Code = "store_busy" // another program holds the file
	CodeClosing          Code = "closing"

	// Code that the gate refuses, and questions to a person about it.
	CodeGateRefused      Code = "refused_by_gate"
	CodeApprovalUnknown  Code = "gate_approval_unknown"
	CodeApprovalResolved Code = "gate_approval_resolved"

	// Models.
	CodeModelMissing         Code = "model_missing"          // no model is configured, and none was found
	CodeModelUnknown         Code = "model_unknown"          // no such provider or model
	CodeModelKeyMissing      Code = "model_key_missing"      // the provider needs a key, and none is configured
	CodeModelKeyRefused      Code = "model_key_refused"      // the provider rejects the key
	CodeModelUnreachable     Code = "model_unreachable"      // the provider does not answer, or the connection was lost
	CodeModelRateLimited     Code = "model_rate_limited"     // too many requests or tokens for now
	CodeModelQuota           Code = "model_quota"            // the account has no credit left
	CodeModelOverloaded      Code = "model_overloaded"       // the provider reports an overload or an internal error
	CodeModelContextExceeded Code = "model_context_exceeded" // the prompt does not fit into the model's context window
	CodeModelRefused         Code = "model_refused"          // the provider rejects the request
	CodeModelTimeout         Code = "model_timeout"          // our own time limit, not the caller's
	CodeModelReplyBroken     Code = "model_reply_broken"     // the reply violates the provider's protocol
	CodeModelConfig          Code = "model_config"           // the configuration is invalid
	CodeModelScript          Code = "model_script"           // a script is invalid, or has no rule for the request
	CodeModelCassette        Code = "model_cassette"         // a recording is damaged, or does not contain the request

	// Runs.
	CodeModelFailed    Code = "model_failed"     // a model call failed
	CodeWindow         Code = "window_exceeded"  // a prompt is larger than the model's context window
	CodeBudget         Code = "budget_exhausted" // a limit of the whole tree was reached
	CodeDepth          Code = "depth_exceeded"   // sub-calls are not allowed here
	CodePriceUnknown   Code = "price_unknown"    // the cost is limited, and the price of a model is unknown
	CodeNoAnswer       Code = "no_answer"        // the run ended without an answer
	CodePromptUnknown  Code = "prompt_unknown"   // no such prompt profile
	CodeInvalidSchema  Code = "invalid_schema"   // the schema for answers is invalid
	CodeAnswerRefused  Code = "answer_refused"   // an answer does not match its schema
	CodeContextMissing Code = "context_missing"
	CodeContextEmpty   Code = "context_empty"
	CodeContextBinary  Code = "context_binary"
	CodeContextUnread  Code = "context_unreadable"
	CodeContextChanged Code = "context_changed" // since the run was interrupted
	CodeNotRecorded    Code = "not_recorded"    // a replay makes a call that was not recorded
	CodeToolMissing    Code = "tool_missing"    // a resumed run had a tool that its engine lacks now
	CodeRunNotFound    Code = "run_not_found"
	CodeRunEnded       Code = "run_ended" // there is nothing to resume

	// The HTTP API.
	CodeUnauthorized  Code = "unauthorized"
	CodeForbidden     Code = "forbidden"
	CodeRateLimited   Code = "rate_limited"
	CodeNoRoute       Code = "no_such_route"
	CodeMethod        Code = "method_not_allowed"
	CodeWebSocket     Code = "websocket_required"
	CodeInvalidJSON   Code = "invalid_json"
	CodeUnknownField  Code = "unknown_field"
	CodeInvalidQuery  Code = "invalid_query"
	CodeIdempotency   Code = "idempotency_mismatch"
	CodeNotKept       Code = "answer_not_kept"
	CodeRequestTime   Code = "request_timeout" // the answer took too long
	CodeBodyTimeout   Code = "body_timeout"    // the body of the request took too long
	CodeUnavailable   Code = "server_unavailable"
	CodeTLS           Code = "tls_failed" // the server answers, but the TLS handshake fails
	CodeListenRefused Code = "listen_refused"
	CodeKeyUnknown    Code = "key_not_found"
	CodeInterrupted   Code = "stream_interrupted"

	// MCP.
	CodeSessionNeeded Code = "session_argument_needed" // the connection has no session of its own
	CodeOrigin        Code = "origin_refused"
	CodeHostUnknown   Code = "host_unknown"
	CodeSampling      Code = "sampling_failed"
)
