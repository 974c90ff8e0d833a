package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// askingGate returns a gate with the usual rules, and its approvals.
func askingGate(t *testing.T, o gate.Options) (*gate.Checker, *gate.Approvals) {
	t.Helper()
	set, err := rules.Default()
	if err != nil {
		t.Fatal(err)
	}
	o.Rules, o.Approvals = set, gate.NewApprovals(0)
	g, err := gate.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, o.Approvals
}

func TestQuestionsOfTheGateAreAnsweredOverHTTP(t *testing.T) {
	g, questions := askingGate(t, gate.Options{RulesMode: gate.ModeBlock, EscalateAfter: 1})
	judge := func(tenant, code string) gate.Decision {
		t.Helper()
		d, err := g.Judge(t.Context(), gate.Request{Language: gate.Bash, Code: code, Session: "work", Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	k := servertest.New(t, server.Options{Approvals: questions})
	a, b := k.Client(k.Key("a", "admin")), k.Client(k.Key("b", "admin"))
	model := k.Client(k.Key("a", "execute"))
	id := judge("a", "rm -rf /").Approval
	if id == "" {
		t.Fatal("nobody was asked")
	}

	list, err := model.Approvals(t.Context(), v1.ApprovalPending)
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Request.Code != "rm -rf /" {
		t.Errorf("%+v %v", list, err)
	}
	if list, err := b.Approvals(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("another tenant's: %+v %v", list, err)
	}
	for name, tt := range map[string]struct {
		by   *client.Client
		id   string
		want v1.Code
	}{
		"a model grants its own": {model, id, v1.CodeForbidden},
		"another tenant":         {b, id, v1.CodeApprovalUnknown},
		"an id that is none":     {a, "x/../" + strings.Repeat("y", 200), v1.CodeApprovalUnknown},
	} {
		if _, err := tt.by.Resolve(t.Context(), tt.id, client.Answer{Grant: true}); v1.CodeOf(err) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for body, status := range map[string]int{`{}`: http.StatusBadRequest, `{"grant":"yes"}`: http.StatusBadRequest, `{"grant":true,"note":"` + strings.Repeat("n", 5000) + `"}`: http.StatusBadRequest} {
		if got := ask(t, k, k.Key("a", "admin"), http.MethodPost, "/v1/approvals/"+id, body); got.status != status {
			t.Errorf("%.30s: %d %s", body, got.status, got.body)
		}
	}
	if got := ask(t, k, k.Key("a", "read"), http.MethodGet, "/v1/approvals?state=maybe", ""); got.status != http.StatusBadRequest {
		t.Errorf("%d %s", got.status, got.body)
	}

	answered := make(chan gate.Approval, 1)
	go func() {
		q, err := model.Approval(t.Context(), id, client.ApprovalOptions{Wait: true})
		if err != nil {
			t.Error(err)
		}
		answered <- q
	}()
	if q, err := a.Resolve(t.Context(), id, client.Answer{Grant: true, Note: "go on"}); err != nil || q.State != v1.ApprovalGranted || q.By == "" {
		t.Errorf("%+v %v", q, err)
	}
	if q := <-answered; q.State != v1.ApprovalGranted || q.Note != "go on" {
		t.Errorf("%+v", q)
	}
	if d := judge("a", "rm -rf /"); d.Action != v1.GateAllow || d.ApprovedBy == "" {
		t.Errorf("%+v", d)
	}
	if _, err := a.Resolve(t.Context(), id, client.Answer{}); v1.CodeOf(err) != v1.CodeApprovalResolved {
		t.Errorf("%v", err)
	}
	var noted []session.Entry
	for e, err := range a.Audit(t.Context(), session.AuditOptions{Action: "approval"}) {
		if err != nil {
			t.Fatal(err)
		}
		noted = append(noted, e)
	}
	if len(noted) != 1 || noted[0].Gate != string(v1.ApprovalGranted) || noted[0].Session != "work" || noted[0].Actor == "" {
		t.Errorf("%+v", noted)
	}
}

// Code of a run in its own sandbox is judged, too: a member of its tenant answers, and the audit log has the decision.
func TestAPersonAnswersTheGateForARun(t *testing.T) {
	g, questions := askingGate(t, gate.Options{})
	set, err := llm.Open(llm.Config{Default: "scripted/root"})
	if err != nil {
		t.Fatal(err)
	}
	const code = "```repl\nimport os\nFINAL(os.system('true; shred -u /tmp/nothing'))\n```"
	var k *servertest.Bench
	var boss *client.Client
	model := llm.NewScripted("root",
		llm.Rule{Tags: map[string]string{"turn": "1"}, Reply: code},
		llm.Rule{Tags: map[string]string{"turn": "2"}, Respond: func(ctx context.Context, _ llm.Request) (string, error) {
			list, err := boss.Approvals(ctx, v1.ApprovalPending)
			if err != nil {
				return "", err
			}
			if len(list) != 1 || list[0].Request.Tenant != "acme" {
				return "", fmt.Errorf("questions: %+v", list)
			}
			_, err = boss.Resolve(ctx, list[0].ID, client.Answer{Grant: true})
			return code, err
		}})
	set.Add(model)
	noted := make(chan session.Entry, 10)
	keeper := runs.New(runs.Options{
		Models: set, DataDir: t.TempDir(), Limits: rlm.DefaultLimits(), Gate: g,
		Note:    func(_ context.Context, e session.Entry) { noted <- e },
		Backend: func(context.Context) (sandbox.Backend, error) { return k.Backend, nil },
	})
	k = servertest.New(t, server.Options{Approvals: questions, Runs: keeper})
	t.Cleanup(keeper.Close) // before the server's own end
	boss = k.Client(k.Key("acme", "admin"))
	for name, start := range map[string]func() (string, error){
		"with the server's model": func() (string, error) {
			i, err := k.Client(k.Key("acme", "execute")).StartRun(t.Context(), client.RunOptions{Query: "?", Contexts: []client.RunContext{{Text: new(haystack)}}, Gate: "block"})
			if err != nil {
				return "", err
			}
			return i.ID, nil
		},
		"with a lent one": func() (string, error) {
			r, err := keeper.StartLent(t.Context(), "acme", rlm.Question{Query: "?", Inputs: []rlm.Input{rlm.Text(haystack)}, Gate: gate.ModeBlock}, model)
			if err != nil {
				return "", err
			}
			return r.ID(), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := start()
			if err != nil {
				t.Fatal(err)
			}
			kinds, _ := follow(t, boss, id, 0)
			i, err := boss.Run(t.Context(), id)
			if err != nil || i.Result == nil || i.Result.Answer != "256" { // output of shred for a missing file
				t.Fatalf("%+v %v %v", i.Result, err, kinds)
			}
			for _, want := range []session.Entry{{Gate: "ask", Error: string(v1.CodeGateRefused)}, {Gate: "allow"}} {
				if e := <-noted; e.Gate != want.Gate || e.Error != want.Error || e.Tenant != "acme" || e.Session != id || !strings.Contains(e.Detail, "shred") {
					t.Errorf("%+v, want %+v", e, want)
				}
			}
		})
	}
}

func TestAServerWithoutQuestionsHasNone(t *testing.T) {
	k := servertest.New(t, server.Options{})
	if list, err := k.Trusted.Approvals(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	if _, err := k.Trusted.Resolve(t.Context(), "x", client.Answer{Grant: true}); v1.CodeOf(err) != v1.CodeApprovalUnknown {
		t.Errorf("%v", err)
	}
}
