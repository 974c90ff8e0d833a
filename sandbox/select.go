package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
)

// Preference is the order in which backends are tried when the caller has none.
var Preference = []string{"firecracker", "gvisor", "docker", "local"}

// probeHeadStart is how long a backend is waited for before the next one is asked as well.
const probeHeadStart = 500 * time.Millisecond

// undoWait is how long a backend may take to undo a trial that was given up, and to say so.
const undoWait = 5 * time.Second

// Requirements says what a chosen backend must offer.
type Requirements struct {
	// Order of names to try; empty: Preference. A single name asks for that one alone.
	Order []string
	// MinIsolation refuses everything weaker.
	MinIsolation Isolation
	// AllowNone is the caller's explicit consent to run without isolation. Without
	// it a backend of IsolationNone is never chosen, wherever it stands in Order.
	AllowNone bool
	// AllowContainer is the caller's consent to containers that share the host's kernel, such as Docker's with runc. To name a backend
	// in Order is consent too. Neither counts in production.
	AllowContainer bool
	// All asks every backend, for a full report. Otherwise those behind the chosen one may be left alone: asking costs a sandbox.
	All bool
	// Soon says that the caller makes a sandbox at once. A backend that is named alone, and is an Answerer, is then not tried out first: it would
	// make one sandbox more, and what is wrong is told by the one that is wanted.
	Soon bool
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
// meets the requirements, with a report on each. Each probe has at most ProbeTimeout,
// and one that is slow does not keep the next from being asked. When no other fits, a late
// answer counts as well: the machine may be busy. When none fits, the error is
// ErrNoBackend and names every reason.
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
	ask := make([]Backend, len(names))
	for i, n := range names {
		ask[i] = known[n]
	}
	health := tryOut
	if req.Soon && explicit && len(ask) == 1 && !req.All {
		health = quickly
	}
	tried, first := probeInOrder(ctx, ask, health, fits, req.All)
	var chosen Backend
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
	if c := tried[slices.IndexFunc(tried, func(t Tried) bool { return t.Chosen })]; c.Capabilities.Isolation == IsolationNone {
		log := req.Logger
		if log == nil {
			log = slog.Default()
		}
		log.WarnContext(ctx, "code will run WITHOUT isolation, with this user's rights", "backend", chosen.Name())
	}
	return chosen, tried, nil
}

// probeInOrder gives the answers, and the index of the first that fits, or -1. The next is asked when the one before does not fit or takes
// longer than a head start. What was not asked, or not waited for, is left empty.
func probeInOrder(ctx context.Context, backends []Backend, health asking, fits func(*Tried) bool, all bool) (tried []Tried, first int) {
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

// hearLate waits for those that did not answer in time, when no other fits. At worst the program ends after it, and what they have begun is
// undone by then.
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
type asking func(ctx context.Context, b Backend) Health

func tryOut(ctx context.Context, b Backend) Health { return b.Health(ctx) }

// quickly asks without a trial, where that can be.
func quickly(ctx context.Context, b Backend) Health {
	if a, ok := b.(Answerer); ok {
		return a.Answers(ctx)
	}
	return b.Health(ctx)
}

// probe gives a backend's answer, or says that there was none in time and where it will come.
func probe(parent context.Context, b Backend, health asking) (t Tried, late <-chan Tried) {
	ctx, cancel := context.WithTimeout(parent, ProbeTimeout)
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
	}
	t = Tried{Name: b.Name(), Health: Health{Reason: fmt.Sprintf("did not answer within %s", ProbeTimeout), Took: ProbeTimeout}}
	t.Reason = t.Health.Reason
	if parent.Err() == nil {
		return t, got
	}
	select { // nobody waits for the answer any more, but what was begun is undone before the program may end
	case <-got:
	case <-time.After(undoWait):
	}
	return t, nil
}

// unfit says why a healthy backend does not meet the requirements, or "".
func unfit(t *Tried, req Requirements, named, production bool) (why, remedy string) {
	c := t.Capabilities
	switch {
	case c.Isolation == IsolationNone && production:
		return "RECLUSE_ENV=production forbids running without isolation", ""
	case c.Isolation == IsolationNone && !req.AllowNone:
		return "gives no isolation, and nobody allowed that", "allow it explicitly, e.g. --allow-no-isolation"
	case c.Isolation == IsolationContainer && production:
		return "RECLUSE_ENV=production forbids containers that share the host's kernel", "use a runtime with a kernel of its own, e.g. recluse install-runtime"
	case c.Isolation == IsolationContainer && !req.AllowContainer && !named:
		return "its containers share the host's kernel, and nobody allowed that", "name it, e.g. --backend " + t.Name + ", or use a runtime with a kernel of its own (recluse install-runtime)"
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
