//go:build linux

package rlm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// stateEnv is set for the process that is killed. Its value is the directory for sandboxes.
const (
	stateEnv = "RECLUSE_TEST_RLM_STATE"
	runsEnv  = "RECLUSE_TEST_RLM_RUNS"
	stopEnv  = "RECLUSE_TEST_RLM_STOP"
	callsEnv = "RECLUSE_TEST_RLM_CALLS"
)

// turnsOfVictim are the replies of the model in the run that is killed. The state grows turn by turn and contains the
// replies of the sub-model. Therefore the answer shows whether anything was lost or done twice.
var turnsOfVictim = []string{
	block("log = [llm_query('one')]\nprint(log)"),
	block("log += llm_query_batched(['two', 'three'])\nprint(len(log))"),
	block("log.append(rlm_query('child ' + 'x' * 10))\nprint(log[-1])"),
	block("log.append(llm_query('four'))\nFINAL(log)"),
}

const answerOfVictim = `["<one>", "<two>", "<three>", "[child xxxxxxxxxx]", "<four>"]`

// victimDesk returns the desk of a run that can be killed. stop is the call that blocks: turn:N, the model's N-th turn,
// or sub:TEXT, a sub-call. Every call that a model answers is recorded in a file.
func victimDesk(runs, stop, calls string) Options {
	note := func(what string) {
		f, err := os.OpenFile(calls, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, _ = f.WriteString(what + "\n")
			_ = f.Close()
		}
	}
	hang := func(ctx context.Context, at string) {
		if at == stop {
			fmt.Println("reached " + at)
			<-ctx.Done()
		}
	}
	root := &fake{name: "fake/root", answer: func(ctx context.Context, _ int, req llm.Request) (string, error) {
		turn := req.Tags["turn"]
		hang(ctx, "turn:"+turn)
		note("turn:" + turn)
		return turnsOfVictim[int(turn[0]-'1')], nil
	}}
	sub := &fake{name: "fake/sub", answer: func(ctx context.Context, _ int, req llm.Request) (string, error) {
		if req.Tags["call"] == v1.CallTurn {
			hang(ctx, "child:"+req.Tags["turn"])
			note("child:" + req.Tags["turn"])
			if req.Tags["turn"] == "1" {
				return block("text = context"), nil
			}
			return block("FINAL('[' + text + ']')"), nil
		}
		text := req.Messages[0].Content
		hang(ctx, "sub:"+text)
		note("sub:" + text)
		return "<" + text + ">", nil
	}}
	return Options{
		Models: func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return root, nil
			}
			return sub, nil
		},
		Sandboxes: FromBackend(boxes), Dir: runs, PlainBelow: -1, Durable: true, SnapshotEvery: time.Nanosecond,
	}
}

// The snapshots that the victim has when it is killed.
const (
	noSnapshots  = ""
	oneSnapshot  = "one" // after its first turn
	allSnapshots = "all" // after each turn
)

// forgetful makes sandboxes of which only one snapshot can be taken.
type forgetful struct{ Sandboxes }

func (f forgetful) Open(ctx context.Context, spec sandbox.Spec) (Sandbox, error) {
	m, err := f.Sandboxes.Open(ctx, spec)
	return &forgetfulMachine{Sandbox: m}, err
}

type forgetfulMachine struct {
	Sandbox
	taken bool
}

func (m *forgetfulMachine) Snapshot(ctx context.Context, o sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	if m.taken {
		return nil, errors.New("the disk is full")
	}
	m.taken = true
	return m.Sandbox.Snapshot(ctx, o)
}

// victim is the program that is killed.
func victim() int {
	o := victimDesk(os.Getenv(runsEnv), os.Getenv(stopEnv), os.Getenv(callsEnv))
	switch os.Getenv(stopEnv + "_SNAPSHOTS") {
	case noSnapshots:
		o.SnapshotEvery = -1
	case oneSnapshot:
		o.Sandboxes = forgetful{o.Sandboxes}
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e, err := New(o)
	if err == nil {
		_, err = e.Run(context.Background(), Question{Query: "What is in the log?", Inputs: []Input{Text("the context")}})
	}
	fmt.Println("ended", err)
	return 0
}

// kill runs the victim up to a call and kills it there. It returns the ID of the run.
func kill(t *testing.T, runs, stop, calls, snapshots string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), stateEnv+"="+boxesAt, runsEnv+"="+runs, stopEnv+"="+stop, callsEnv+"="+calls, stopEnv+"_SNAPSHOTS="+snapshots)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	for s.Scan() && !strings.HasPrefix(s.Text(), "reached") {
		t.Log(s.Text())
		if strings.HasPrefix(s.Text(), "ended") {
			break
		}
	}
	_ = cmd.Process.Kill() // SIGKILL: the process cannot clean up
	_ = cmd.Wait()
	all, err := os.ReadDir(runs)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d runs: %v", len(all), err)
	}
	return all[0].Name()
}

func notes(t *testing.T, calls string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, l := range strings.Fields(string(data)) {
		out[l]++
	}
	return out
}

