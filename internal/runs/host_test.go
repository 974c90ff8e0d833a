package runs

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
)

func TestARunGoesOnAsItWasAskedFor(t *testing.T) {
	var chosen []string
	choose := func(_ context.Context, h v1.RunHost) (sandbox.Backend, error) {
		chosen = append(chosen, h.Backends...)
		return local.New(local.Options{}), nil
	}
	data := t.TempDir()
	k, _ := keeperIn(t, Options{DataDir: data, Choose: choose, Resume: true})
	r, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}, Host: &v1.RunHost{Backends: []string{"special"}}})
	if err != nil {
		t.Fatal(err)
	}
	k.Close() // the run is left to the next keeper
	next, free := keeperIn(t, Options{DataDir: data, Choose: choose, Resume: true})
	next.Recover()
	close(free)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if i, err := next.Show("acme", r.ID()); err != nil || i.Result != nil && !next.Busy() || time.Now().After(end) {
			if err != nil || i.Result == nil || i.Result.Answer != "yes" {
				t.Fatalf("%+v %v", i, err)
			}
			break
		}
	}
	if err := next.Delete(t.Context(), "acme", r.ID()); err != nil {
		t.Error(err)
	}
	// at the start, when it was resumed, and when it was deleted
	if !slices.Equal(chosen, []string{"special", "special", "special"}) {
		t.Errorf("chosen: %v", chosen)
	}
}

func TestOthersGoOnWithoutWhatTheOwnerAllowed(t *testing.T) {
	var chosen int
	k, free := keeperIn(t, Options{DataDir: t.TempDir(), Choose: func(context.Context, v1.RunHost) (sandbox.Backend, error) {
		chosen++
		return local.New(local.Options{}), nil
	}})
	close(free)
	r, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}, Host: &v1.RunHost{Backends: []string{"special"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, away := range []bool{true, false} {
		f, err := k.Fork(t.Context(), "acme", r.ID(), 0, Again{Remote: away})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Wait() // how it ends does not matter
		if want := map[bool]int{true: 1, false: 2}[away]; chosen != want {
			t.Errorf("away %v: chosen %d times, want %d", away, chosen, want)
		}
	}
}

func TestWhatARunMayAskOfTheHost(t *testing.T) {
	usual := sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 30, Processes: 7}}
	k, _ := keeperIn(t, Options{DataDir: t.TempDir(), Spec: usual})
	if got := k.spec(nil); !reflect.DeepEqual(got, usual) {
		t.Errorf("%+v", got)
	}
	got := k.spec(&v1.RunHost{Spec: &sandbox.Spec{Hostname: "h", Limits: sandbox.Limits{Memory: 2 << 30}}})
	if got.Hostname != "h" || got.Limits.Memory != 2<<30 || got.Limits.Processes != 7 {
		t.Errorf("%+v", got)
	}
	for name, h := range map[string]*v1.RunHost{"a backend": {Backends: []string{"x"}}, "an MCP server": {MCP: []v1.MCPServer{{Name: "x", URL: "http://127.0.0.1:1"}}}} {
		if _, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}, Host: h}); v1.CodeOf(err) != v1.CodeNotSupported {
			t.Errorf("%s: %v", name, err)
		}
	}
}
