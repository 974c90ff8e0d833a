package rlm

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// strictGate gives a gate whose rules block.
func strictGate(t *testing.T) *gate.Checker {
	t.Helper()
	rules, err := gate.DefaultRules()
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(gate.Options{Rules: rules, RulesMode: gate.ModeBlock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func TestTheGateTellsTheModelWhatToMend(t *testing.T) {
	d := newDesk(t,
		block("x = 1\nimport shutil\nshutil.rmtree('/')"), "```bash\nd=/; rm -rf \"$d\"\n```\n", block("FINAL('x' in globals())"),
	)
	d.opts.Gate = strictGate(t)
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, "false") // nothing of a refused block has run
	for turn, rule := range map[int]string{1: "line 3", 2: "rule no-root-removal"} {
		m := d.root.asked[turn].Messages
		told := m[len(m)-1].Content
		contains(t, "what it was told", told, "This code was not run.")
		contains(t, "what it was told", told, rule)
	}
}

// own is a machine with a gate of its own, as a session is: it notes what it is asked to judge.
type own struct {
	*sandbox.Sandbox
	mu     sync.Mutex
	judged []string // guarded by mu
}

func (o *own) Judges() bool { return true }

// Judge implements gate.Gate. It refuses whatever does not speak of apples.
func (o *own) Judge(_ context.Context, req gate.Request) (gate.Decision, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.judged = append(o.judged, req.Code)
	if strings.Contains(req.Code, "apple") {
		return gate.Decision{Action: gate.Allow}, nil
	}
	return gate.Decision{Action: gate.Deny, Reason: "speak of apples"}, nil
}

func (o *own) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	if _, err := gate.Pass(ctx, o, gate.Request{Language: gate.Python, Code: c.Code}); err != nil {
		return nil, err
	}
	return o.Sandbox.Cell(ctx, c)
}

func TestAMachineWithItsOwnGateJudgesModelsAlone(t *testing.T) {
	sb, err := sandbox.Open(t.Context(), boxes, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	m := &own{Sandbox: sb}
	d := newDesk(t, block("print('pear')"), block("shutil = None # apple\nif 0: shutil.rmtree('/')"), block("FINAL('apple')"))
	d.opts.Gate = strictGate(t) // not asked: it would refuse the second block
	res := d.answered(Question{Inputs: []Input{Text("x")}, Machine: m})
	same(t, "answer", res.Answer, "apple")
	same(t, "judged", len(m.judged), 3) // what the engine itself runs is its own
	told := d.root.asked[1].Messages
	contains(t, "what it was told", told[len(told)-1].Content, "speak of apples")
}
