package runs

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/session"
)

// leave starts a run and closes its keeper.
func leave(t *testing.T, data, tenant string, a Ask) string {
	t.Helper()
	k, _ := keeperIn(t, Options{DataDir: data, Resume: true})
	a.Query = "Is it?"
	r, err := k.Start(t.Context(), tenant, a)
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	return r.ID()
}

// next returns the keeper of the next server, after it has resumed the runs and they have ended.
func next(t *testing.T, data string, resume bool) *Keeper {
	t.Helper()
	k, free := keeperIn(t, Options{DataDir: data, Resume: resume})
	close(free)
	k.Recover()
	k.wg.Wait() // also waits for the runs
	return k
}

func TestTheNextKeeperGoesOn(t *testing.T) {
	for name, tt := range map[string]struct {
		tenant string
		ask    Ask
		resume bool
		tries  int
		want   bool
	}{
		"with a run of the user's own":          {tenant: session.DefaultTenant, resume: true, want: true},
		"with a tenant's":                       {tenant: "acme", ask: Ask{Remote: true}, resume: true, want: true},
		"with one whose servers died twice":     {tenant: "acme", resume: true, tries: 2, want: true},
		"not with one that kills its servers":   {tenant: "acme", resume: true, tries: maxTries},
		"not where it is not to":                {tenant: "acme"},
		"not with one that somebody waited for": {tenant: "acme", ask: Ask{Waited: true}, resume: true},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			id := leave(t, data, tt.tenant, tt.ask)
			reader, _ := keeperIn(t, Options{DataDir: data})
			file := filepath.Join(reader.dir(tt.tenant), id, triesFile)
			if tt.tries > 0 {
				if err := os.WriteFile(file, []byte(strconv.Itoa(tt.tries)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			info, err := next(t, data, tt.resume).Show(tt.tenant, id)
			if err != nil || info.Running {
				t.Fatalf("%+v %v", info, err)
			}
			if !tt.want {
				if info.Result != nil && info.Result.Reason == v1.ReasonAnswered {
					t.Errorf("the run was resumed: %+v", info.Result)
				}
				return
			}
			if info.Result == nil || info.Result.Answer != "yes" {
				t.Errorf("%+v", info)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("the file with its tries still exists: %v", err)
			}
		})
	}
}

func TestAWaitingRunThatIsLeftAgainIsNotCounted(t *testing.T) {
	data := t.TempDir()
	id := leave(t, data, "acme", Ask{})
	for range maxTries + 2 {
		k, _ := keeperIn(t, Options{DataDir: data, Resume: true})
		k.Recover()
		k.Close()
	}
	if info, err := next(t, data, true).Show("acme", id); err != nil || info.Result == nil {
		t.Errorf("%+v %v", info, err)
	}
}

// engineIn returns an engine on the same runs without a keeper, as the command line has it.
func engineIn(t *testing.T, k *Keeper, tenant string, m llm.Model) *rlm.Engine {
	t.Helper()
	e, err := rlm.New(rlm.Options{Models: func(int, string) (llm.Model, error) { return m, nil }, Sandboxes: rlm.FromBackend(local.New(local.Options{})), Dir: k.dir(tenant)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCopiesThatAProgramHasLeftAreItsOwnBusiness(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"now":                               {"recluse.gate": "block"},
		"by a label, as servers did before": {"recluse.gate": "block", rlm.LabelAsked: labelRemote},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			id := leave(t, data, session.DefaultTenant, Ask{Question: rlm.Question{Labels: labels}})
			reader, _ := keeperIn(t, Options{DataDir: data})
			dir := reader.dir(session.DefaultTenant)
			if labels[rlm.LabelAsked] != "" {
				if err := os.Remove(filepath.Join(dir, id, orderFile)); err != nil {
					t.Fatal(err)
				}
			}
			killed, kill := context.WithCancelCause(t.Context())
			kill(rlm.ErrSuspended)
			e := engineIn(t, reader, session.DefaultTenant, llm.NewScripted("root", llm.Rule{Reply: "no"}))
			copies := map[string]*rlm.Run{}
			var err error
			if copies["replay"], err = e.Replay(killed, id); err != nil {
				t.Fatal(err)
			}
			if copies["fork"], err = e.Fork(killed, id, 0, rlm.ContinueOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, r := range copies {
				_, _ = r.Wait() // the run was left to the next server
			}
			k := next(t, data, true)
			if info, err := k.Show(session.DefaultTenant, id); err != nil || info.Result == nil || info.Result.Answer != "yes" {
				t.Errorf("the run itself was not resumed: %+v %v", info, err)
			}
			for name, r := range copies {
				info, err := k.Show(session.DefaultTenant, r.ID())
				if err != nil || info.Result != nil {
					t.Errorf("the %s was resumed: %+v %v", name, info, err)
					continue
				}
				if want := map[string]string{"recluse.gate": "block"}; !maps.Equal(info.Labels, want) {
					t.Errorf("the labels of the %s: %v", name, info.Labels)
				}
			}
		})
	}
}

func TestARunGoesOnForWhoAskedLast(t *testing.T) {
	for name, tt := range map[string]struct{ first, last bool }{
		"from elsewhere": {false, true},
		"on the machine": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			id := leave(t, data, "acme", Ask{Remote: tt.first})
			k, _ := keeperIn(t, Options{DataDir: data, Resume: true})
			if _, err := k.Resume(t.Context(), "acme", id, Again{Remote: tt.last}); err != nil {
				t.Fatal(err)
			}
			k.Close()
			tools, err := mcptools.Open([]mcptools.Server{{Name: "none", Command: []string{"/nonexistent/program"}}}, mcptools.Options{})
			if err != nil {
				t.Fatal(err)
			}
			k, free := keeperIn(t, Options{DataDir: data, Resume: true, MCP: tools})
			close(free)
			// A run that gets tools fails, because their server cannot be started. The error is temporary: the keeper retries
			// until it closes.
			again := k.tryResume(t.Context(), "acme", id)
			if again == tt.last {
				t.Errorf("tryResume returned %v", again)
			}
			k.wg.Wait()
			if info, err := k.Show("acme", id); err != nil || (info.Result != nil) != tt.last {
				t.Errorf("%+v %v", info, err)
			}
		})
	}
}

