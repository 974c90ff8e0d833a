package backend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a backend that only reports its health and capabilities.
type fake struct {
	sandbox.Backend
	name   string
	health sandbox.Health
	caps   sandbox.Capabilities
	hang   bool
	undo   time.Duration // how long it takes to remove the trial sandbox of an abandoned probe
	undone atomic.Bool
	asked  atomic.Int32
}

func (f *fake) Name() string { return f.name }

func (f *fake) Health(ctx context.Context) sandbox.Health {
	f.asked.Add(1)
	if f.hang {
		<-ctx.Done()
		time.Sleep(f.undo)
		f.undone.Store(true)
		return sandbox.Health{OK: true} // a late and wrong result
	}
	return f.health
}

func (f *fake) Capabilities(context.Context) sandbox.Capabilities { return f.caps }

func healthy(name string, i sandbox.Isolation) *fake {
	return &fake{name: name, health: sandbox.Health{OK: true}, caps: sandbox.Capabilities{Isolation: i, Snapshots: sandbox.SnapshotsNone}}
}

func broken(name, reason string) *fake {
	return &fake{name: name, health: sandbox.Health{Reason: reason, Remedy: "mend it"}, caps: sandbox.Capabilities{Isolation: sandbox.IsolationVM}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestSelect(t *testing.T) {
	memory := healthy("vm", sandbox.IsolationVM)
	memory.caps.Snapshots = sandbox.SnapshotsMemory
	for _, c := range []struct {
		name     string
		backends []sandbox.Backend
		req      Requirements
		env      string
		want     string
		code     v1.Code
		reasons  map[string]string // a part of each reason, by backend
	}{
		{
			name:     "the first in the order that works",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone), healthy("docker", sandbox.IsolationKernel), broken("gvisor", "no engine")},
			want:     "docker",
			reasons:  map[string]string{"gvisor": "no engine", "docker": "first that works", "local": "docker comes first"},
		},
		{
			name:     "the caller's own order",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{Order: []string{"docker", "gvisor"}},
			want:     "docker",
		},
		{
			name:     "a name that nobody has",
			backends: []sandbox.Backend{healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{Order: []string{"gvisr"}},
			code:     v1.CodeBackendUnknown,
		},
		{
			name:     "containers that share the kernel only by consent",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), broken("gvisor", "no engine")},
			code:     v1.CodeNoBackend,
			reasons:  map[string]string{"docker": "share the host's kernel, which needs explicit consent", "gvisor": "no engine"},
		},
		{
			name:     "containers by consent, behind what is stronger",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{AllowContainer: true},
			want:     "gvisor",
		},
		{
			name:     "containers by consent",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), broken("gvisor", "no engine")},
			req:      Requirements{AllowContainer: true},
			want:     "docker",
		},
		{
			name:     "to name containers is consent",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), broken("gvisor", "no engine")},
			req:      Requirements{Order: []string{"gvisor", "docker"}},
			want:     "docker",
		},
		{
			name:     "containers with a kernel of their own need no consent",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationKernel), broken("gvisor", "no engine")},
			want:     "docker",
		},
		{
			name:     "production takes no consent to containers either",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer)},
			req:      Requirements{Order: []string{"docker"}, AllowContainer: true},
			env:      "production",
			code:     v1.CodeNoBackend,
			reasons:  map[string]string{"docker": "RECLUSE_ENV=production"},
		},
		{
			name:     "production takes containers with a kernel of their own",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationKernel)},
			env:      "production",
			want:     "docker",
		},
		{
			name:     "a full report asks everybody",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationKernel), healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{All: true},
			want:     "gvisor",
			reasons:  map[string]string{"docker": "works, but gvisor comes first"},
		},
		{
			name:     "too weak",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{Order: []string{"docker", "gvisor"}, MinIsolation: sandbox.IsolationKernel},
			want:     "gvisor",
			reasons:  map[string]string{"docker": "its isolation is container, and kernel is required"},
		},
		{
			name:     "nothing is strong enough",
			backends: []sandbox.Backend{healthy("docker", sandbox.IsolationContainer), healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{MinIsolation: sandbox.IsolationVM},
			code:     v1.CodeNoBackend,
		},
		{
			name:     "without isolation only by consent",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone), broken("gvisor", "no engine")},
			code:     v1.CodeNoBackend,
			reasons:  map[string]string{"local": "which needs explicit consent", "gvisor": "no engine"},
		},
		{
			name:     "asked for by name is no consent",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone)},
			req:      Requirements{Order: []string{"local"}},
			code:     v1.CodeConsentMissing,
		},
		{
			name:     "without isolation by consent",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone), broken("gvisor", "no engine")},
			req:      Requirements{AllowNone: true},
			want:     "local",
		},
		{
			name:     "consent does not put it first",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone), healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{AllowNone: true},
			want:     "gvisor",
		},
		{
			name:     "consent does not lower what is required",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone)},
			req:      Requirements{AllowNone: true, MinIsolation: sandbox.IsolationContainer},
			code:     v1.CodeNoBackend,
		},
		{
			name:     "production takes no consent",
			backends: []sandbox.Backend{healthy("local", sandbox.IsolationNone)},
			req:      Requirements{AllowNone: true},
			env:      "production",
			code:     v1.CodeNoBackend,
			reasons:  map[string]string{"local": "RECLUSE_ENV=production"},
		},
		{
			name:     "a misspelt environment is an error",
			backends: []sandbox.Backend{healthy("gvisor", sandbox.IsolationKernel)},
			env:      "Production",
			code:     v1.CodeInvalidSpec,
		},
		{
			name:     "snapshots that are required",
			backends: []sandbox.Backend{healthy("gvisor", sandbox.IsolationKernel), memory},
			req:      Requirements{Order: []string{"gvisor", "vm"}, Snapshots: sandbox.SnapshotsMemory},
			want:     "vm",
			reasons:  map[string]string{"gvisor": "snapshots contain none, and memory is required"},
		},
		{name: "there are none", code: v1.CodeNoBackend},
		{
			name:     "a name given twice is tried once",
			backends: []sandbox.Backend{healthy("gvisor", sandbox.IsolationKernel)},
			req:      Requirements{Order: []string{"gvisor", "gvisor"}},
			want:     "gvisor",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("RECLUSE_ENV", c.env)
			c.req.Logger = quiet()
			b, tried, err := Select(t.Context(), c.backends, c.req)
			if v1.CodeOf(err) != c.code {
				t.Fatalf("the error is %v, want %q", err, c.code)
			}
			if c.want != "" && b.Name() != c.want {
				t.Errorf("chosen is %s, want %s", b.Name(), c.want)
			}
			chosen := 0
			for _, x := range tried {
				if x.Chosen {
					chosen++
					if x.Name != c.want {
						t.Errorf("the report says %s", x.Name)
					}
				}
				if x.Reason == "" {
					t.Errorf("nothing is said about %s", x.Name)
				}
				if part := c.reasons[x.Name]; !strings.Contains(x.Reason, part) {
					t.Errorf("%s: %q lacks %q", x.Name, x.Reason, part)
				}
				if c.code == v1.CodeNoBackend && !strings.Contains(err.Error(), x.Name+": "+x.Reason) {
					t.Errorf("the error does not give the reason for %s: %v", x.Name, err)
				}
			}
			if want := min(1, len(c.want)); chosen != want {
				t.Errorf("%d are marked as chosen", chosen)
			}
		})
	}
}

func TestSelectGivesUpOnABackendThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := &fake{name: "docker", hang: true}
		slower := &fake{name: "vm", hang: true}
		began := time.Now()
		b, tried, err := Select(t.Context(), []sandbox.Backend{dead, slower, healthy("gvisor", sandbox.IsolationKernel)}, Requirements{Order: []string{"docker", "vm", "gvisor"}})
		if err != nil || b.Name() != "gvisor" {
			t.Fatalf("chosen is %v, error %v", b, err)
		}
		if took := time.Since(began); took != probeTimeout+probeHeadStart {
			t.Errorf("it took %s; each probe has at most %s, and the next does not wait for it", took, probeTimeout)
		}
		if !strings.Contains(tried[0].Reason, "did not answer within 2s") || tried[0].Health.OK {
			t.Errorf("the report says %+v", tried[0])
		}
		if n := dead.asked.Load(); n != 1 {
			t.Errorf("it was probed %d times", n)
		}
	})
}

func TestALateAnswerCountsWhenNoOtherFits(t *testing.T) {
	for name, c := range map[string]struct {
		undo time.Duration
		more []sandbox.Backend
		took time.Duration
		code v1.Code
	}{
		"it comes":                     {undo: time.Second, took: probeTimeout + time.Second},
		"it comes beside one unfit":    {undo: time.Second, more: []sandbox.Backend{healthy("local", sandbox.IsolationNone)}, took: probeTimeout + time.Second},
		"it does not come soon enough": {undo: 2 * undoWait, took: probeTimeout + undoWait, code: v1.CodeNoBackend},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				busy := healthy("gvisor", sandbox.IsolationKernel)
				busy.hang, busy.undo = true, c.undo
				began := time.Now()
				b, tried, err := Select(t.Context(), append([]sandbox.Backend{busy}, c.more...), Requirements{Logger: quiet()})
				if took := time.Since(began); v1.CodeOf(err) != c.code || took != c.took {
					t.Errorf("%v after %s", err, took)
				}
				if err == nil && (b != sandbox.Backend(busy) || !tried[0].Chosen || !busy.undone.Load()) {
					t.Errorf("chosen is %v: %+v", b, tried)
				}
				if err != nil && !strings.Contains(tried[0].Reason, "did not answer within 2s") {
					t.Errorf("the report says %+v", tried[0])
				}
				time.Sleep(c.undo) // until it has ended
			})
		})
	}
}

