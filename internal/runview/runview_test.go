package runview

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// story makes events with a second between them.
type story struct {
	t      *testing.T
	events []v1.RunEvent
}

func (s *story) add(node string, depth, turn int, kind v1.RunEventKind, data any) {
	s.t.Helper()
	raw, err := json.Marshal(data)
	if err != nil {
		s.t.Fatal(err)
	}
	n := len(s.events)
	s.events = append(s.events, v1.RunEvent{
		Seq: int64(n + 1), Time: time.Date(2026, 9, 1, 12, 0, n, 0, time.UTC), Node: node, Depth: depth, Turn: turn, Kind: kind, Data: raw,
	})
}

func (s *story) call(node string, depth, turn int, kind string, u llm.Usage) {
	s.add(node, depth, turn, v1.KindCallStarted, v1.CallStarted{Call: kind, Model: "m"})
	s.add(node, depth, turn, v1.KindCallEnded, v1.CallEnded{Call: kind, Model: "m", Usage: u})
}

// beginning returns the events of a run in its second turn, with a child run in progress.
func beginning(t *testing.T) *story {
	t.Helper()
	s := &story{t: t}
	s.add("0", 0, 0, v1.KindRunStarted, v1.RunStarted{Run: "r1", Query: "Who?\x1b[2J", Model: "scripted/m"})
	s.add("0", 0, 0, v1.KindContext, v1.ContextLoaded{Contexts: []v1.ContextNote{{Variable: "context_0", Name: "a.txt", Type: "str", Size: 1234567}}})
	s.add("0", 0, 1, v1.KindTurnStarted, nil)
	s.call("0", 0, 1, v1.CallTurn, llm.Usage{Calls: 1, Input: 100, Output: 20, Cost: 0.01})
	s.add("0", 0, 1, v1.KindCellStarted, v1.CellStarted{Lang: "python", Code: "import re\n\nprint(len(context))\nx = 1"})
	s.call("0", 0, 1, v1.CallSub, llm.Usage{Calls: 1, Input: 1000, Output: 5, Cost: 0.02})
	s.add("0", 0, 1, v1.KindTool, v1.ToolUsed{Name: "price", Value: json.RawMessage("7")})
	s.add("0", 0, 1, v1.KindTool, v1.ToolUsed{Name: "price", Error: "no such\x1b[2J shop"})
	s.add("0", 0, 1, v1.KindCellEnded, v1.CellEnded{Outcome: v1.Outcome{Ended: v1.EndedExit, Wall: 2 * time.Second}, OK: true, Produced: 8})
	s.add("0", 0, 1, v1.KindTurnEnded, v1.TurnEnded{})
	s.add("0", 0, 2, v1.KindTurnStarted, nil)
	s.call("0", 0, 2, v1.CallTurn, llm.Usage{Calls: 1, Input: 100, Output: 20, Cost: 0.01})
	s.add("0", 0, 2, v1.KindCellStarted, v1.CellStarted{Lang: "python", Code: "rlm_query(context)"})
	s.add("0", 0, 2, v1.KindChildStarted, v1.ChildStarted{Node: "0/1", Preview: "Count them", Chars: 99})
	s.add("0/1", 1, 1, v1.KindTurnStarted, nil)
	s.add("0/1", 1, 1, v1.KindCallStarted, v1.CallStarted{Call: v1.CallTurn, Model: "m"})
	return s
}

func (s *story) finish() {
	s.add("0/1", 1, 1, v1.KindCallEnded, v1.CallEnded{Call: v1.CallTurn, Usage: llm.Usage{Calls: 1, Input: 10, Output: 1}})
	s.add("0", 0, 2, v1.KindChildEnded, v1.ChildEnded{Node: "0/1", Reason: v1.ReasonAnswered, Answer: "7"})
	s.add("0", 0, 2, v1.KindCellEnded, v1.CellEnded{Outcome: v1.Outcome{Ended: v1.EndedExit}, Error: "Traceback\nValueError: \x1b[31mno"})
	s.add("0", 0, 2, v1.KindTurnEnded, v1.TurnEnded{})
	s.add("0", 0, 0, v1.KindRunEnded, rlm.Result{Reason: v1.ReasonTurns, Turns: 2, Usage: llm.Usage{Calls: 4, Input: 1210, Output: 46, Cost: 0.04}, Wall: 18 * time.Second})
}

// screen returns the text on a terminal of the given size.
func screen(t *testing.T, s *story, width, height int) string {
	t.Helper()
	tr := newRun()
	for i := range s.events {
		tr.apply(&s.events[i])
	}
	lines := tr.render(width, height, tr.last, "")
	if len(lines) > height {
		t.Errorf("%d lines on a screen of %d", len(lines), height)
	}
	for _, l := range lines {
		if w := ansi.StringWidth(l); w > width {
			t.Errorf("a line of %d columns on a screen of %d: %q", w, width, l)
		}
	}
	return ansi.Strip(strings.Join(lines, "\n"))
}