func TestARunThatCannotGoOnYetDoesLater(t *testing.T) {
	works := local.New(local.Options{})
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"what helps is another try":   {&v1.Error{Code: v1.CodeDiskFull, Retry: true}, true},
		"so says the cause":           {&v1.Error{Code: v1.CodeStartFailed, Err: &v1.Error{Code: v1.CodeGuestLost, Retry: true}}, true},
		"no backend works yet":        {&v1.Error{Code: v1.CodeNoBackend}, true},
		"nothing helps":               {&v1.Error{Code: v1.CodeBackendUnknown}, false},
		"nothing helps, nobody knows": {errors.New("broken"), false},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			id := leave(t, data, "acme", Ask{})
			asked := 0 // used by one goroutine after the other
			k, free := keeperIn(t, Options{DataDir: data, Resume: true, Backend: func(context.Context) (sandbox.Backend, error) {
				if asked++; asked <= 3 {
					return nil, tt.err
				}
				return works, nil
			}})
			close(free)
			k.Recover()
			k.wg.Wait()
			info, err := k.Show("acme", id)
			if err != nil || (info.Result != nil) != tt.want {
				t.Errorf("%+v %v", info, err)
			}
			if !tt.want && asked != 1 {
				t.Errorf("the backend was requested %d times", asked)
			}
			if n, err := readTries(filepath.Join(k.dir("acme"), id)); n != 0 || err != nil {
				t.Errorf("%d tries are counted although the server lives: %v", n, err)
			}
		})
	}
}

