package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
)

// healthKept is how long an answer about the backends is good: each makes a sandbox.
const healthKept = 30 * time.Second

// health remembers whether sandboxes can be made.
type health struct {
	mu    sync.Mutex
	asked time.Time // guarded by mu
	err   error     // guarded by mu
}

func (h *health) check(ctx context.Context, ask func(context.Context) error) error {
	if ask == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < healthKept {
		return h.err
	}
	err := ask(ctx)
	if ctx.Err() == nil {
		h.asked, h.err = time.Now(), err
	}
	return err
}

// healthz says that the program answers. It asks nobody else: whoever restarts on its failure must not do so because a disk is full.
func healthz(*call, none) (v1.Readiness, error) { return v1.Readiness{Status: "ok"}, nil }

// readyz says whether to send requests here.
func readyz(c *call, _ none) (v1.Readiness, error) {
	if c.s.draining() {
		c.status = http.StatusServiceUnavailable
		return v1.Readiness{Status: "draining"}, nil
	}
	_, err := c.s.opts.Store.FindSessions(c.ctx(), store.SessionQuery{Limit: 1})
	if err == nil {
		err = c.s.health.check(c.ctx(), c.s.opts.Health)
	}
	if err != nil {
		c.status = http.StatusServiceUnavailable
		return v1.Readiness{Status: "unavailable", Reason: problem.Of(err).Detail}, nil
	}
	return v1.Readiness{Status: "ok"}, nil
}
