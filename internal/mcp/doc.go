// Package mcp serves sessions and runs to agents over the Model Context Protocol.
//
// It knows nothing but the client of our HTTP API: whatever a tool does goes through the same door as every other caller's request, so
// that keys, tenants, scopes, the gate and the audit log are the same. Over stdio (Serve) that is the server of the user who started
// the process; over HTTP (NewHandler) it is the very server the handler is mounted on, asked with the credentials of each request.
//
// Both eras of the protocol are spoken: the one with a handshake and sessions, and the one of 2026-07-28, in which each request stands
// for itself.
package mcp