func TestARunThatAnotherProgramWorksOnGoesOnWhenThatIsKilled(t *testing.T) {
	data := t.TempDir()
	id := leave(t, data, "acme", Ask{})
	k, free := keeperIn(t, Options{DataDir: data, Resume: true})
	close(free)
	alive, kill := context.WithCancelCause(t.Context())
	r, err := engineIn(t, k, "acme", llm.NewScripted("root", llm.Rule{Respond: func(ctx context.Context, _ llm.Request) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}})).Resume(alive, id, rlm.ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !k.tryResume(t.Context(), "acme", id) {
		t.Fatal("tryResume returned false")
	}
	kill(rlm.ErrSuspended)
	_, _ = r.Wait() // the run was left to the next server
	k.Recover()
	k.wg.Wait()
	if info, err := k.Show("acme", id); err != nil || info.Result == nil || info.Result.Answer != "yes" {
		t.Errorf("%+v %v", info, err)
	}
}

func TestToolsAreForCallersOverTheNetworkOnlyIfTheOwnerSaysSo(t *testing.T) {
	for name, tt := range map[string]struct{ away, allowed, want bool }{
		"on this machine":          {false, false, true},
		"over the network":         {true, false, false},
		"over the network, wanted": {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := mcptools.Open([]mcptools.Server{{Name: "none", Command: []string{"/nonexistent/program"}}}, mcptools.Options{})
			if err != nil {
				t.Fatal(err)
			}
			k, free := keeperIn(t, Options{DataDir: t.TempDir(), MCP: set, MCPRemote: tt.allowed})
			close(free)
			r, err := k.Start(t.Context(), "acme", Ask{Remote: tt.away, Question: rlm.Question{Query: "Is it?"}})
			if (err != nil) != tt.want { // the MCP server cannot be started, so a run that gets its tools fails
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			if _, err := r.Wait(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(r.Dir(), "run.json"))
			var saved map[string]json.RawMessage
			if err != nil || json.Unmarshal(b, &saved) != nil || saved["tools"] != nil {
				t.Errorf("%s %v", b, err)
			}
		})
	}
}

func TestAKeptRunAsksForItsOwnLimit(t *testing.T) {
	data, tenant := t.TempDir(), "acme"
	id := leave(t, data, tenant, Ask{Question: rlm.Question{Limits: v1.RunLimits{Cost: new(0.1)}}})
	asked := make(chan session.RunDemand, 1)
	refused := &v1.Error{Code: v1.CodeQuotaExceeded}
	k, _ := keeperIn(t, Options{DataDir: data, Resume: true, Admit: func(_ context.Context, d session.RunDemand) (*session.RunPlace, error) {
		asked <- d
		return nil, refused
	}})
	own, more, unlimited := 0.1, 3.0, *rlm.DefaultLimits().Cost
	for name, tt := range map[string]struct {
		begin func() error
		want  session.RunDemand
	}{
		"resumed": {func() error {
			_, err := k.Resume(t.Context(), tenant, id, Again{})
			return err
		}, session.RunDemand{Run: id, Usual: &own}},
		"resumed with another limit": {func() error {
			_, err := k.Resume(t.Context(), tenant, id, Again{Limits: v1.RunLimits{Cost: &more}})
			return err
		}, session.RunDemand{Run: id, USD: &more, Usual: &own}},
		"after a restart": {func() error {
			if k.tryResume(t.Context(), tenant, id) {
				t.Error("tryResume returned true")
			}
			return refused
		}, session.RunDemand{Run: id, Usual: &own}},
		"forked": {func() error {
			_, err := k.Fork(t.Context(), tenant, id, 0, Again{})
			return err
		}, session.RunDemand{Usual: &own}},
		"replayed": {func() error {
			_, err := k.Replay(t.Context(), tenant, id, nil)
			return err
		}, session.RunDemand{Free: true, Usual: &unlimited}},
		"new": {func() error {
			_, err := k.Start(t.Context(), tenant, Ask{Question: rlm.Question{Query: "Is it?", Limits: v1.RunLimits{Cost: new(0.0)}}})
			return err
		}, session.RunDemand{USD: new(0.0), Usual: &unlimited}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tt.begin(); v1.CodeOf(err) != v1.CodeQuotaExceeded {
				t.Fatal(err)
			}
			tt.want.Tenant, tt.want.Limits = tenant, k.sandboxLimits(nil)
			if got := <-asked; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}