func TestSelectThatIsGivenUpLeavesNoTrialBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := healthy("gvisor", sandbox.IsolationKernel)
		b.hang, b.undo = true, time.Second
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, _, err := Select(ctx, []sandbox.Backend{b}, Requirements{Logger: quiet()}); err == nil || !b.undone.Load() {
			t.Errorf("%v, undone: %v", err, b.undone.Load())
		}
	})
}

func TestSelectDoesNotAskThoseBehindTheChosen(t *testing.T) {
	docker := healthy("docker", sandbox.IsolationKernel)
	_, tried, err := Select(t.Context(), []sandbox.Backend{healthy("gvisor", sandbox.IsolationKernel), docker}, Requirements{})
	if err != nil || docker.asked.Load() != 0 || tried[1].Reason != "not probed: gvisor comes first" {
		t.Errorf("asked %d times: %+v, %v", docker.asked.Load(), tried, err)
	}
}

// answering is a backend that implements QuickProber.
type answering struct{ *fake }

func (a answering) QuickHealth(context.Context) sandbox.Health { return a.health }

func TestSelectDoesNotTryOutTheOnlyOneThatIsWantedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		b      *fake
		req    Requirements
		trials int32
		code   v1.Code
	}{
		"named alone":              {healthy("docker", sandbox.IsolationContainer), Requirements{Order: []string{"docker"}, SkipTrial: true}, 0, ""},
		"named alone, and away":    {broken("docker", "no engine"), Requirements{Order: []string{"docker"}, SkipTrial: true}, 0, v1.CodeNoBackend},
		"named alone, too weak":    {healthy("docker", sandbox.IsolationContainer), Requirements{Order: []string{"docker"}, SkipTrial: true, MinIsolation: sandbox.IsolationVM}, 0, v1.CodeNoBackend},
		"named, and not at once":   {healthy("docker", sandbox.IsolationContainer), Requirements{Order: []string{"docker"}}, 1, ""},
		"not named":                {healthy("docker", sandbox.IsolationKernel), Requirements{SkipTrial: true}, 1, ""},
		"every one is to be asked": {healthy("docker", sandbox.IsolationContainer), Requirements{Order: []string{"docker"}, SkipTrial: true, All: true}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Select(t.Context(), []sandbox.Backend{answering{c.b}}, c.req)
			if v1.CodeOf(err) != c.code || c.b.asked.Load() != c.trials {
				t.Errorf("%v after %d trials", err, c.b.asked.Load())
			}
		})
	}
}

func TestSelectWarnsEachTimeThereIsNoIsolation(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for range 3 {
		if _, _, err := Select(t.Context(), []sandbox.Backend{healthy("local", sandbox.IsolationNone)}, Requirements{AllowNone: true, Logger: logger}); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 3 {
		t.Errorf("%d warnings for 3 selections:\n%s", n, log.String())
	}
	log.Reset()
	if _, _, err := Select(t.Context(), []sandbox.Backend{healthy("gvisor", sandbox.IsolationKernel)}, Requirements{AllowNone: true, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("a warning without need: %s", log.String())
	}
}

func TestProductionIsParsedStrictly(t *testing.T) {
	for v, want := range map[string]struct{ yes, bad bool }{
		"production": {yes: true}, "": {}, "development": {}, "test": {},
		"prod": {bad: true}, "PRODUCTION": {bad: true}, " production": {bad: true}, "true": {bad: true},
	} {
		t.Setenv("RECLUSE_ENV", v)
		yes, err := Production()
		if yes != want.yes || (err != nil) != want.bad {
			t.Errorf("%q: %v, %v", v, yes, err)
		}
		if want.bad && !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%q: the error is %v", v, err)
		}
	}
}

func TestIsolationLevelsAreOrdered(t *testing.T) {
	if !(sandbox.IsolationNone < sandbox.IsolationContainer && sandbox.IsolationContainer < sandbox.IsolationKernel && sandbox.IsolationKernel < sandbox.IsolationVM) {
		t.Error("a weaker level is not less than a stronger one")
	}
	for i := sandbox.IsolationNone; i <= sandbox.IsolationVM; i++ {
		if b, err := i.MarshalText(); err != nil || string(b) != i.String() || i.String() == "unknown" {
			t.Errorf("%d is written as %s, %v", i, b, err)
		}
	}
}
