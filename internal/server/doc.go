// Package server is the HTTP face of a session manager: it checks who asks, translates requests to calls of package session, and
// verdicts and errors back.
//
// Every route is one line in a table (routes.go), from which the mux, the OpenAPI document and the tests over all routes are made.
// A route says which scope it needs; a session is always looked up under the caller's own tenant, so that another tenant's session
// is simply not there.
//
// A cell or command runs on when the server goes away, and is cancelled when its caller does, unless the caller asked to keep it.
package server
