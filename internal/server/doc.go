// Package server is the HTTP API of a session manager. It authenticates callers, translates requests to calls of
// package session, and translates verdicts and errors back.
//
// Every route is one entry of a table (routes.go). The mux, the OpenAPI document and the tests over all routes are
// derived from it. A route declares the scope it requires. A session is always looked up under the caller's own tenant,
// so the sessions of other tenants are not found.
//
// A cell or command continues when the server stops. It is cancelled when its caller disconnects, unless the caller
// asked to keep it.
package server
