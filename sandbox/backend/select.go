package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Preference is the order in which Select tries backends if Requirements.Order is empty: the strongest isolation first.
// A vm backend is healthy only after its setup and a boot with KVM, and an emulated one is never chosen unnamed.
var Preference = []string{"vm", "gvisor", "docker", "local"}

// Paid are the backends that cost money. They are only used if they are named or listed, never by default.
var Paid = []string{"e2b", "modal", "prime"}

const (
	// probeTimeout is how long Select waits for the result of one probe.
	probeTimeout = 2 * time.Second
	// probeHeadStart is how long Select waits for a backend before it also probes the next one.
	probeHeadStart = 500 * time.Millisecond
	// undoWait is how long a backend may take to remove the trial sandbox of an abandoned probe.
	undoWait = 5 * time.Second
)

// Requirements is what the chosen backend must offer.
type Requirements struct {
	// Order lists the backends to try, by name; empty: Preference.
	Order []string
	// MinIsolation excludes backends with weaker isolation.
	MinIsolation sandbox.Isolation
	// AllowNone is the caller's explicit consent to run without isolation. Without it Select never
	// chooses a backend of IsolationNone, wherever it is in Order.
	AllowNone bool
	// AllowContainer is the caller's consent to containers that share the host's kernel, such as
	// Docker's with runc. Naming a backend in Order is also consent. Both are ignored in production.
	AllowContainer bool
	// All probes every backend, for a full report. Otherwise backends after the chosen one may not
	// be probed, because a probe makes a sandbox.
	All bool
	// SkipTrial skips the trial sandbox if Order names a single backend and that is a QuickProber. It is for
	// callers that make a sandbox at once: their own sandbox then shows whether the backend works.
	SkipTrial bool
	// Snapshots excludes backends whose snapshots contain less.
	Snapshots sandbox.Snapshots
	// Logger receives a warning each time Select chooses a backend without isolation; nil: slog.Default.
	Logger *slog.Logger
}

// Tried is the report about one backend.
type Tried struct {
	Name         string               `json:"name"`
	Chosen       bool                 `json:"chosen"`
	Reason       string               `json:"reason"` // why it was chosen or not
	Remedy       string               `json:"remedy,omitempty"`
	Health       sandbox.Health       `json:"health"`
	Capabilities sandbox.Capabilities `json:"capabilities"`
}

// Select probes the backends and returns the first in order that is healthy and meets the
// requirements, with a report about each. A probe takes at most two seconds, and a slow probe does not
// keep Select from probing the next backend. If no other backend meets the requirements, Select also
// accepts a late result, because the machine may be busy. If no backend meets the requirements, the
// error is sandbox.ErrNoBackend and has the reason for each backend.
func Select(ctx context.Context, backends []sandbox.Backend, req Requirements) (sandbox.Backend, []Tried, error) {
	order := req.Order
	explicit := len(order) > 0
	if !explicit {
		order = Preference
	}
	known := map[string]sandbox.Backend{}
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
			return nil, nil, &v1.Error{
				Code:    v1.CodeBackendUnknown,
				Op:      "select backend",
				Message: fmt.Sprintf("unknown backend %q", n),
				Remedy:  "known backends: " + strings.Join(have, ", "),
			}
		}
		if known[n] != nil && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	production, err := Production()
	if err != nil {
		return nil, nil, err
	}

	fits := func(t *Tried) bool {
		if !t.Health.OK {
			return false
		}
		why, remedy := unfit(t, req, explicit, production)
		if why != "" {
			t.Reason, t.Remedy = why, remedy
		}
		return why == ""
	}
	candidates := make([]sandbox.Backend, len(names))
	for i, n := range names {
		candidates[i] = known[n]
	}
	health := fullHealth
	if req.SkipTrial && explicit && len(candidates) == 1 && !req.All {
		health = quickHealth
	}
	tried, first := probeInOrder(ctx, candidates, health, fits, req.All)
	var chosen sandbox.Backend
	if first >= 0 {
		chosen = candidates[first]
		tried[first].Chosen, tried[first].Reason = true, "first that works and meets the requirements"
	}
	for i := first + 1; i < len(tried) && chosen != nil; i++ {
		switch t := &tried[i]; {
		case t.Name == "":
			t.Name, t.Reason = names[i], "not probed: "+chosen.Name()+" comes first"
		case t.Health.OK:
			t.Reason = "works, but " + chosen.Name() + " comes first"
		}
	}
	if chosen == nil {
		return nil, tried, noBackend(tried, !req.AllowNone && !production)
	}
	c := tried[slices.IndexFunc(tried, func(t Tried) bool { return t.Chosen })]
	if c.Capabilities.Isolation == sandbox.IsolationNone {
		log := req.Logger
		if log == nil {
			log = slog.Default()
		}
		log.WarnContext(ctx, "code will run WITHOUT isolation, with this user's rights", "backend", chosen.Name())
	}
	return chosen, tried, nil
}

