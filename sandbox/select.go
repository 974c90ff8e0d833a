package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// Preference is the order in which backends are tried when the caller has none.
var Preference = []string{"firecracker", "gvisor", "docker", "local"}

// Requirements says what a chosen backend must offer.
type Requirements struct {
	// Order of names to try; empty: Preference. A single name asks for that one alone.
	Order []string
	// MinIsolation refuses everything weaker.
	MinIsolation Isolation
	// AllowNone is the caller's explicit consent to run without isolation. Without
	// it a backend of IsolationNone is never chosen, wherever it stands in Order.
	AllowNone bool
	// Snapshots refuses backends that hold less in a snapshot.
	Snapshots Snapshots
	// Logger hears a warning each time no isolation is chosen; nil: slog.Default.
	Logger *slog.Logger
}

// Tried is one line of a selection's report.
type Tried struct {
	Name         string       `json:"name"`
	Chosen       bool         `json:"chosen"`
	Reason       string       `json:"reason"` // why it was chosen or passed over
	Remedy       string       `json:"remedy,omitempty"`
	Health       Health       `json:"health"`
	Capabilities Capabilities `json:"capabilities"`
}

// Select probes the backends and gives the first in order that is healthy and
// meets the requirements, with a report on each. Probes run at once, each for at
// most ProbeTimeout. When none fits, the error is ErrNoBackend and names every reason.
func Select(ctx context.Context, backends []Backend, req Requirements) (Backend, []Tried, error) {
	order := req.Order
	explicit := len(order) > 0
	if !explicit {
		order = Preference
	}
	known := map[string]Backend{}
	for _, b := range backends {
		known[b.Name()] = b
	}
	var names []string
	for _, n := range order {
		if known[n] == nil && explicit {
			have := make([]string, 0, len(known))
			for k := range known {
				have = append(have, k)
			}
			slices.Sort(have)
			return nil, nil, &Error{Code: CodeBackendUnknown, Op: "select backend", Message: fmt.Sprintf("no backend is called %q", n), Remedy: "known are " + strings.Join(have, ", ")}
		}
		if known[n] != nil && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	production, err := Production()
	if err != nil {
		return nil, nil, err
	}

	tried := make([]Tried, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() { tried[i] = probe(ctx, known[n]) })
	}
	wg.Wait()

	var chosen Backend
	for i := range tried {
		t := &tried[i]
		if chosen != nil {
			if t.Health.OK {
				t.Reason = "works, but " + chosen.Name() + " comes first"
			}
			continue
		}
		if !t.Health.OK {
			continue
		}
		if why, remedy := unfit(t, req, production); why != "" {
			t.Reason, t.Remedy = why, remedy
			continue
		}
		t.Chosen, t.Reason = true, "first that works and meets the requirements"
		chosen = known[t.Name]
	}
	if chosen == nil {
		return nil, tried, noBackend(tried, !req.AllowNone && !production)
	}
	if c := tried[slices.IndexFunc(tried, func(t Tried) bool { return t.Chosen })]; c.Capabilities.Isolation == IsolationNone {
		log := req.Logger
		if log == nil {
			log = slog.Default()
		}
		log.WarnContext(ctx, "code will run WITHOUT isolation, with this user's rights", "backend", chosen.Name())
	}
	return chosen, tried, nil
}

func probe(ctx context.Context, b Backend) Tried {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	t := Tried{Name: b.Name()}
	type answer struct {
		h Health
		c Capabilities
	}
	got := make(chan answer, 1)
	go func() { got <- answer{b.Health(ctx), b.Capabilities(ctx)} }()
	select {
	case a := <-got:
		t.Health, t.Capabilities = a.h, a.c
		t.Reason, t.Remedy = a.h.Reason, a.h.Remedy
	case <-ctx.Done():
		t.Health = Health{Reason: fmt.Sprintf("did not answer within %s", ProbeTimeout), Took: ProbeTimeout}
		t.Reason = t.Health.Reason
	}
	if !t.Health.OK && t.Reason == "" {
		t.Reason = "not available"
	}
	return t
}

// unfit says why a healthy backend does not meet the requirements, or "".
func unfit(t *Tried, req Requirements, production bool) (why, remedy string) {
	c := t.Capabilities
	switch {
	case c.Isolation == IsolationNone && production:
		return "RECLUSE_ENV=production forbids running without isolation", ""
	case c.Isolation == IsolationNone && !req.AllowNone:
		return "gives no isolation, and nobody allowed that", "allow it explicitly, e.g. --allow-no-isolation"
	case c.Isolation < req.MinIsolation:
		return fmt.Sprintf("isolates by %s, and %s is required", c.Isolation, req.MinIsolation), ""
	case rank(c.Snapshots) < rank(req.Snapshots):
		return fmt.Sprintf("snapshots hold %s, and %s is required", c.Snapshots, req.Snapshots), ""
	}
	return "", ""
}

func rank(s Snapshots) int {
	return slices.Index([]Snapshots{"", SnapshotsNone, SnapshotsFiles, SnapshotsMemory}, s)
}

// noBackend is the error when none fits. askable says that consent would have helped.
func noBackend(tried []Tried, askable bool) error {
	var causes []error
	consent := false
	for _, t := range tried {
		why := t.Reason
		if t.Remedy != "" {
			why += " (" + t.Remedy + ")"
		}
		consent = consent || t.Health.OK && t.Capabilities.Isolation == IsolationNone
		causes = append(causes, fmt.Errorf("%s: %s", t.Name, why))
	}
	err := &Error{Code: CodeNoBackend, Op: "select backend", Message: "no backend fits", Remedy: "recluse doctor explains each", Err: errors.Join(causes...)}
	if askable && consent && len(tried) == 1 {
		err.Code, err.Remedy = CodeConsentMissing, ""
	}
	return err
}

// Production reports whether RECLUSE_ENV says production. It is parsed strictly: a
// misspelt value is an error, not a silent no.
func Production() (bool, error) {
	switch v := os.Getenv("RECLUSE_ENV"); v {
	case "production":
		return true, nil
	case "", "development", "test":
		return false, nil
	default:
		return false, &Error{Code: CodeInvalidSpec, Op: "read RECLUSE_ENV", Message: fmt.Sprintf("%q is none of production, development, test", v), Remedy: "correct or unset it"}
	}
}
