package server

import (
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestRoute is an entry of the table of routes, for tests.
type TestRoute struct {
	Method, Path, Scope string
	Operator            bool
}

// TestRoutes returns the whole table.
func (s *Server) TestRoutes() []TestRoute {
	var out []TestRoute
	for _, r := range s.routes {
		out = append(out, TestRoute{r.method, r.path, r.scope.String(), r.operator})
	}
	return out
}

// SetStall changes stallTimeout. Call it before a server is created.
func SetStall(t testing.TB, d time.Duration) { t.Helper(); set(t, &stallTimeout, d) }

// SetInputPing changes inputPing. Call it before a server is created.
func SetInputPing(t testing.TB, d time.Duration) { t.Helper(); set(t, &inputPing, d) }

func set(t testing.TB, v *time.Duration, d time.Duration) {
	t.Helper()
	testneed.Alone(t)
	old := *v
	*v = d
	t.Cleanup(func() { *v = old })
}
