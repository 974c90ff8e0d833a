package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/demo"
	"github.com/recluse-dev/recluse/rlm"
)

// Scripted models of these tests: the root model looks for a password, asks the sub-model for the word, and returns it.
const (
	rootScript = `
name: root
rules:
  - match: 'Question: How long'
    reply: |
      ¬repl
      FINAL(len(word))
      ¬
  - match: 'Question: Never end'
    reply: |
      ¬repl
      import time
      asked = False
      while True:
          try:
              if not asked:
                  asked = True
                  llm_query("no rule fits this")
              time.sleep(1000)
          except BaseException:
              pass
      ¬
  - tags: {call: turn, turn: "1"}
    reply: |
      ¬repl
      hits = search('password')
      answer["content"] = "half an answer"
      print(len(context), len(hits))
      ¬
  - tags: {call: turn, turn: "2"}
    reply: |
      ¬repl
      word = llm_query('Only the word: ' + hits[0][1])
      print(word)
      ¬
  - conversation: 'Question: As an object'
    reply: |
      ¬repl
      FINAL({"word": word})
      ¬
  - delay: DELAY
    reply: |
      ¬repl
      FINAL(word)
      ¬
`
	subScript = `
name: sub
rules:
  - match: 'the password is (\w+)'
    reply: '{{1}}'
`
)

// asker is a world with scripted models and a large file as context.
type asker struct {
	*world
	dir, big string
}

func newAsker(t *testing.T, delay string) *asker {
	t.Helper()
	dir := t.TempDir()
	a := &asker{dir: dir, big: filepath.Join(dir, "big.txt")}
	a.write("sub.yaml", subScript)
	a.write("root.yaml", strings.NewReplacer("¬", "```", "DELAY", delay).Replace(rootScript))
	a.write("big.txt", strings.Repeat("nothing here\n", 20_000)+"the password is swordfish\n"+strings.Repeat("nor here\n", 20_000))
	a.world = newWorld(t, "RECLUSE_MODELS_SCRIPTS="+filepath.Join(dir, "root.yaml")+","+filepath.Join(dir, "sub.yaml"),
		"RECLUSE_MODELS_DEFAULT=scripted/root", "RECLUSE_MODELS_SUB=scripted/sub")
	a.t = t
	return a
}

func (a *asker) write(name, content string) {
	if err := os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o600); err != nil {
		panic(err) // the directory belongs to the test
	}
}

// hurry makes the model answer at once from now on.
func (a *asker) hurry() {
	a.write("root.yaml", strings.NewReplacer("¬", "```", "DELAY", "0s").Replace(rootScript))
}

func TestAskSaysHowToGetAModel(t *testing.T) {
	w := newWorld(t, "OPENAI_API_KEY=", "ANTHROPIC_API_KEY=", "OPENAI_BASE_URL=", "OLLAMA_HOST=127.0.0.1:1")
	got := w.run("", "ask", "Is anybody there?")
	if got.status != statusFailure || got.stdout != "" {
		t.Errorf("%+v", got)
	}
	for _, way := range []string{"no model is configured", "ANTHROPIC_API_KEY", "Ollama", "OPENAI_BASE_URL"} {
		if !strings.Contains(got.stderr, way) {
			t.Errorf("%q is missing in %s", way, got.stderr)
		}
	}
}

