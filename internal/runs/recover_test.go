package runs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/session"
)

// leave begins a run and closes its keeper.
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

// next is a server's keeper that recovers what it finds, up to the end of that.
func next(t *testing.T, data string, resume bool) *Keeper {
	t.Helper()
	k, free := keeperIn(t, Options{DataDir: data, Resume: resume})
	close(free)
	k.Recover()
	k.wg.Wait() // for the runs as well
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
		"with a tenant's":                       {tenant: "acme", ask: Ask{Away: true}, resume: true, want: true},
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
				if info.Result != nil && info.Result.Reason == rlm.ReasonAnswered {
					t.Errorf("it went on: %+v", info.Result)
				}
				return
			}
			if info.Result == nil || info.Result.Answer != "yes" {
				t.Errorf("%+v", info)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("its tries are still counted: %v", err)
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
			k, free := keeperIn(t, Options{DataDir: t.TempDir(), MCP: set, MCPAway: tt.allowed})
			close(free)
			r, err := k.Start(t.Context(), "acme", Ask{Away: tt.away, Question: rlm.Question{Query: "Is it?"}})
			if (err != nil) != tt.want { // the server cannot be started: whoever gets its tools notices
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
