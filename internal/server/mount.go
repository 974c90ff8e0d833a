package server

import (
	"context"
	"net/http"
)

// Mount adds a handler that is not part of the API. The handler authenticates its callers itself, for example by
// calling Handler with their credentials. onStop is called when the server begins to stop. Call Mount before Serve.
func (s *Server) Mount(pattern string, h http.Handler, onStop func()) {
	s.mux.Handle(pattern, h)
	context.AfterFunc(s.drain, onStop)
}
