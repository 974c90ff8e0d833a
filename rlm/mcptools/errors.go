package mcptools

import "github.com/recluse-dev/recluse/sandbox"

// The codes of this package's errors.
const (
	CodeServerInvalid     sandbox.Code = "mcp_server_invalid"     // a server is not described as it must be
	CodeServerUnreachable sandbox.Code = "mcp_server_unreachable" // a server cannot be started or reached
	CodeServerLost        sandbox.Code = "mcp_server_lost"        // it ended, or the connection did, during a call
	CodeTimeout           sandbox.Code = "mcp_timeout"            // a tool did not answer in time
	CodeToolFailed        sandbox.Code = "mcp_tool_failed"        // the tool itself says that it failed
	CodeCallRefused       sandbox.Code = "mcp_call_refused"       // the server does not take the call
	CodeResultTooLarge    sandbox.Code = "mcp_result_too_large"   // more than is handed on
)
