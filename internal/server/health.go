package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
)

// healthTTL is how long the result of a health check is cached. It is cached because each check makes a sandbox.
const healthTTL = 30 * time.Second

// health caches whether sandboxes can be made.
type health struct {
	mu      sync.Mutex
	checked time.Time // guarded by mu
	err     error     // guarded by mu
}

// check returns the cached result, or calls probe if the cached result is older than healthTTL.
func (h *health) check(ctx context.Context, probe func(context.Context) error) error {
	if probe == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.checked) < healthTTL {
		return h.err
	}
	err := probe(ctx)
	if ctx.Err() == nil {
		h.checked, h.err = time.Now(), err
	}
	return err
}

// freeText describes the space of the data directory.
func freeText(s diskuse.Space) string {
	return "the data directory has " + v1.SizeText(s.Free) + " free; recluse du shows what takes space, recluse gc " +
		"removes what nothing needs"
}

// healthz reports that the server is alive. It checks neither store nor backends: a supervisor that restarts the server
// when healthz fails must not do so because a disk is full.
func healthz(*call, none) (v1.Readiness, error) { return v1.Readiness{Status: "ok"}, nil }

// readyz reports whether the server can handle requests: it is not stopping, and its store and backends work.
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
	ready := v1.Readiness{Status: "ok"}
	switch space, known := c.s.opts.Space(); {
	case known && space.Full():
		c.status = http.StatusServiceUnavailable
		ready = v1.Readiness{Status: "unavailable", Reason: "the disk is almost full: " + freeText(space)}
	case known && space.Low():
		ready.Warnings = append(ready.Warnings, "little space on the disk: "+freeText(space))
	}
	return ready, nil
}
