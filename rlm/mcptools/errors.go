package mcptools

import (
	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The codes of this package's errors.
const (
	CodeServerInvalid     v1.Code = "mcp_server_invalid"     // a server is not described as it must be
	CodeServerUnreachable v1.Code = "mcp_server_unreachable" // a server cannot be started or reached
	CodeServerLost        v1.Code = "mcp_server_lost"        // it ended, or the connection did, during a call
	CodeTimeout           v1.Code = "mcp_timeout"            // a tool did not answer in time
	CodeToolFailed        v1.Code = "mcp_tool_failed"        // the tool itself says that it failed
	CodeCallRefused       v1.Code = "mcp_call_refused"       // the server does not take the call
	CodeResultTooLarge    v1.Code = "mcp_result_too_large"   // more than is handed on
)
