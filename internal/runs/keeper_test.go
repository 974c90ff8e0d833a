package runs

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newKeeper returns a keeper with a model that answers small questions directly, without a sandbox, as soon as the test
// allows it.
func newKeeper(t *testing.T, most int) (k *Keeper, free chan struct{}) {
	t.Helper()
	return keeperIn(t, Options{DataDir: t.TempDir(), MaxRuns: most})
}

func keeperIn(t *testing.T, o Options) (k *Keeper, free chan struct{}) {
	t.Helper()
	set, err := llm.Open(llm.Config{Default: "scripted/root"})
	if err != nil {
		t.Fatal(err)
	}
	free = make(chan struct{})
	set.Add(llm.NewScripted("root", llm.Rule{Respond: func(ctx context.Context, _ llm.Request) (string, error) {
		select {
		case <-free:
			return "yes", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}}))
	o.Models, o.Limits = set, rlm.DefaultLimits()
	if o.Backend == nil {
		o.Backend = func(context.Context) (sandbox.Backend, error) { return local.New(local.Options{}), nil }
	}
	k = New(o)
	k.pause = time.Millisecond
	t.Cleanup(k.Close)
	return k, free
}

func TestTenantsAreKeptApart(t *testing.T) {
	k, free := newKeeper(t, 0)
	close(free)
	r, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := r.Wait(); err != nil || res.Answer != "yes" || !res.Plain {
		t.Fatalf("%+v %v", res, err)
	}
	if i, err := k.Show("acme", r.ID()); err != nil || i.Query != "Is it?" {
		t.Errorf("%+v %v", i, err)
	}
	for _, other := range []string{"other", session.DefaultTenant, "..", "acme/../other"} {
		if _, err := k.Show(other, r.ID()); v1.CodeOf(err) != v1.CodeRunNotFound {
			t.Errorf("%s: %v", other, err)
		}
	}
	if rel, err := filepath.Rel(k.o.DataDir, k.dir("..")); err != nil || strings.HasPrefix(rel, "..") {
		t.Errorf("a tenant's directory is outside: %s", k.dir(".."))
	}
}

func TestOnlySoManyRunsAtOnce(t *testing.T) {
	k, free := newKeeper(t, 2)
	q := Ask{Question: rlm.Question{Query: "Is it?"}}
	var under []*rlm.Run
	for range 2 {
		r, err := k.Start(t.Context(), "acme", q)
		if err != nil {
			t.Fatal(err)
		}
		under = append(under, r)
	}
	if !k.Busy() {
		t.Error("no run is live")
	}
	if _, err := k.Start(t.Context(), "acme", q); v1.CodeOf(err) != v1.CodeQueueFull {
		t.Errorf("a third run: %v", err)
	}
	other, err := k.Start(t.Context(), "other", q)
	if err != nil {
		t.Errorf("a run of another tenant: %v", err)
	}
	close(free)
	for _, r := range append(under, other) {
		if res, err := r.Wait(); err != nil || res.Answer != "yes" {
			t.Errorf("%+v %v", res, err)
		}
	}
}

func TestCloseLeavesRunsToTheNextOrStopsThem(t *testing.T) {
	for name, tt := range map[string]struct{ resume, waited, ended bool }{
		"left":                          {resume: true},
		"stopped, as is configured":     {ended: true},
		"stopped, for nobody waits now": {resume: true, waited: true, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, _ := keeperIn(t, Options{DataDir: t.TempDir(), Resume: tt.resume})
			r, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}, Waited: tt.waited})
			if err != nil {
				t.Fatal(err)
			}
			k.Close()
			if res, err := r.Wait(); err == nil || res.Reason != v1.ReasonCancelled || !errors.Is(err, context.Canceled) {
				t.Errorf("%+v %v", res, err)
			}
			if _, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}}); v1.CodeOf(err) != v1.CodeClosing {
				t.Errorf("a run of a closed keeper: %v", err)
			}
			if i, err := k.Show("acme", r.ID()); err != nil || i.Running || (i.Result != nil) != tt.ended {
				t.Errorf("%+v %v", i, err)
			}
		})
	}
}

// shop is a backend that makes no sandboxes, and records the requested specs.
type shop struct {
	sandbox.Backend
	asked chan sandbox.Spec
}

// Start implements sandbox.Backend.
func (s shop) Start(_ context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	s.asked <- spec
	return nil, errors.New("sold out")
}

func TestASandboxOutlivesItsServerOnlyIfTheNextGoesOnWithTheRun(t *testing.T) {
	q := rlm.Question{Query: "Is it?", Inputs: []rlm.Input{rlm.Text(strings.Repeat("many words ", 20_000))}}
	for name, tt := range map[string]struct {
		resume bool
		begin  func(k *Keeper) (*rlm.Run, error)
		want   bool
	}{
		"it does":              {true, func(k *Keeper) (*rlm.Run, error) { return k.Start(t.Context(), "acme", Ask{Question: q}) }, true},
		"it goes on with none": {false, func(k *Keeper) (*rlm.Run, error) { return k.Start(t.Context(), "acme", Ask{Question: q}) }, false},
		"somebody waits":       {true, func(k *Keeper) (*rlm.Run, error) { return k.Start(t.Context(), "acme", Ask{Question: q, Waited: true}) }, false},
		"the model is lent": {true, func(k *Keeper) (*rlm.Run, error) {
			return k.StartLent(t.Context(), "acme", q, llm.NewScripted("lent", llm.Rule{Reply: "no"}))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := shop{local.New(local.Options{}), make(chan sandbox.Spec, 1)}
			k, _ := keeperIn(t, Options{DataDir: t.TempDir(), Resume: tt.resume, Backend: func(context.Context) (sandbox.Backend, error) { return s, nil }})
			r, err := tt.begin(k)
			if err != nil {
				t.Fatal(err)
			}
			if spec := <-s.asked; spec.Persist != tt.want {
				t.Errorf("Persist is %v", spec.Persist)
			}
			if res, err := r.Wait(); err == nil {
				t.Errorf("%+v", res)
			}
		})
	}
}

func TestHowSmallAQuestionNeedsNoRun(t *testing.T) {
	for below, small := range map[int64]int64{0: rlm.DefaultPlainBelow - 1, 100: 99, -1: -2} {
		k, _ := keeperIn(t, Options{DataDir: t.TempDir(), PlainBelow: below})
		if !k.Small(small) || k.Small(small+1) {
			t.Errorf("PlainBelow %d: %d tokens are not the largest small context", below, small)
		}
	}
}

func TestTenantsShareNoReplies(t *testing.T) {
	dir := t.TempDir()
	k, _ := keeperIn(t, Options{DataDir: dir, CacheBytes: 1 << 20})
	caches := map[*rlm.Cache]bool{}
	for _, tenant := range []string{session.DefaultTenant, "acme", "acme", "other"} {
		c, err := k.cache(tenant, k.o.CacheBytes)
		if err != nil || c == nil {
			t.Fatal(c, err)
		}
		caches[c] = true
	}
	if len(caches) != 3 {
		t.Errorf("%d caches for three tenants", len(caches))
	}
	found, err := filepath.Glob(filepath.Join(dir, "tenants", "*", rlm.CacheDir))
	if err != nil || len(found) != 2 {
		t.Error(found, err)
	}
	none, _ := keeperIn(t, Options{DataDir: t.TempDir()})
	if c, err := none.cache("acme", none.o.CacheBytes); c != nil || err != nil {
		t.Errorf("unexpected cache: %v %v", c, err)
	}
}
