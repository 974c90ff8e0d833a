package runs

import (
	"context"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/session"
)

// listener is a gate that allows everything and records the requests.
type listener struct {
	mu    sync.Mutex
	asked []gate.Request // guarded by mu
}

// Judge implements gate.Gate.
func (l *listener) Judge(_ context.Context, req gate.Request) (gate.Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, req)
	return gate.Decision{Action: v1.GateAllow}, nil
}

func TestWhoGoesOnWithARunOfASessionIsJudgedLikeTheSession(t *testing.T) {
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	b := local.New(local.Options{GuestPath: guest.Path})
	m, err := session.New(t.Context(), session.Options{Backends: []sandbox.Backend{b}, Require: backend.Requirements{AllowNone: true}, DataDir: t.TempDir(), NoPool: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	s, _, err := m.Open(t.Context(), session.Key{Tenant: "acme", Name: "kitchen"}, session.OpenOptions{Settings: session.Settings{Gate: string(gate.ModeBlock), Role: "cook"}})
	if err != nil {
		t.Fatal(err)
	}
	set, err := llm.Open(llm.Config{Default: "scripted/root"})
	if err != nil {
		t.Fatal(err)
	}
	set.Add(llm.NewScripted("root", llm.Rule{Respond: func(context.Context, llm.Request) (string, error) { return "```repl\nFINAL('yes')\n```\n", nil }}))
	heard := &listener{}
	k := New(Options{
		Models: set, Limits: rlm.DefaultLimits(), DataDir: t.TempDir(), PlainBelow: -1, Gate: heard,
		Backend: func(context.Context) (sandbox.Backend, error) { return b, nil },
	})
	t.Cleanup(k.Close)
	answered := func(r *rlm.Run, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if res, err := r.Wait(); err != nil || res.Answer != "yes" {
			t.Fatalf("%+v %v", res, err)
		}
		return r.ID()
	}
	id := answered(k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}, Session: s}))
	if len(heard.asked) > 0 {
		t.Errorf("the session's code is judged twice: %+v", heard.asked)
	}
	answered(k.Fork(t.Context(), "acme", id, 0, Again{}))
	if len(heard.asked) != 1 {
		t.Fatalf("%d blocks of the fork were judged", len(heard.asked))
	}
	if req := heard.asked[0]; req.Role != "cook" || req.Rules != gate.ModeBlock || req.Graph != gate.ModeBlock {
		t.Errorf("judged as %q by rules %q and graph %q", req.Role, req.Rules, req.Graph)
	}
}