func TestARunGoesOnAfterItsProgramWasKilled(t *testing.T) {
	testneed.Sandboxes(t)
	for _, c := range []struct {
		name, stop, snapshots string
		endBox                bool // the sandbox is gone, too
		how                   string
		rerun                 int
	}{
		{"while the model was asked", "turn:3", noSnapshots, false, HowAttached, 0},
		{"while the model was asked, and the machine is gone", "turn:3", noSnapshots, true, HowRebuilt, 2},
		{"while a cell ran", "sub:four", noSnapshots, false, HowRebuilt, 3},
		{"while a cell ran, with a snapshot", "sub:four", allSnapshots, false, HowRestored, 0},
		{"while a cell ran, two turns behind the last snapshot", "sub:four", oneSnapshot, false, HowRestored, 2},
		{"while a child worked", "child:2", allSnapshots, true, HowRestored, 0},
		{"before anything", "turn:1", noSnapshots, true, HowRebuilt, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs, calls := filepath.Join(t.TempDir(), "runs"), filepath.Join(t.TempDir(), "calls")
			id := kill(t, runs, c.stop, calls, c.snapshots)
			e, err := New(victimDesk(runs, "", calls))
			if err != nil {
				t.Fatal(err)
			}
			if c.endBox {
				p, err := e.readRun(id, -1, false)
				if err != nil {
					t.Fatal(err)
				}
				if err := boxes.Stop(t.Context(), p.sandbox.ID); err != nil {
					t.Fatal(err)
				}
			}
			info, err := e.Show(id)
			if err != nil || info.Running || info.Result != nil {
				t.Fatalf("the interrupted run: %+v %v", info, err)
			}
			r, err := e.Resume(t.Context(), id, ContinueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			res, err := r.Wait()
			if err != nil {
				t.Fatal(err)
			}
			same(t, "answer", res.Answer, answerOfVictim)
			same(t, "turns", res.Turns, 4)
			for what, n := range notes(t, calls) {
				if n != 1 {
					t.Errorf("%s was called %d times", what, n)
				}
			}
			same(t, "calls that were paid", res.Usage.Calls, int64(len(notes(t, calls))))
			var how v1.Resumed
			for ev, err := range e.Events(id) {
				if err != nil {
					t.Fatal(err)
				}
				if ev.Kind == v1.KindResumed {
					if err := ev.Decode(&how); err != nil {
						t.Fatal(err)
					}
				}
			}
			same(t, "how", how.How, c.how)
			same(t, "turns that were run again", how.Rerun, c.rerun)
			if _, err := e.Resume(t.Context(), id, ContinueOptions{}); v1.CodeOf(err) != v1.CodeRunEnded {
				t.Errorf("resumed a second time: %v", err)
			}
			sweepBoxes(t)
		})
	}
}

// sweepBoxes ends the sandboxes that killed programs left: those of child runs, and those that were not attached again.
func sweepBoxes(t *testing.T) {
	t.Helper()
	left, err := boxes.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range left {
		if err := boxes.Stop(t.Context(), b.ID); err != nil {
			t.Error(err)
		}
	}
	snaps, err := boxes.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snaps {
		t.Errorf("a snapshot is left: %s", s.ID)
	}
}

// normal returns an event without the parts that differ between runs.
func normal(t *testing.T, e v1.RunEvent) string {
	t.Helper()
	data := map[string]any{}
	if len(e.Data) > 0 && string(e.Data) != "null" {
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []string{"id", "run", "wall_ns", "cpu_ns", "started", "peak_memory"} {
		delete(data, k)
	}
	if data["call"] == v1.CallTurn {
		// The prompt contains the remaining seconds.
		delete(data, "preview")
		delete(data, "prompt")
		delete(data, "chars")
		delete(data, "tokens")
	}
	if seen, ok := data["observation"].(string); ok {
		data["observation"], _, _ = strings.Cut(seen, "[left: ")
	}
	if inside, ok := data["inside"].(string); ok {
		data["inside"] = filepath.Dir(inside)
	}
	text, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %d %s %s", e.Node, e.Turn, e.Kind, text)
}

func normalEvents(t *testing.T, e *Engine, id string) []string {
	t.Helper()
	var out []string
	for ev, err := range e.Events(id) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind != v1.KindSnapshot {
			out = append(out, normal(t, ev))
		}
	}
	slices.Sort(out) // concurrent events may be in any order
	return out
}