func wants(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is missing in:\n%s", w, got)
		}
	}
}

func TestTree(t *testing.T) {
	s := beginning(t)
	got := screen(t, s, 100, 24)
	wants(t, got, "Who?[2J\n", "context_0 (a.txt): str of 1,234,567 characters", "✓ turn 1  print(len(context)) (2 more lines) · 1 call · 1,005 tokens · 2 tool calls",
		"tool price failed: no such[2J shop",
		"turn 2  rlm_query(context)", "child run  Count them", "turn 1  thinking", "3 model calls · 1,245 tokens · $0.0400", "1 call in progress")
	s.finish()
	wants(t, screen(t, s, 100, 24), "✗ turn 2", "ValueError: [31mno", "✓ child run  Count them", "4 model calls · 1,256 tokens", "✗ ended without an answer: turns")
}

// live adds the progress of a node.
func (s *story) live(node string, depth int, p v1.Progress) {
	s.add(node, depth, 0, v1.KindProgress, p)
}

func TestTheTreeShowsTextsAsTheyArrive(t *testing.T) {
	s := &story{t: t}
	s.add("0", 0, 0, v1.KindRunStarted, v1.RunStarted{Run: "20260901-120000-0a1b2c3d", Query: "Who?", Model: "m", Limits: v1.RunLimits{
		Tokens: new(int64(5000)), Cost: new(1.5), Time: new(v1.Duration(time.Minute)), Turns: new(30), Calls: new(int64(-1)),
	}})
	s.add("0", 0, 1, v1.KindTurnStarted, nil)
	s.add("0", 0, 1, v1.KindCallStarted, v1.CallStarted{ID: "c1", Call: v1.CallTurn, Model: "m"})
	got := screen(t, s, 80, 24)
	wants(t, got, "turn 1  thinking", "run 20260901-120000-0a1b2c3d", "left: 5,000 tokens · $1.5000 · 58 s · 29 turns")
	s.live("0", 0, v1.Progress{Call: "c1", Text: "First I count.\nThen I\x1b[2J read.\n\n", Read: 250, Bytes: 1000})
	got = screen(t, s, 80, 24)
	wants(t, got, "turn 1  replying", "    First I count.\n", "    Then I[2J read.\n", "models have read 25.0 % of the context (250 of 1,000 bytes)")
	if strings.Contains(got, "thinking") {
		t.Errorf("text has arrived:\n%s", got)
	}
	s.add("0", 0, 1, v1.KindCallEnded, v1.CallEnded{ID: "c1", Call: v1.CallTurn, Text: "I count.\n```repl\ncount()\n```", Usage: llm.Usage{Calls: 1, Input: 900, Output: 100, Estimated: true}})
	s.add("0", 0, 1, v1.KindCellStarted, v1.CellStarted{Lang: "python", Code: "count()"})
	s.live("0", 0, v1.Progress{Output: "one\ntwo\nthree\nfour\n"})
	got = screen(t, s, 80, 24)
	wants(t, got, "turn 1  count()", "    I count.\n", "    > two\n", "    > four\n", "≈1,000 tokens", "left: 4,000 tokens")
	if strings.Contains(got, "> one") || strings.Contains(got, "```") {
		t.Errorf("more than the last lines:\n%s", got)
	}
	s.add("0", 0, 1, v1.KindCellEnded, v1.CellEnded{OK: true, Stdout: "done\n", Result: "7"})
	s.add("0", 0, 1, v1.KindTurnEnded, v1.TurnEnded{Reply: "I count."})
	s.live("0", 0, v1.Progress{Call: "c1", Text: "of an old call"})
	got = screen(t, s, 80, 24)
	wants(t, got, "✓ turn 1  count()", "> done\n", "> 7\n")
	if strings.Contains(got, "old call") {
		t.Errorf("progress of a call that has ended:\n%s", got)
	}
}

func TestTheTreeShowsWhyAChildFailed(t *testing.T) {
	s := beginning(t)
	s.add("0", 0, 2, v1.KindChildEnded, v1.ChildEnded{Node: "0/1", Reason: v1.ReasonModel, Error: &v1.EventError{Message: "the model server is away"}})
	wants(t, screen(t, s, 100, 24), "✗ child run  Count them · ended without an answer: model: the model server is away")
}

