package mcptools

import (
	"net/http"
	"sync"
)

// switchable is an HTTP server whose handler can be replaced.
type switchable struct {
	mu sync.Mutex
	h  http.Handler // guarded by mu
}

func (s *switchable) set(h http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h = h
}

// ServeHTTP implements http.Handler.
func (s *switchable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	h := s.h
	s.mu.Unlock()
	h.ServeHTTP(w, r)
}