// probeInOrder returns the results of the probes, and the index of the first backend that fits, or -1.
// It probes the next backend if the previous one does not fit or takes longer than probeHeadStart. The
// entries of backends that it did not probe, or did not wait for, stay empty.
func probeInOrder(
	ctx context.Context, backends []sandbox.Backend, health healthFunc, fits func(*Tried) bool, all bool,
) (tried []Tried, first int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tried = make([]Tried, len(backends))
	type answer struct {
		i    int
		t    Tried
		late <-chan Tried
	}
	answers := make(chan answer, len(backends))
	late := make([]<-chan Tried, len(backends))
	begun, decided := 0, 0 // probes that have begun, and backends that were judged
	next := func() {
		i := begun
		begun++
		go func() {
			t, late := probe(ctx, backends[i], health)
			answers <- answer{i, t, late}
		}()
	}
	first = -1
	for decided < len(backends) {
		if begun <= decided || all && begun < len(backends) {
			next()
			continue
		}
		var slow <-chan time.Time
		if begun < len(backends) {
			slow = time.After(probeHeadStart)
		}
		select {
		case a := <-answers:
			tried[a.i], late[a.i] = a.t, a.late
		case <-slow:
			next()
		}
		for decided < begun && tried[decided].Name != "" {
			if first < 0 && fits(&tried[decided]) {
				first = decided
			}
			decided++
		}
		if first >= 0 && !all {
			return tried, first
		}
	}
	if first < 0 {
		first = awaitLate(tried, late, fits)
	}
	return tried, first
}

// awaitLate waits for probes that took too long, if no other backend fits. It returns the index of the
// first backend that fits, or -1. Because of this wait, the trial sandboxes of abandoned probes are removed
// before the program can end.
func awaitLate(tried []Tried, late []<-chan Tried, fits func(*Tried) bool) (first int) {
	ctx, cancel := context.WithTimeout(context.Background(), undoWait)
	defer cancel()
	first = -1
	for i, l := range late {
		if l == nil {
			continue
		}
		var t Tried
		select {
		case t = <-l:
		default:
			select {
			case t = <-l:
			case <-ctx.Done():
				continue // another backend may have answered
			}
		}
		if first < 0 && fits(&t) {
			first, tried[i] = i, t
		}
	}
	return first
}

// healthFunc queries the health of a backend.
type healthFunc func(ctx context.Context, b sandbox.Backend) sandbox.Health

func fullHealth(ctx context.Context, b sandbox.Backend) sandbox.Health { return b.Health(ctx) }

// quickHealth returns the health without a trial sandbox, if the backend supports that.
func quickHealth(ctx context.Context, b sandbox.Backend) sandbox.Health {
	if a, ok := b.(QuickProber); ok {
		return a.QuickHealth(ctx)
	}
	return b.Health(ctx)
}

