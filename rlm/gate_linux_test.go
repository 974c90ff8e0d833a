//go:build linux

package rlm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
)

// doorman is a gate that refuses code with a given word.
type doorman struct {
	word string
	err  error

	mu     sync.Mutex
	judged []gate.Request // guarded by mu
}

func (d *doorman) Judge(_ context.Context, req gate.Request) (gate.Decision, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.judged = append(d.judged, req)
	if d.err != nil {
		return gate.Decision{}, d.err
	}
	if strings.Contains(req.Code, "careful") {
		return gate.Decision{Action: v1.GateWarn, Reason: "be careful"}, nil
	}
	if strings.Contains(req.Code, d.word) {
		return gate.Decision{Action: v1.GateDeny, Reason: "nobody says " + d.word + " here"}, nil
	}
	return gate.Decision{Action: v1.GateAllow}, nil
}

func TestAScriptIsJudgedAsThatOfTheShellThatRunsIt(t *testing.T) {
	g := &doorman{word: "forbidden"}
	d := newDesk(t, "```bash\necho told\n```\n", block("FINAL('done')"))
	d.opts.Gate, d.opts.Spec.Shell = g, "sh"
	if _, err := d.engine().Run(t.Context(), Question{Inputs: []Input{Text("x")}}); err != nil {
		t.Fatal(err)
	}
	same(t, "language", g.judged[0].Language, gate.Command)
	if args := g.judged[0].Args; !slices.Equal(args[:2], []string{"sh", "-c"}) || strings.TrimSpace(args[2]) != "echo told" {
		t.Errorf("judged %q", args)
	}
	contains(t, "what the model hears of it", d.root.asked[1].Messages[3].Content, "told")
}

func TestTheGateJudgesWhatModelsWriteAndTellsThemWhy(t *testing.T) {
	g := &doorman{word: "forbidden"}
	d := newDesk(t,
		block("x = 1 # careful"),
		block("x = 'forbidden'"),
		"```bash\ntouch /tmp/forbidden\n```\n",
		"```bash\nls /tmp\n```\n",
		block("FINAL([x, rlm_query('a child')])"),
	)
	d.sub.answer = script(block("FINAL('forbidden')"), block("FINAL('by the child')"))
	d.opts.Gate, d.opts.Tenant = g, "acme"
	d.opts.Limits.Depth = new(2)
	e := d.engine()
	res, err := e.Run(t.Context(), Question{Inputs: []Input{Text("x")}, Gate: gate.ModeBlock, Role: "cook"})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, `[1, "by the child"]`)
	contains(t, "what the model hears of its cell", d.root.asked[2].Messages[5].Content, "nobody says forbidden here")
	contains(t, "what it hears of its command", d.root.asked[3].Messages[7].Content, "nobody says forbidden here")
	if listed := d.root.asked[4].Messages[9].Content; strings.Contains(listed, "forbidden") {
		t.Errorf("the command was run: %s", listed)
	}
	same(t, "judged", len(g.judged), 7) // the code of models, and no internal cells
	for _, r := range g.judged {
		same(t, "session", r.Session, res.Run)
		same(t, "tenant", r.Tenant, "acme")
		same(t, "role", r.Role, "cook")
		same(t, "rules", r.Rules, gate.ModeBlock)
		same(t, "graph", r.Graph, gate.ModeBlock)
	}
	same(t, "language of the third", g.judged[2].Language, gate.Bash)
	if first := d.root.asked[1].Messages[3].Content; strings.Contains(first, "be careful") {
		t.Errorf("the model sees a warning: %s", first)
	}
	refused := 0
	var said []gate.Action
	for ev, err := range e.Events(res.Run) {
		if err != nil {
			t.Fatal(err)
		}
		var end v1.CellEnded
		if ev.Kind == v1.KindGate {
			var j v1.Judged
			if err := ev.Decode(&j); err != nil || j.Reason == "" {
				t.Fatal(j, err)
			}
			said = append(said, j.Action)
		}
		if ev.Kind != v1.KindCellEnded {
			continue
		}
		if err := ev.Decode(&end); err != nil {
			t.Fatal(err)
		}
		if end.Ended == v1.EndedStart && !end.OK && strings.Contains(end.Error, "nobody says") {
			refused++
		}
	}
	same(t, "refusals in the log", refused, 3)
	if want := []gate.Action{v1.GateWarn, v1.GateDeny, v1.GateDeny, v1.GateDeny}; !slices.Equal(said, want) {
		t.Errorf("decisions in the log: %v, want %v", said, want)
	}

	// A resumed, forked or replayed run is judged in the same way.
	g.judged = nil
	again, err := e.Replay(t.Context(), res.Run)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Wait(); err != nil {
		t.Fatal(err)
	}
	same(t, "judged again", len(g.judged), 7)
	same(t, "role", g.judged[0].Role, "cook")
	same(t, "rules", g.judged[0].Rules, gate.ModeBlock)
}