// Every figure of a turn is visible on a usual terminal, however long the code is. No line is longer than the screen.
func TestScreensOfAllSizes(t *testing.T) {
	s := beginning(t)
	s.events[0].Data = json.RawMessage(`{"run":"20260901-120000-0a1b2c3d","query":"` + strings.Repeat("who 誰 ", 50) + `","limits":{"tokens":5000,"cost_usd":3,"turns":30}}`)
	s.live("0", 0, v1.Progress{Read: 1, Bytes: 1000})
	s.add("0", 0, 3, v1.KindTurnStarted, nil)
	s.add("0", 0, 3, v1.KindCallStarted, v1.CallStarted{ID: "c9", Call: v1.CallTurn})
	s.add("0", 0, 3, v1.KindCallEnded, v1.CallEnded{ID: "c9", Call: v1.CallTurn, Text: strings.Repeat("長い text ", 80)})
	s.add("0", 0, 3, v1.KindCellStarted, v1.CellStarted{Lang: "python", Code: "long" + strings.Repeat("語x", 100)})
	s.call("0", 0, 3, v1.CallSub, llm.Usage{Calls: 1, Input: 1234567, Output: 5})
	for width := 1; width < 250; width += 7 {
		for height := 5; height < 60; height += 9 {
			screen(t, s, width, height)
		}
	}
	wants(t, screen(t, s, 80, 24), "1 call · 1,234,572 tokens · ", "left: ", "models have read 0.1 %")
	wants(t, screen(t, s, 250, 40), "1 call · 1,234,572 tokens · ", "left: ", "models have read 0.1 %")
	wants(t, screen(t, s, 40, 24), "turn 3  long", " s\n", "left: ", "27 turns")
}

func TestASmallScreen(t *testing.T) {
	s := beginning(t)
	for n := 3; n < 40; n++ {
		s.add("0", 0, n, v1.KindTurnStarted, nil)
		s.add("0", 0, n, v1.KindTurnEnded, v1.TurnEnded{})
	}
	wants(t, screen(t, s, 30, 10), "lines above", "turn 39")
}

func TestLines(t *testing.T) {
	s := beginning(t)
	s.finish()
	var out bytes.Buffer
	l := NewLines(&out)
	for _, e := range s.events {
		l.Event(e)
	}
	l.Close()
	wants(t, out.String(), "run r1 with scripted/m: Who?[2J", "turn 1: python: print(len(context)) (2 more lines)", "turn 1: ok in 2.0 s, 8 bytes printed, 1 call, 1,005 tokens, 2 tool calls",
		"tool price: 7", "tool price failed: no such[2J shop",
		"child run 0/1: 99 characters: Count them", "child run 0/1: answered: 7", "turn 2: ValueError: [31mno in", "ended: turns", "2 turns · 4 model calls · 1,256 tokens · $0.0400 · 18 s")
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("what a model wrote reaches the terminal: %q", out.String())
	}
}

func TestLinesForAModelNameNoGrant(t *testing.T) {
	s := beginning(t)
	s.add("0", 0, 2, v1.KindGate, v1.Judged{Action: v1.GateAsk, Approval: "a1"})
	for _, forModel := range []bool{false, true} {
		var out bytes.Buffer
		l := NewLines(&out)
		if forModel {
			l.ForModel()
		}
		for _, e := range s.events {
			l.Event(e)
		}
		l.Close()
		if strings.Contains(out.String(), v1.GrantCommand) == forModel || !strings.Contains(out.String(), "the gate: ask") {
			t.Errorf("for a model: %v: %s", forModel, out.String())
		}
	}
}

func TestAResumedRun(t *testing.T) {
	s := beginning(t)
	s.add("0", 0, 1, v1.KindResumed, v1.Resumed{How: rlm.HowRebuilt, Turn: 1, Rerun: 1})
	s.add("0", 0, 2, v1.KindTurnStarted, nil)
	got := screen(t, s, 100, 24)
	wants(t, got, "resumed after turn 1: it has a new sandbox, and 1 turn was run again")
	if strings.Count(got, "turn 2 ") != 1 {
		t.Errorf("the turn that was interrupted is still there:\n%s", got)
	}
}

func TestWords(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	for d, want := range map[time.Duration]string{-1: "0 s", 1500 * time.Millisecond: "1.5 s", 12 * time.Second: "12 s", 125 * time.Second: "2:05 min", 2 * time.Hour: "2:00 h"} {
		if got := elapsed(d); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}

func TestASummaryNamesWhatIsNotCounted(t *testing.T) {
	r := &rlm.Result{Coverage: &rlm.Coverage{
		Bytes: 2000, Read: 2000, Percent: 100, Omitted: []rlm.Omitted{{Why: v1.OmittedPDF, Files: 1, Bytes: 3000}, {Why: v1.OmittedBound, Files: 2, Bytes: 50}},
	}}
	got := strings.Join(Summary(r)[1:], "\n")
	want := "models have read 100.0 % of the context (2,000 of 2,000 bytes)\n" +
		"1 file of the context is not counted (3,000 bytes): PDF\n2 files of the context are not counted (50 bytes): too many files or bytes"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
