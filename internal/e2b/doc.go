// Package e2b serves the API of E2B, so that its unmodified SDKs work with this server.
//
// It is a protocol package like those of HTTP and MCP: it translates to sessions and calls nothing below them.
//
//	E2B                 here
//	sandbox             session, named by the id of the sandbox
//	template            image, or named snapshot
//	metadata            labels
//	timeout             expiry of the session, counted from the last time it was set
//	pause               hibernation
//	context             interpreter of the session
//	process             background command
//
// An option that is not supported is refused, unless its value is empty or false: newer SDKs may send options that do
// not matter, but none is dropped silently.
//
// # Routing
//
// One port serves everything. A request with the headers E2b-Sandbox-Id and E2b-Sandbox-Port, or with the host name
// PORT-ID.domain, is for the inside of a sandbox (the data plane). Other requests of E2B's paths manage sandboxes (the
// control plane) and need a key.
//
// # Tokens
//
// Callers of the data plane have a token, which creating or connecting to a sandbox returns. Tokens are not stored:
// they are derived from a secret and the id of the session, so they end with the session, and with the key that created
// it.
package e2b
