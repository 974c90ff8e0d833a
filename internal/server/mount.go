package server

import (
	"context"
	"net/http"
)

// Mount adds a handler beside the API, which looks after access itself, e.g. by asking Handler with its callers' credentials. leave is
// called when the server begins to stop. Call it before Serve.
func (s *Server) Mount(pattern string, h http.Handler, leave func()) {
	s.mux.Handle(pattern, h)
	context.AfterFunc(s.drain, leave)
}
