package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/gate/terms"
	"github.com/recluse-dev/recluse/sandbox"
)

const removal = "rm -rf /"

// defaultChecker applies the default rules in ModeBlock, unless the options say otherwise.
func defaultChecker(t testing.TB, opts Options) *Checker {
	t.Helper()
	set, err := rules.Default()
	if err != nil {
		t.Fatal(err)
	}
	opts.Rules, opts.RulesMode = set, cmp.Or(opts.RulesMode, ModeBlock)
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestADecisionExplainsItself(t *testing.T) {
	d := judge(t, defaultChecker(t, Options{}), Request{Language: Bash, Code: "echo start\nx=/\nrm -rf $x\n"})
	if d.Action != v1.GateDeny {
		t.Errorf("action %s, want deny", d.Action)
	}
	for _, want := range []string{"was not run", "line 3: removes /", "rule no-root-removal", "Instead: "} {
		if !strings.Contains(d.Reason, want) {
			t.Errorf("the reason does not contain %q:\n%s", want, d.Reason)
		}
	}
}

func TestTheHeadlineIsTheWorstFinding(t *testing.T) {
	d := judge(t, defaultChecker(t, Options{RulesMode: ModeWarn}), Request{Language: Bash, Code: "sudo true\nrm -rf /\npip install x\n"})
	line, more := Headline(d.Reason)
	if !strings.HasPrefix(line, "line 2: removes /") || strings.Contains(line, "\n") || more < 3 {
		t.Errorf("%q and %d more of\n%s", line, more, d.Reason)
	}
}

func TestModes(t *testing.T) {
	tests := []struct {
		name      string
		checker   Mode
		session   Mode
		code      string
		action    Action
		findings  bool
		wantError bool
	}{
		{"off", ModeOff, "", removal, v1.GateAllow, false, false},
		{"the default warns", "", "", removal, v1.GateWarn, true, false},
		{"block", ModeBlock, "", removal, v1.GateDeny, true, false},
		{"the session blocks", ModeWarn, ModeBlock, removal, v1.GateDeny, true, false},
		{"the session is off", ModeBlock, ModeOff, removal, v1.GateAllow, false, false},
		{"ask", ModeBlock, "", "git push --force", v1.GateAsk, true, false},
		{"ask becomes a warning", ModeWarn, "", "git push --force", v1.GateWarn, true, false},
		{"a note does not prevent the run", ModeBlock, "", "pip install x", v1.GateAllow, true, false},
		{"empty code", ModeBlock, "", " \n", v1.GateAllow, false, false},
		{"a misspelt mode", ModeBlock, "blok", removal, "", false, true},
	}
	set, err := rules.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := New(Options{Rules: set, RulesMode: test.checker})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			d, err := c.Judge(t.Context(), Request{Language: Bash, Code: test.code, Rules: test.session})
			if (err != nil) != test.wantError || d.Action != test.action || (len(d.Findings) > 0) != test.findings {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
	if _, err := New(Options{RulesMode: "of"}); err == nil {
		t.Error("New accepted a misspelled mode")
	}
}

func TestARequestThatMakesNoSenseIsRefused(t *testing.T) {
	c := defaultChecker(t, Options{})
	for name, req := range map[string]Request{
		"no language":      {Code: "x"},
		"another language": {Language: "perl", Code: "x"},
		"code and args":    {Language: Bash, Code: "x", Args: []string{"y"}},
		"args and code":    {Language: Command, Code: "x", Args: []string{"y"}},
	} {
		if _, err := c.Judge(t.Context(), req); v1.CodeOf(err) != v1.CodeInvalidRequest {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Judge(ctx, Request{Language: Bash, Code: "ls"}); !errors.Is(err, sandbox.ErrCancelled) {
		t.Errorf("cancelled ctx: got error %v", err)
	}
}

func judge(t testing.TB, c *Checker, req Request) Decision {
	t.Helper()
	d, err := c.Judge(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAPersonIsCalledAfterThreeTries(t *testing.T) {
	approvals := NewApprovals(0)
	c := defaultChecker(t, Options{Approvals: approvals})
	req := Request{Language: Bash, Code: removal, Session: "s", Tenant: "t"}
	for try := 1; try <= 2; try++ {
		if d := judge(t, c, req); d.Action != v1.GateDeny || d.Attempt != try || d.Escalated {
			t.Fatalf("try %d: %+v", try, d)
		}
	}
	// Another session's tries, and code that runs, do not count.
	if d := judge(t, c, Request{Language: Bash, Code: removal, Session: "other"}); d.Attempt != 1 {
		t.Errorf("another session's first try is number %d", d.Attempt)
	}
	d := judge(t, c, req)
	asked := approvals.List("")
	if !d.Escalated || d.Approval == "" || d.Action != v1.GateDeny || len(asked) != 1 || asked[0].ID != d.Approval {
		t.Fatalf("third try: %+v, asked %v", d, asked)
	}
	if !strings.Contains(d.Reason, d.Approval) {
		t.Errorf("the reason does not name the approval: %s", d.Reason)
	}
	if again := judge(t, c, req); again.Approval != d.Approval {
		t.Errorf("the same question was asked twice: %s and %s", d.Approval, again.Approval)
	}
	if _, err := approvals.Resolve(d.Approval, Answer{Grant: true, By: "ann", Note: "go on"}); err != nil {
		t.Fatal(err)
	}
	// The grant is for this code only, and once.
	if d := judge(t, c, Request{Language: Bash, Code: removal + " ", Session: "s", Tenant: "t"}); d.Action != v1.GateDeny {
		t.Errorf("other code was allowed: %+v", d)
	}
	if d := judge(t, c, Request{Language: Bash, Code: removal, Session: "other", Tenant: "t"}); d.Action != v1.GateDeny {
		t.Errorf("another session was allowed: %+v", d)
	}
	if d := judge(t, c, req); d.Action != v1.GateAllow || d.ApprovedBy != "ann" {
		t.Errorf("after the grant: %+v", d)
	}
	if d := judge(t, c, req); d.Action != v1.GateDeny || d.Attempt != 1 {
		t.Errorf("the grant was accepted twice: %+v", d)
	}
}

func TestEveryJudgementIsHeard(t *testing.T) {
	c := defaultChecker(t, Options{RulesMode: ModeBlock, MinMode: ModeWarn})
	var seen []string
	g := Observe(c, func(_ context.Context, req Request, d Decision, err error) {
		seen = append(seen, fmt.Sprintf("%s %s %v", req.Session, d.Action, err != nil))
	})
	for _, req := range []Request{{Language: Bash, Code: "ls"}, {Language: Bash, Code: removal}, {Language: "perl", Code: "1"}} {
		req.Session = "s"
		_, _ = g.Judge(t.Context(), req)
	}
	if want := []string{"s allow false", "s deny false", "s  true"}; !slices.Equal(seen, want) {
		t.Errorf("observed %q, want %q", seen, want)
	}
	if got := EffectiveMode(g, ModeOff); got != ModeWarn {
		t.Errorf("minimum mode %s", got)
	}
	g.(*observed).Forget("", "s")
	if d, err := g.Judge(t.Context(), Request{Language: Bash, Code: removal, Session: "s"}); err != nil || d.Attempt != 1 {
		t.Errorf("Forget did not reset the failures: %+v %v", d, err)
	}
	if Observe(nil, nil) != nil {
		t.Error("Observe(nil) is not nil")
	}
}

func TestWhoNamesNoRoleHasTheOneThatIsConfigured(t *testing.T) {
	graphs := map[string]*terms.Graph{}
	for role, term := range map[string]string{"cook": "onion", "gardener": "spade"} {
		thesaurus, err := terms.Parse(role, []byte(term+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if graphs[role], err = terms.NewGraph(thesaurus, terms.GraphOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(own, role string) (Action, error) {
		t.Helper()
		c, err := New(Options{Graphs: graphs, Role: own})
		if err != nil {
			return "", err
		}
		defer c.Close()
		unknown := role == "smith"
		if err := CheckRole(Observe(c, func(context.Context, Request, Decision, error) {}), role); (err != nil) != unknown {
			t.Errorf("role %q: %v", role, err)
		}
		d, err := c.Judge(t.Context(), Request{Language: Bash, Code: "onion", Role: role})
		return d.Action, err
	}
	for _, tt := range []struct {
		own, role string
		want      Action
		fails     string
	}{
		{"cook", "", v1.GateAllow, ""},
		{"gardener", "", v1.GateDeny, ""},
		{"gardener", "cook", v1.GateAllow, ""},
		{"", "", "", "gate.role"},
		{"", "smith", "", "cook, gardener"},
		{"smith", "cook", "", "cook, gardener"},
	} {
		got, err := ask(tt.own, tt.role)
		if tt.fails == "" && (err != nil || got != tt.want) || tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) {
			t.Errorf("%q asked as %q: %s, %v", tt.own, tt.role, got, err)
		}
	}
}

func TestARefusalIsFinal(t *testing.T) {
	approvals := NewApprovals(0)
	c := defaultChecker(t, Options{Approvals: approvals})
	req := Request{Language: Bash, Code: "git push --force", Session: "s"}
	d := judge(t, c, req)
	if d.Action != v1.GateAsk || d.Approval == "" {
		t.Fatalf("got %+v", d)
	}
	if _, err := approvals.Resolve(d.Approval, Answer{By: "bob", Note: "use a branch"}); err != nil {
		t.Fatal(err)
	}
	if _, err := approvals.Resolve(d.Approval, Answer{Grant: true, By: "eve"}); !errors.Is(err, ErrApprovalResolved) {
		t.Errorf("second answer: got error %v", err)
	}
	d = judge(t, c, req)
	if d.Action != v1.GateDeny || d.Approval != "" || !strings.Contains(d.Reason, "bob refused it") || !strings.Contains(d.Reason, "use a branch") {
		t.Errorf("got %+v", d)
	}
}

func TestWithoutAPersonTheModelIsToldToStop(t *testing.T) {
	c := defaultChecker(t, Options{})
	d := judge(t, c, Request{Language: Bash, Code: removal, Attempt: 3})
	if !d.Escalated || d.Approval != "" || !strings.Contains(d.Reason, "ask the user") {
		t.Errorf("got %+v", d)
	}
}

func TestWhoWaitsHearsTheAnswer(t *testing.T) {
	approvals := NewApprovals(0)
	c := defaultChecker(t, Options{Approvals: approvals, EscalateAfter: 1})
	var waiting sync.WaitGroup
	for i := range 10 {
		d := judge(t, c, Request{Language: Bash, Code: removal, Session: fmt.Sprint(i), Tenant: "t"})
		for range 3 {
			waiting.Go(func() {
				a, err := approvals.Wait(t.Context(), d.Approval)
				if err != nil || a.State != v1.ApprovalGranted || a.By != "ann" {
					t.Errorf("got %+v, %v", a, err)
				}
			})
		}
	}
	if n := len(approvals.List("t")); n != 10 {
		t.Errorf("%d questions, want 10", n)
	}
	if n := len(approvals.List("another")); n != 0 {
		t.Errorf("another tenant sees %d questions", n)
	}
	for _, a := range approvals.List("") {
		waiting.Go(func() {
			if _, err := approvals.Resolve(a.ID, Answer{Grant: true, By: "ann"}); err != nil {
				t.Error(err)
			}
		})
	}
	waiting.Wait()
	if _, err := approvals.Get("nothing"); !errors.Is(err, ErrApprovalUnknown) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := judge(t, c, Request{Language: Bash, Code: removal, Session: "late"})
	if _, err := approvals.Wait(ctx, d.Approval); !errors.Is(err, sandbox.ErrCancelled) {
		t.Errorf("got %v", err)
	}
}

func TestAQuestionExpires(t *testing.T) {
	approvals := NewApprovals(time.Minute)
	now := time.Now()
	approvals.now = func() time.Time { return now }
	c := defaultChecker(t, Options{Approvals: approvals, EscalateAfter: 1})
	d := judge(t, c, Request{Language: Bash, Code: removal, Session: "s"})
	now = now.Add(2 * time.Minute)
	if a, err := approvals.Get(d.Approval); err != nil || a.State != v1.ApprovalExpired {
		t.Errorf("got %+v, %v", a, err)
	}
	if _, err := approvals.Resolve(d.Approval, Answer{Grant: true, By: "ann"}); !errors.Is(err, ErrApprovalResolved) {
		t.Errorf("an expired question was answered: %v", err)
	}
	now = now.Add(2 * time.Minute)
	if _, err := approvals.Get(d.Approval); !errors.Is(err, ErrApprovalUnknown) {
		t.Errorf("got %v", err)
	}
}

func TestQuestionsAreBounded(t *testing.T) {
	approvals := NewApprovals(0)
	c := defaultChecker(t, Options{Approvals: approvals, EscalateAfter: 1})
	for i := range maxPendingSession {
		judge(t, c, Request{Language: Bash, Code: removal + " # " + strings.Repeat("x", i), Session: "s"})
	}
	if _, err := c.Judge(t.Context(), Request{Language: Bash, Code: removal + " # another", Session: "s"}); v1.CodeOf(err) != v1.CodeTooMany {
		t.Errorf("got %v", err)
	}
}

func TestNobodyGoesBelowTheFloor(t *testing.T) {
	for _, tt := range []struct {
		name                         string
		configured, session, minimum Mode
		want                         Action
	}{
		{"no minimum, nothing requested", ModeBlock, "", "", v1.GateDeny},
		{"no minimum, the session requests off", ModeBlock, ModeOff, "", v1.GateAllow},
		{"off by configuration", ModeOff, "", ModeBlock, v1.GateDeny},
		{"off by the session", ModeBlock, ModeOff, ModeBlock, v1.GateDeny},
		{"a warning instead of a refusal", ModeBlock, ModeWarn, ModeBlock, v1.GateDeny},
		{"the minimum is warn", ModeOff, ModeOff, ModeWarn, v1.GateWarn},
		{"the session requests more than the minimum", ModeOff, ModeBlock, ModeWarn, v1.GateDeny},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := defaultChecker(t, Options{RulesMode: tt.configured, MinMode: tt.minimum})
			if d := judge(t, c, Request{Language: Bash, Code: removal, Rules: tt.session, Graph: tt.session}); d.Action != tt.want {
				t.Errorf("%+v", d)
			}
			if tt.minimum != "" && EffectiveMode(c, ModeOff) != tt.minimum || EffectiveMode(c, "") != "" || EffectiveMode(nil, ModeOff) != ModeOff {
				t.Errorf("the effective mode for off is %q", EffectiveMode(c, ModeOff))
			}
		})
	}
	if _, err := New(Options{MinMode: "some"}); v1.CodeOf(err) != v1.CodeInvalidRequest {
		t.Errorf("misspelled minimum: %v", err)
	}
}

func TestTheFloorHoldsForTheThesaurusToo(t *testing.T) {
	thesaurus, err := terms.Parse("terms", []byte("invoice\n"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := terms.NewGraph(thesaurus, terms.GraphOptions{Strictness: terms.Strict})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{Graphs: map[string]*terms.Graph{"": g}, MinMode: ModeBlock})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d := judge(t, c, Request{Language: Python, Code: "weather = forecast(tomorrow)", Graph: ModeOff}); d.Action.Runs() {
		t.Errorf("%+v", d)
	}
}
