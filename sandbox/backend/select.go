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

// Preference is the order in which Select tries backends when the caller names none.
var Preference = []string{"gvisor", "docker", "local"}

const (
	// probeTimeout bounds one backend's answer.
	probeTimeout = 2 * time.Second
	// probeHeadStart is how long Select waits for a backend before it asks the next one as well.
	probeHeadStart = 500 * time.Millisecond
	// undoWait is how long a backend may take to undo an abandoned trial.
	undoWait = 5 * time.Second
)

// Requirements says what a chosen backend must offer.
type Requirements struct {
	// Order lists the names to try; empty: Preference. A single name asks for that backend alone.
	Order []string
	// MinIsolation refuses everything weaker.
	MinIsolation sandbox.Isolation
	// AllowNone is the caller's explicit consent to run without isolation. Without it Select never
	// chooses a backend of IsolationNone, wherever it stands in Order.
	AllowNone bool
	// AllowContainer is the caller's consent to containers that share the host's kernel, such as
	// Docker's with runc. Naming a backend in Order is consent too. Neither counts in production.
	AllowContainer bool
	// All asks every backend, for a full report. Otherwise backends behind the chosen one may not
	// be asked, because a probe costs a sandbox.
	All bool
	// Soon says that the caller makes a sandbox at once. A single named backend that is an Answerer
	// is then not tried out first: the caller's own sandbox reports what is wrong.
	Soon bool
	// Snapshots refuses backends whose snapshots hold less.
	Snapshots sandbox.Snapshots
	// Logger receives a warning each time Select chooses no isolation; nil: slog.Default.
	Logger *slog.Logger
}

// Tried is one line of a selection's report.
type Tried struct {
	Name         string               `json:"name"`
	Chosen       bool                 `json:"chosen"`
	Reason       string               `json:"reason"` // why it was chosen or passed over
	Remedy       string               `json:"remedy,omitempty"`
	Health       sandbox.Health       `json:"health"`
	Capabilities sandbox.Capabilities `json:"capabilities"`
}

// Select probes the backends and returns the first in order that is healthy and meets the
// requirements, with a report on each. A probe takes at most two seconds, and a slow one does not
// keep Select from asking the next. When no other backend fits, a late answer counts as well: the
// machine may be busy. When none fits, the error is sandbox.ErrNoBackend and names every reason.
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
				Code: v1.CodeBackendUnknown, Op: "select backend",
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
	ask := make([]sandbox.Backend, len(names))
	for i, n := range names {
		ask[i] = known[n]
	}
	health := tryOut
	if req.Soon && explicit && len(ask) == 1 && !req.All {
		health = quickly
	}
	tried, first := probeInOrder(ctx, ask, health, fits, req.All)
	var chosen sandbox.Backend
	if first >= 0 {
		chosen = ask[first]
		tried[first].Chosen, tried[first].Reason = true, "first that works and meets the requirements"
	}
	for i := first + 1; i < len(tried) && chosen != nil; i++ {
		switch t := &tried[i]; {
		case t.Name == "":
			t.Name, t.Reason = names[i], "not asked: "+chosen.Name()+" comes first"
		case t.Health.OK:
			t.Reason = "works, but " + chosen.Name() + " comes first"
		}
	}
	if chosen == nil {
		return nil, tried, noBackend(tried, !req.AllowNone && !production)
	}
	if c := tried[slices.IndexFunc(tried, func(t Tried) bool { return t.Chosen })]; c.Capabilities.Isolation == sandbox.IsolationNone {
		log := req.Logger
		if log == nil {
			log = slog.Default()
		}
		log.WarnContext(ctx, "code will run WITHOUT isolation, with this user's rights", "backend", chosen.Name())
	}
	return chosen, tried, nil
}

// probeInOrder returns the answers, and the index of the first that fits, or -1. It asks the next
// backend when the one before does not fit or takes longer than a head start. Entries of backends
// that it did not ask, or did not wait for, stay empty.
func probeInOrder(
	ctx context.Context, backends []sandbox.Backend, health asking, fits func(*Tried) bool, all bool,
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
	asked, decided := 0, 0
	next := func() {
		i := asked
		asked++
		go func() {
			t, late := probe(ctx, backends[i], health)
			answers <- answer{i, t, late}
		}()
	}
	first = -1
	for decided < len(backends) {
		if asked <= decided || all && asked < len(backends) {
			next()
			continue
		}
		var slow <-chan time.Time
		if asked < len(backends) {
			slow = time.After(probeHeadStart)
		}
		select {
		case a := <-answers:
			tried[a.i], late[a.i] = a.t, a.late
		case <-slow:
			next()
		}
		for decided < asked && tried[decided].Name != "" {
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
		first = hearLate(tried, late, fits)
	}
	return tried, first
}

// hearLate waits for backends that did not answer in time, when no other fits. If the program ends
// afterwards, abandoned trials are undone by then.
func hearLate(tried []Tried, late []<-chan Tried, fits func(*Tried) bool) (first int) {
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
				continue // another may have answered
			}
		}
		if first < 0 && fits(&t) {
			first, tried[i] = i, t
		}
	}
	return first
}

// asking is how a backend is asked for its health.
type asking func(ctx context.Context, b sandbox.Backend) sandbox.Health

func tryOut(ctx context.Context, b sandbox.Backend) sandbox.Health { return b.Health(ctx) }

// quickly asks without a trial where the backend supports that.
func quickly(ctx context.Context, b sandbox.Backend) sandbox.Health {
	if a, ok := b.(Answerer); ok {
		return a.Answers(ctx)
	}
	return b.Health(ctx)
}

// probe returns a backend's answer. If there was none in time, late delivers it.
func probe(parent context.Context, b sandbox.Backend, health asking) (t Tried, late <-chan Tried) {
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
		if errors.Is(ctx.Err(), context.Canceled) { // not by the clock, so perhaps by the answer itself
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
	select { // the caller has given up, but the trial is undone before the program may end
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
		return "gives no isolation, and nobody allowed that", "allow it explicitly, e.g. --allow-no-isolation"
	case c.Isolation == sandbox.IsolationContainer && production:
		return "RECLUSE_ENV=production forbids containers that share the host's kernel",
			"use a runtime with a kernel of its own, e.g. recluse install-runtime"
	case c.Isolation == sandbox.IsolationContainer && !req.AllowContainer && !named:
		return "its containers share the host's kernel, and nobody allowed that",
			"name it, e.g. --backend " + t.Name + ", or use a runtime with a kernel of its own (recluse install-runtime)"
	case c.Isolation < req.MinIsolation:
		return fmt.Sprintf("its isolation is %s, and %s is required", c.Isolation, req.MinIsolation), ""
	case rank(c.Snapshots) < rank(req.Snapshots):
		return fmt.Sprintf("snapshots hold %s, and %s is required", c.Snapshots, req.Snapshots), ""
	}
	return "", ""
}

func rank(s sandbox.Snapshots) int {
	return slices.Index([]sandbox.Snapshots{"", sandbox.SnapshotsNone, sandbox.SnapshotsFiles, sandbox.SnapshotsMemory}, s)
}

// noBackend is the error when none fits. askable reports that consent would have helped.
func noBackend(tried []Tried, askable bool) error {
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
		Code: v1.CodeNoBackend, Op: "select backend", Message: "no backend fits",
		Remedy: "recluse doctor explains each", Err: errors.Join(causes...),
	}
	if askable && consent && len(tried) == 1 {
		err.Code, err.Remedy = v1.CodeConsentMissing, ""
	}
	return err
}
