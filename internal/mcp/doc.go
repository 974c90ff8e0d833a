// Package mcp serves sessions and runs to agents over the Model Context Protocol.
//
// All tools use the client of the HTTP API, so keys, tenants, scopes, the gate and the audit log apply as for every
// other caller. Over stdio (Serve), the client calls the server of the user who started the process. Over HTTP
// (NewHandler), it calls the server that the handler is mounted on, with the credentials of each request.
//
// Two kinds of the protocol are supported: the versions with a handshake and MCP sessions, and the stateless versions
// from 2026-07-28 on, in which requests are independent of each other.
package mcp