// probe returns the result of a probe. If the probe takes longer than probeTimeout, late receives its result.
func probe(parent context.Context, b sandbox.Backend, health healthFunc) (t Tried, late <-chan Tried) {
	ctx, cancel := context.WithTimeout(parent, probeTimeout)
	got := make(chan Tried, 1)
	go func() {
		defer cancel()
		h := health(ctx, b)
		t := Tried{Name: b.Name(), Health: h, Capabilities: b.Capabilities(ctx), Reason: h.Reason, Remedy: h.Remedy}
		if !h.OK && t.Reason == "" {
			t.Reason = "not available"
		}
		got <- t
	}()
	select {
	case t := <-got:
		return t, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) { // not the timeout: the probe may have ended and cancelled ctx
			select {
			case t := <-got:
				return t, nil
			default:
			}
		}
	}
	reason := fmt.Sprintf("did not answer within %s", probeTimeout)
	t = Tried{Name: b.Name(), Reason: reason, Health: sandbox.Health{Reason: reason, Took: probeTimeout}}
	if parent.Err() == nil {
		return t, got
	}
	select { // the caller cancelled; wait until the trial sandbox is removed, because the program may end next
	case <-got:
	case <-time.After(undoWait):
	}
	return t, nil
}

// unfit returns why a healthy backend does not meet the requirements, or "".
func unfit(t *Tried, req Requirements, named, production bool) (why, remedy string) {
	c := t.Capabilities
	switch {
	case c.Isolation == sandbox.IsolationNone && production:
		return "RECLUSE_ENV=production forbids running without isolation", ""
	case c.Isolation == sandbox.IsolationNone && !req.AllowNone:
		return "has no isolation, which needs explicit consent", "allow it explicitly, e.g. with --allow-no-isolation"
	case c.Emulated && !named:
		return "its machines are emulated, so it is only chosen by its name", "name the backend: --backend " + t.Name
	case c.Isolation == sandbox.IsolationContainer && production:
		return "RECLUSE_ENV=production forbids containers that share the host's kernel",
			"use a runtime with a kernel of its own, e.g. recluse install-runtime"
	case c.Isolation == sandbox.IsolationContainer && !req.AllowContainer && !named:
		return "its containers share the host's kernel, which needs explicit consent",
			"name the backend, e.g. with --backend " + t.Name +
				", or use a runtime with a kernel of its own (recluse install-runtime)"
	case c.Isolation < req.MinIsolation:
		return fmt.Sprintf("its isolation is %s, and %s is required", c.Isolation, req.MinIsolation), ""
	case rank(c.Snapshots) < rank(req.Snapshots):
		return fmt.Sprintf("its snapshots contain %s, and %s is required", c.Snapshots, req.Snapshots), ""
	}
	return "", ""
}

// rank returns a number by which kinds of snapshots can be compared. The kind that contains more is greater.
func rank(s sandbox.Snapshots) int {
	kinds := []sandbox.Snapshots{"", sandbox.SnapshotsNone, sandbox.SnapshotsFiles, sandbox.SnapshotsMemory}
	return slices.Index(kinds, s)
}

// noBackend returns the error for the case that no backend fits. consentHelps reports whether consent to run without
// isolation could make a backend fit.
func noBackend(tried []Tried, consentHelps bool) error {
	var causes []error
	consent := false
	for _, t := range tried {
		why := t.Reason
		if t.Remedy != "" {
			why += " (" + t.Remedy + ")"
		}
		consent = consent || t.Health.OK && t.Capabilities.Isolation == sandbox.IsolationNone
		causes = append(causes, fmt.Errorf("%s: %s", t.Name, why))
	}
	err := &v1.Error{
		Code:    v1.CodeNoBackend,
		Op:      "select backend",
		Message: "no usable backend",
		Remedy:  "run recluse doctor for details",
		Err:     errors.Join(causes...),
	}
	if consentHelps && consent && len(tried) == 1 {
		err.Code, err.Remedy = v1.CodeConsentMissing, ""
	}
	return err
}