func TestAReplayWithoutAModelTellsTheSame(t *testing.T) {
	testneed.Sandboxes(t)
	testneed.Parallel(t)
	runs, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	o := victimDesk(runs, "", calls)
	o.Durable, o.SnapshotEvery = false, -1
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	first, err := e.Run(t.Context(), Question{Query: "?", Inputs: []Input{Text("the context")}})
	if err != nil {
		t.Fatal(err)
	}
	o.Models = func(int, string) (llm.Model, error) { return nil, NoModel() }
	if e, err = New(o); err != nil {
		t.Fatal(err)
	}
	r, err := e.Replay(t.Context(), first.Run)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", again.Answer, first.Answer)
	same(t, "tokens", again.Usage.Tokens(), first.Usage.Tokens())
	want, got := normalEvents(t, e, first.Run), normalEvents(t, e, again.Run)
	if !slices.Equal(want, got) {
		for i := range max(len(want), len(got)) {
			if i >= len(want) || i >= len(got) || want[i] != got[i] {
				t.Fatalf("event %d differs (%d, %d):\n%s\n%s", i, len(want), len(got), want[min(i, len(want)-1)], got[min(i, len(got)-1)])
			}
		}
	}
	n := 0
	for info, err := range e.Runs() {
		if err != nil || info.Result == nil {
			t.Errorf("%+v %v", info, err)
		}
		n++
	}
	same(t, "runs that are kept", n, 2)
	if err := e.Delete(t.Context(), again.Run); err != nil {
		t.Error(err)
	}
	if _, err := e.Show(again.Run); v1.CodeOf(err) != v1.CodeRunNotFound {
		t.Errorf("after its deletion: %v", err)
	}
}

func TestAForkSharesTurnsAndGoesItsOwnWay(t *testing.T) {
	d := newDesk(t, block("a = llm_query('first')"), block("b = a + '!'"), block("FINAL(b)"))
	e := d.engine()
	first, err := e.Run(t.Context(), Question{Inputs: []Input{Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	d.root.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		return block("FINAL('other: ' + b + str(" + req.Tags["turn"] + "))"), nil
	}
	r, err := e.Fork(t.Context(), first.Run, 2, ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, "other: read: first!3")
	same(t, "turns", res.Turns, 3)
	same(t, "calls that were paid", res.Usage.Calls, 1)
	same(t, "calls of the sub-model", d.sub.calls, 1)
	again, err := e.Show(first.Run)
	if err != nil || again.Result.Answer != "read: first!" {
		t.Errorf("the first run: %+v %v", again, err)
	}
	if _, err := e.Fork(t.Context(), first.Run, 9, ContinueOptions{}); v1.CodeOf(err) != v1.CodeInvalidRequest {
		t.Errorf("an unknown turn: %v", err)
	}
}

func TestALentMachineOutlivesARunThatGoesOnWithoutIt(t *testing.T) {
	m, err := sandboxes(t).Open(t.Context(), sandbox.Spec{Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	d := newDesk(t, block("x = 1"), "I do not know.", block("FINAL(x)"))
	d.opts.Limits.Turns = new(1)
	res, err := d.run(Question{Inputs: []Input{Text("x")}, Sandbox: m})
	same(t, "code", v1.CodeOf(err), v1.CodeBudget)
	// The owner does not use the sandbox meanwhile.
	m.(*sandbox.Sandbox).Detach()
	more := d.opts.Limits
	more.Turns = new(5)
	r, err := d.engine().Resume(t.Context(), res.Run, ContinueOptions{Limits: more})
	if err != nil {
		t.Fatal(err)
	}
	if res, err = r.Wait(); err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, "1")
	if m, err = sandboxes(t).Attach(t.Context(), m.ID()); err != nil {
		t.Fatalf("the sandbox was closed: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestToolsThatAResumeAddsAreRemembered(t *testing.T) {
	for name, durable := range map[string]bool{"in a machine that still runs": true, "in a new one": false} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.opts.Durable, d.opts.SnapshotEvery = durable, -1
			said := map[string]string{
				"1": block("answer['content'] = 'half'"),
				"2": block("bought = shop('milk')"),
				"3": block("try:\n    shop('bread')\nexcept ToolError as e:\n    FINAL(bought + ', ' + e.code + ', ' + answer['content'])"),
			}
			// work runs until the turn in which the program suspends the run.
			work := func(upto string, begin func(ctx context.Context, e *Engine) (*Run, error)) *Run {
				t.Helper()
				ctx, leave := context.WithCancelCause(t.Context())
				d.root.answer = func(call context.Context, _ int, req llm.Request) (string, error) {
					if req.Tags["turn"] == upto {
						leave(ErrSuspended)
						return "", call.Err()
					}
					return said[req.Tags["turn"]], nil
				}
				r, err := begin(ctx, d.engine())
				if err != nil {
					t.Fatal(err)
				}
				_, _ = r.Wait()
				return r
			}
			id := work("2", func(ctx context.Context, e *Engine) (*Run, error) {
				return e.Start(ctx, Question{Inputs: []Input{Text("x")}})
			}).ID()
			resume := func(ctx context.Context, e *Engine) (*Run, error) { return e.Resume(ctx, id, ContinueOptions{}) }
			d.opts.Tools = []Tool{{Name: "shop", Call: func(context.Context, ToolCall) (any, error) { return "bought", nil }}}
			work("3", resume)
			d.opts.Tools = nil
			res, err := work("", resume).Wait()
			if err != nil {
				t.Fatal(err)
			}
			same(t, "answer", res.Answer, "bought, tool_missing, half")
			same(t, "the answer of a replay", d.replayed(id).Answer, res.Answer)
		})
	}
}
