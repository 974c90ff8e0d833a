package mcptools

import (
	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Codes of the errors of this package.
const (
	CodeServerInvalid     v1.Code = "mcp_server_invalid"     // the description of a server is invalid
	CodeServerUnreachable v1.Code = "mcp_server_unreachable" // a server cannot be started or reached
	CodeServerLost        v1.Code = "mcp_server_lost"        // the server or the connection ended during a call
	CodeTimeout           v1.Code = "mcp_timeout"            // a tool did not answer in time
	CodeToolFailed        v1.Code = "mcp_tool_failed"        // the tool reported an error
	CodeCallRefused       v1.Code = "mcp_call_refused"       // the server rejected the call
	CodeResultTooLarge    v1.Code = "mcp_result_too_large"   // the result is larger than Options.MaxResult
)