func TestWhatTheGateRefusedDoesNotRunWhenARunGoesOn(t *testing.T) {
	g := &doorman{word: "forbidden"}
	d := newDesk(t,
		block("x = [1]"),
		block("x.append(2)")+block("x.append('forbidden')")+block("x.append('behind it')"),
		"```bash\necho > /tmp/left.forbidden\n```\n",
		block("x.append(4)\nimport os\nassert os.environ['LUCK'] == 'good'")+block("x.append('nobody judged this')"),
		"```bash\necho > /tmp/left.allowed\n```\n"+block("x.append(5)"),
		"I do not know.",
		block("import glob\nFINAL([x, glob.glob('/tmp/left.*')])"),
	)
	d.opts.Gate, d.opts.Blocks = g, AllBlocks
	d.opts.Limits.Turns = new(5)
	d.opts.Spec.Env = map[string]string{"LUCK": "bad"}
	first, err := d.run(Question{Inputs: []Input{Text("x")}})
	same(t, "code", v1.CodeOf(err), v1.CodeBudget)
	same(t, "judged", len(g.judged), 7)
	more := d.opts.Limits
	more.Turns = new(6)
	// The block that failed then succeeds now. The block after it must still not run.
	d.opts.Spec.Env = map[string]string{"LUCK": "good"}
	e := d.engine()
	for name, begin := range map[string]func() (*Run, error){
		"forked":  func() (*Run, error) { return e.Fork(t.Context(), first.Run, 5, ContinueOptions{Limits: more}) },
		"resumed": func() (*Run, error) { return e.Resume(t.Context(), first.Run, ContinueOptions{Limits: more}) },
	} {
		g.judged = nil
		r, err := begin()
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.Wait()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "answer when "+name, res.Answer, `[[1, 2, 4, 5], ["/tmp/left.allowed"]]`)
		same(t, "judged when "+name, len(g.judged), 1) // only new code
	}
}

func TestAGateThatIsNoneIsRefused(t *testing.T) {
	_, err := newDesk(t).engine().Start(t.Context(), Question{Inputs: []Input{Text("x")}, Gate: "sometimes"})
	same(t, "code", v1.CodeOf(err), v1.CodeInvalidRequest)
	contains(t, "the error", err.Error(), "off, warn or block")
}

func TestWithoutAJudgementNothingRuns(t *testing.T) {
	d := newDesk(t, block("FINAL('it ran')"))
	d.opts.Gate = &doorman{err: errors.New("the doorman is asleep")}
	res, err := d.run(Question{Inputs: []Input{Text("x")}})
	if err == nil {
		t.Fatalf("answered %q", res.Answer)
	}
	contains(t, "the error", err.Error(), "the doorman is asleep")
	same(t, "cells", res.Cells, 0)
}

func TestAModelOfARunIsNotToldHowToGrant(t *testing.T) {
	end := refusedCode(&v1.Error{Code: v1.CodeGateRefused, Message: "it deletes files", Remedy: v1.GrantCommand + "a1"})
	if said := end.Error; strings.Contains(said, v1.GrantCommand) || !strings.Contains(said, "it deletes files") {
		t.Errorf("%q", said)
	}
}