func TestAsk(t *testing.T) {
	a := newAsker(t, "0s")
	got := a.run("", "ask", "What is the password?", "--context", a.big)
	if got.status != 0 || got.stdout != "swordfish\n" {
		t.Fatalf("%+v", got)
	}
	for _, line := range []string{"turn 1: python: hits = search('password') (2 more lines)", "turn 2: ok in", "1 call", "ended: answered", "3 turns · 4 model calls"} {
		if !strings.Contains(got.stderr, line) {
			t.Errorf("%q is missing in %s", line, got.stderr)
		}
	}
	t.Run("samples", func(t *testing.T) {
		got := a.run("", "ask", "What is the password?", "--context", a.big, "--samples", "2")
		if got.status != 0 || got.stdout != "swordfish\n" || !strings.Contains(got.stderr, "agreement 2 of 2\n") {
			t.Errorf("%+v", got)
		}
		for want, args := range map[string][]string{"want 1 to 16": {"--samples", "17"}, "a run in a session": {"--samples", "2", "--session", "s"}} {
			if got := a.run("", append([]string{"ask", "What?"}, args...)...); got.status == 0 || !strings.Contains(got.stderr, want) {
				t.Errorf("%v: %+v", args, got)
			}
		}
	})
	t.Run("prompt", func(t *testing.T) {
		own := filepath.Join(a.dir, "own.txt")
		a.write("own.txt", "OWN {{.Output}}: {{template \"facts\" .}}")
		for want, args := range map[string][]string{
			"=== system ===\nYou answer a question about data":    nil,
			"=== system ===\nAnswer a question about data":        {"--prompt", "compact"},
			"=== system ===\nOWN 5000: Python 3":                  {"--prompt", own, "--max-output", "5000"},
			"=== user ===\nQuestion: What is it?\n\ncontext (big": {"--prompt", "official", "--prompt", "default"},
			`"content": "OWN 20000: Python 3`:                     {"--prompt", own, "--json"},
		} {
			got := a.run("", append([]string{"ask", "What is it?", "--context", a.big, "--show-prompt"}, args...)...)
			if got.status != 0 || !strings.Contains(got.stdout, want) || got.stderr != "" {
				t.Errorf("%v: want %q in %+v", args, want, got)
			}
		}
		if got := a.run("", "ask", "What is the password?", "--context", a.big, "--prompt", own); got.stdout != "swordfish\n" {
			t.Errorf("%+v", got)
		}
		a.write("empty.txt", " \n")
		for want, args := range map[string][]string{
			`"terse" is neither a prompt profile nor a file`:     {"--prompt", "terse"},
			"name a file, or one of compact, default, official,": {"--prompt", "terse"},
			"the file is empty":                                    {"--prompt", filepath.Join(a.dir, "empty.txt")},
			"depends on the variables of the session":              {"--show-prompt", "--session", "s"},
			"invalid template for prompt system":                   {"--prompt", a.dir + "/bad.txt"},
			"invalid template for prompt system: template: system": {"--prompt", a.dir + "/bad.txt", "--show-prompt"},
		} {
			a.write("bad.txt", "{{.Nonsense")
			if got := a.run("", append([]string{"ask", "What?"}, args...)...); got.status == 0 || !strings.Contains(got.stderr, want) {
				t.Errorf("%v: want %q in %+v", args, want, got)
			}
		}
	})
	t.Run("input, quietly", func(t *testing.T) {
		text, err := os.ReadFile(a.big)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.run(string(text), "ask", "What is the password?", "--context", "-", "-q"); got.status != 0 || got.stdout != "swordfish\n" || got.stderr != "" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("events, and an answer that meets a schema", func(t *testing.T) {
		a.write("schema.json", `{"type": "object", "required": ["word"]}`)
		got := a.run("", "ask", "As an object?", "--context", a.big, "--schema", filepath.Join(a.dir, "schema.json"), "--json")
		lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
		var last v1.RunEvent
		decodeJSON(t, lines[len(lines)-1], &last)
		var res rlm.Result
		if err := last.Decode(&res); err != nil {
			t.Fatal(err)
		}
		var value struct{ Word string }
		if err := json.Unmarshal(res.Value, &value); err != nil || value.Word != "swordfish" || got.status != 0 || got.stderr != "" || len(lines) < 10 {
			t.Errorf("%s %v, %+v", res.Value, err, got)
		}
	})
	t.Run("mistakes", func(t *testing.T) {
		a.write("binary", "\x00\x01\x02\xff\xfe\x00")
		a.write("empty", "")
		for want, args := range map[string][]string{
			"the question is empty":                   {" "},
			"no such file":                            {"Q?", "--context", filepath.Join(a.dir, "not")},
			"binary":                                  {"Q?", "--context", filepath.Join(a.dir, "binary")},
			"empty":                                   {"Q?", "--context", filepath.Join(a.dir, "empty")},
			`"--max-cost" flag: 0 is not above zero`:  {"Q?", "--max-cost", "0"},
			`"--depth" flag: -1 is below zero`:        {"Q?", "--depth", "-1"},
			`"--plain-below" flag: invalid size "-1"`: {"Q?", "--plain-below", "-1"},
			`provider "nobody" not found`:             {"Q?", "--model", "nobody/nothing"},
			"read the schema: invalid schema":         {"Q?", "--schema", a.big},
		} {
			got := a.run("", append([]string{"ask"}, args...)...)
			if got.status != statusFailure || !strings.Contains(got.stderr, want) {
				t.Errorf("%v: %+v, want %q", args, got, want)
			}
		}
	})
	t.Run("a limit that is reached", func(t *testing.T) {
		got := a.run("", "ask", "What is the password?", "--context", a.big, "--max-turns", "1", "--max-tokens", "1200")
		if got.status != 1 || got.stdout != "half an answer\n" || !strings.Contains(got.stderr, "runs resume") {
			t.Errorf("%+v", got)
		}
	})
}

// chiefScript is a model that needs one turn, and all of its contexts.
const chiefScript = `
name: chief
rules:
  - tags: {call: plain}
    reply: 'what is small is simply read'
  - reply: |
      ¬repl
      word = llm_query('Only the word: ' + search('password', context_0)[0][1])
      FINAL([word, context_1["key"], sorted(context_2), context_2["b/two.txt"], budget().get("depth")])
      ¬
`

func TestAskHeedsItsFlags(t *testing.T) {
	a := newAsker(t, "0s")
	a.write("chief.yaml", strings.ReplaceAll(chiefScript, "¬", "```"))
	a.write("second.yaml", strings.NewReplacer("name: sub", "name: second", "'{{1}}'", "'second {{1}}'").Replace(subScript))
	a.write("small.txt", "the password is swordfish\n")
	a.write("facts.json", `{"key": "value"}`)
	docs := filepath.Join(a.dir, "docs")
	if err := os.MkdirAll(filepath.Join(docs, "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	a.write("docs/one.txt", "first")
	a.write("docs/b/two.txt", "second text")
	cassette := filepath.Join(a.dir, "calls.jsonl")
	scripts := "RECLUSE_MODELS_SCRIPTS=" + filepath.Join(a.dir, "chief.yaml") + "," + filepath.Join(a.dir, "second.yaml")
	env := a.env
	ask := func(more []string, args ...string) (started v1.RunStarted, res rlm.Result) {
		t.Helper()
		a.env = append(append([]string{}, env...), more...)
		got := a.run("", append([]string{
			"ask", "Q?", "--json", "--model", "scripted/chief", "--sub-model", "scripted/second", "--context", filepath.Join(a.dir, "small.txt"),
			"--context", filepath.Join(a.dir, "facts.json"), "--context", docs,
		}, args...)...)
		if got.status != 0 {
			t.Fatalf("%+v", got)
		}
		for line := range strings.Lines(got.stdout) {
			var e v1.RunEvent
			decodeJSON(t, line, &e)
			var err error
			switch e.Kind {
			case v1.KindRunStarted:
				err = e.Decode(&started)
			case v1.KindRunEnded:
				err = e.Decode(&res)
			default: // the other events do not matter here
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return started, res
	}
	answer := func(depth string) string {
		return `["second swordfish", "value", ["b/two.txt", "one.txt"], "second text", ` + depth + `]`
	}

	start, res := ask([]string{scripts}, "--plain-below", "0", "--cache", "1m", "--max-time", "7m", "--max-cost", "1.5", "--max-tokens", "5000", "--max-turns", "3", "--depth", "1")
	if l := start.Limits; l.Time.Std() != 7*time.Minute || *l.Cost != 1.5 || *l.Tokens != 5000 || *l.Turns != 3 || *l.Depth != 1 {
		t.Errorf("limits: %+v", l)
	}
	if res.Answer != answer("1") || start.Model != "scripted/chief" || len(res.By) != 2 || res.By[1].Model != "scripted/second" || res.Plain || res.Cached != 0 {
		t.Errorf("with all flags: %+v", res)
	}
	_, res = ask([]string{scripts})
	if !res.Plain || res.Answer != "what is small is simply read" {
		t.Errorf("a small context: %+v", res)
	}
	// The configuration requests a recording. There is no time limit, because the prompt contains the remaining seconds.
	bare := []string{"RECLUSE_MODELS_PLAIN_BELOW=0", "RECLUSE_MODELS_MAX_TIME=none"}
	_, res = ask(append(bare, scripts, "RECLUSE_MODELS_RECORD="+cassette))
	if res.Answer != answer("2") || res.Usage.Calls != 2 || res.Cached != 0 {
		t.Errorf("recorded: %+v", res)
	}
	_, res = ask(append(bare, "RECLUSE_MODELS_SCRIPTS=", "RECLUSE_MODELS_DEFAULT=", "RECLUSE_MODELS_CASSETTES="+cassette), "--cache", "1m")
	if res.Answer != answer("2") || res.Usage.Calls != 1 || res.Cached != 1 {
		t.Errorf("from the recording, and the reply that the first run has left: %+v", res)
	}
	a.env = env
	if got := a.run("", "ask", "Q?", "--cache", "much"); got.status != statusFailure || !strings.Contains(got.stderr, `"--cache" flag: invalid size "much"`) {
		t.Errorf("%+v", got)
	}
	if got := a.run("", "ask", "Q?", "--session", "work", "--plain-below", "0"); got.status != statusFailure || !strings.Contains(got.stderr, "models.plain_below") {
		t.Errorf("%+v", got)
	}
}

func TestDemoRLM(t *testing.T) {
	w := newWorld(t)
	got := w.run("", "demo", "rlm")
	if got.status != 0 || got.stdout != demo.Answer+"\n" || !strings.Contains(got.stderr, "The model is scripted") || !strings.Contains(got.stderr, "child run") {
		t.Errorf("%+v", got)
	}
	if !regexp.MustCompile(`models have read 100\.0 % of the context \((10,000,\d{3}) of (10,000,\d{3}) bytes\)`).MatchString(got.stderr) {
		t.Errorf("not everything was read: %s", got.stderr)
	}
}

func TestAskIsStopped(t *testing.T) {
	a := newAsker(t, "10m")
	a.stop()
	if left := a.sandboxes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	a.stop("--session", "work")
	a.must("session", "end", "work")
	a.hurry()
	if got := a.must("runs", "resume", "last", "-q"); got != "swordfish\n" {
		t.Errorf("resumed: %q", got)
	}
}

// thinking waits until the third turn of a run is requested from the model.
func (a *asker) thinking(run string) {
	a.t.Helper()
	a.await("the model thinks about its third turn", func() bool { return strings.Count(a.must("runs", "show", run, "--events"), `"call":"turn"`) == 5 })
}

// stop starts ask, and interrupts it after the second turn.
func (a *asker) stop(args ...string) {
	t := a.t
	t.Helper()
	cmd := a.command(append([]string{"ask", "What is the password?", "--context", a.big}, args...)...)
	var out bytes.Buffer
	errs := newHeard()
	cmd.Stdout, cmd.Stderr = &out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	errs.await(t, "turn 2: ok")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := status(t, cmd.Wait()); got != 130 || out.String() != "half an answer\n" || !strings.Contains(errs.String(), "stopped by SIGINT") {
		t.Errorf("status %d, %q, %s", got, out.String(), errs)
	}
}

func TestASecondSignalLeavesAsk(t *testing.T) {
	a := newAsker(t, "0s")
	cmd := a.command("ask", "Never end?", "--context", a.big)
	errs := newHeard()
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	errs.await(t, "a call of scripted/sub failed") // the code ignores errors and interrupts
	for _, heard := range []string{"stopping", "exited at once"} {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		errs.await(t, heard)
	}
	if got := status(t, cmd.Wait()); got != 130 || !strings.Contains(errs.String(), "exited at once") {
		t.Errorf("status %d, %s", got, errs)
	}
	a.await("no sandbox is left", func() bool { return len(a.sandboxes()) == 0 })
}

func TestAskOnATerminal(t *testing.T) {
	a := newAsker(t, "10m")
	talkInTerminal(t, a.command("ask", "What is the password?", "--context", a.big), 130, func(master *os.File, screen *heard) {
		for _, what := range []string{"What is the password?", "turn 1", "turn 2", "1 call", "turn 3", "thinking", "3 model calls"} {
			screen.await(t, what)
		}
		say(t, master, "\x03")
		screen.await(t, "ended without an answer: cancelled")
		screen.await(t, "half an answer")
		screen.await(t, "runs resume")
	})
}

func TestAKilledAskIsResumed(t *testing.T) {
	a := newAsker(t, "10m")
	cmd := a.command("ask", "What is the password?", "--context", a.big)
	errs := newHeard()
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	errs.await(t, "turn 2: ok")
	a.thinking("last")
	server := a.server()
	if err := errors.Join(cmd.Process.Signal(syscall.SIGKILL), syscall.Kill(server.PID, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	a.env = append(a.env, "RECLUSE_MODELS_RESUME=false")
	if got := a.must("runs", "list"); !strings.Contains(got, "interrupted") {
		t.Errorf("list: %s", got)
	}
	a.hurry()
	got := a.run("", "runs", "resume", "last")
	if got.status != 0 || got.stdout != "swordfish\n" || !strings.Contains(got.stderr, "resumed after turn 2: its sandbox still ran") {
		t.Errorf("resume: %+v", got)
	}
	if got := a.must("runs", "show", "last"); !strings.Contains(got, "\nAnswer (code)\nswordfish\n") || !strings.Contains(got, "[resumed after turn 2: its sandbox still ran]") {
		t.Errorf("show: %s", got)
	}
	if got := a.run("", "runs", "resume", "last"); got.status != statusFailure || !strings.Contains(got.stderr, "already has an answer") {
		t.Errorf("resume again: %+v", got)
	}
	if got := a.must("runs", "fork", "last", "--at", "1", "-q"); got != "swordfish\n" {
		t.Errorf("fork: %q", got)
	}
	// A replay calls no model, so none need be configured.
	a.env = append(a.env, "RECLUSE_MODELS_SCRIPTS=", "RECLUSE_MODELS_DEFAULT=", "RECLUSE_MODELS_SUB=")
	if got := a.must("runs", "replay", "last", "-q"); got != "swordfish\n" {
		t.Errorf("replay: %q", got)
	}
	lines := strings.Split(strings.TrimSpace(a.must("runs", "export", "last", "--format", "rlm")), "\n")
	var turn struct {
		Iteration int    `json:"iteration"`
		Answer    string `json:"final_answer"`
	}
	decodeJSON(t, lines[len(lines)-1], &turn)
	if len(lines) != 4 || turn.Iteration != 3 || turn.Answer != "swordfish" {
		t.Errorf("export: %d lines, %+v", len(lines), turn)
	}
	var list []rlm.Info
	decodeJSON(t, a.must("runs", "list", "--json"), &list)
	if len(list) != 3 {
		t.Errorf("%d runs are kept", len(list))
	}
	for _, i := range list {
		var gone struct{ Deleted []string }
		decodeJSON(t, a.must("runs", "delete", i.ID, "--json"), &gone)
		if !slices.Equal(gone.Deleted, []string{i.ID}) {
			t.Errorf("deleted %q, want %q", gone.Deleted, i.ID)
		}
	}
	if got := a.run("", "runs", "show", "last"); got.status != 1 || !strings.Contains(got.stderr, "not found") {
		t.Errorf("show what was deleted: %+v", got)
	}
}

func TestARunGoesOnWithoutItsAsk(t *testing.T) {
	a := newAsker(t, "2s")
	cmd := a.command("ask", "What is the password?", "--context", a.big)
	errs := newHeard()
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	errs.await(t, "turn 2: ok")
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	a.await("the run has its answer", func() bool { return strings.Contains(a.must("runs", "show", "last"), "\nAnswer (code)\nswordfish\n") })
	if left := a.sandboxes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAskOutlivesItsServer(t *testing.T) {
	a := newAsker(t, "3s")
	cmd := a.command("ask", "What is the password?", "--context", a.big)
	var out bytes.Buffer
	errs := newHeard()
	cmd.Stdout, cmd.Stderr = &out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	errs.await(t, "turn 2: ok")
	if err := syscall.Kill(a.server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := status(t, cmd.Wait()); got != 0 || out.String() != "swordfish\n" || !strings.Contains(errs.String(), "resumed after turn 2") {
		t.Errorf("status %d, %q, %s", got, out.String(), errs)
	}
}

func TestARunIsCancelledByName(t *testing.T) {
	a := newAsker(t, "10m")
	cmd := a.command("ask", "What is the password?", "--context", a.big, "-q")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.await("a run works", func() bool { return strings.Contains(a.must("runs", "list"), "running") })
	a.thinking("last")
	if got := a.must("runs", "cancel", "last"); got != "half an answer\n" {
		t.Errorf("%q", got)
	}
	if got := status(t, cmd.Wait()); got != 1 || out.String() != "half an answer\n" {
		t.Errorf("status %d, %q", got, out.String())
	}
}

func TestAskInASession(t *testing.T) {
	a := newAsker(t, "0s")
	if got := a.run("", "ask", "What is the password?", "--context", a.big, "--session", "work"); got.status != 0 || got.stdout != "swordfish\n" || !strings.Contains(got.stderr, "turn 3") {
		t.Fatalf("%+v", got)
	}
	a.expect("swordfish\n", "exec", "--session", "work", "--python", "print(word)")
	if got := a.must("ask", "How long is it?", "--session", "work", "-q"); got != "9\n" {
		t.Errorf("the second question: %q", got)
	}
	a.must("snapshot", "save", "work", "warm")
	a.murder("work")
	if got := a.run("", "ask", "How long is it?", "--session", "work", "-q"); got.stdout != "9\n" || !strings.Contains(got.stderr, "its state is that of") {
		t.Errorf("asked in a session that was lost: %+v", got)
	}
	if got := a.run("", "exec", "--session", "work", "--python", "word"); got.stderr != "" {
		t.Errorf("told twice: %+v", got)
	}
	// The server keeps its configuration, because it has a session. This may be why a model is missing.
	a.env = append(a.env, "RECLUSE_MODELS_SCRIPTS="+filepath.Join(a.dir, "other.yaml"))
	if got := a.run("", "ask", "How long is it?", "--model", "scripted/other", "-q"); got.status != statusFailure || !strings.Contains(got.stderr, "different configuration") {
		t.Errorf("asked for a model that the server does not have: %+v", got)
	}
}
