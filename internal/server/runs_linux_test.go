package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// haystack is much larger than a context that is put into the prompt.
var haystack = strings.Repeat("nothing here\n", 20_000) + "the password is swordfish\n" + strings.Repeat("nor here\n", 20_000)

// runBench is a server with scripted models: the root model searches for a password and asks the sub-model for the
// word.
type runBench struct {
	*servertest.Bench
	hold    sync.Mutex   // held: the root's third turn waits, and so does the reply to "Wait for it"
	waiting atomic.Int32 // number of models that wait for hold
	ran     string       // a file that has a line for each use of the model agent/x, a program of the host
}

func newRunBench(t *testing.T) *runBench {
	t.Helper()
	return newLimitedRunBench(t, server.Limits{})
}

func newLimitedRunBench(t *testing.T, requests server.Limits) *runBench {
	t.Helper()
	k := &runBench{ran: filepath.Join(t.TempDir(), "ran")}
	held := func(ctx context.Context) {
		free := make(chan struct{})
		go func() { k.hold.Lock(); k.hold.Unlock(); close(free) }() //nolint:staticcheck // it waits for the test
		select {
		case <-free:
		case <-ctx.Done():
		}
	}
	block := func(code string) string { return "```repl\n" + code + "\n```" }
	turn := func(n string) map[string]string { return map[string]string{"call": v1.CallTurn, "turn": n} }
	root := llm.NewScripted("root",
		llm.Rule{Match: "Question: Use the program", Reply: block("try:\n    said = llm_query('hello', model='agent/x')\nexcept Exception as e:\n    said = f'refused: {e}'\nFINAL(said)")},
		llm.Rule{Match: "Question: How long", Reply: block("FINAL(len(word))")},
		llm.Rule{Tags: turn("1"), Reply: block("hits = search('password')\nanswer['content'] = 'half an answer'\nprint(len(hits))")},
		llm.Rule{Tags: turn("2"), Reply: block("word = llm_query('Only the word: ' + hits[0][1])\nprint(word)")},
		llm.Rule{Tags: turn("3"), Respond: func(ctx context.Context, _ llm.Request) (string, error) {
			held(ctx)
			return block("FINAL(word)"), nil
		}},
		llm.Rule{Match: "Wait for it", Respond: func(ctx context.Context, _ llm.Request) (string, error) {
			k.waiting.Add(1)
			held(ctx)
			return "it came", nil
		}},
		llm.Rule{Match: "(?s).*", Conversation: "Answer as JSON", Reply: `{"word": "plain"}`},
		llm.Rule{Match: "Think first", Reply: "<think>\nhm\n</think>\nyes, after all", Chunk: 3, Usage: &llm.Usage{Calls: 1, Input: 5, Output: 5, Estimated: true}},
		llm.Rule{Match: "Refuse", Reply: "no", Finish: llm.FinishFilter},
		llm.Rule{Reply: "a plain reply", Chunk: 3})
	sub := llm.NewScripted("sub", llm.Rule{Match: `the password is (\w+)`, Reply: "{{1}}"})
	set, err := llm.Open(llm.Config{Default: "scripted/root", Providers: map[string]llm.Provider{"agent": {Type: llm.TypeCLI, Commands: map[string][]string{"x": {"sh", "-c", "echo >> " + k.ran + "; cat > /dev/null; printf '```repl\\nx = 1\\n```\\n'"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	set.Add(root)
	set.Add(sub)
	set.Add(llm.NewScripted("other", llm.Rule{Reply: block("FINAL('from another model')")}))
	l := rlm.DefaultLimits()
	l.Tokens = new(int64(1_000_000))
	keeper := runs.New(runs.Options{
		Models: set, Route: llm.Route{Sub: []string{"scripted/sub"}}, DataDir: t.TempDir(), Limits: l,
		Backend: func(context.Context) (sandbox.Backend, error) { return k.Backend, nil },
		Admit: func(ctx context.Context, d session.RunDemand) (*session.RunPlace, error) {
			return k.Manager.AdmitRun(ctx, d)
		},
	})
	k.Bench = servertest.New(t, server.Options{Runs: keeper, Limits: requests})
	t.Cleanup(keeper.Close) // before the server's own end
	return k
}

// follow reads a run's events to their end.
func follow(t *testing.T, c *client.Client, id string, after int64) (kinds []v1.RunEventKind, last int64) {
	t.Helper()
	for e, err := range c.RunEvents(t.Context(), id, after) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != after+int64(len(kinds))+1 {
			t.Fatalf("event %d behind %d others after %d", e.Seq, len(kinds), after)
		}
		kinds, last = append(kinds, e.Kind), e.Seq
	}
	return kinds, last
}

func TestARunGoesOnWithAnotherModel(t *testing.T) {
	k := newRunBench(t)
	ctx := t.Context()
	c := k.Client(k.Key("acme", "execute"))
	one := client.RunOptions{
		Query: "What is the password?", Contexts: []client.RunContext{{Text: new(haystack)}}, Model: "scripted/root", Limits: v1.RunLimits{Turns: new(1)},
	}
	i, err := c.StartRun(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, c, i.ID, 0)
	again := client.RunAgain{Model: "scripted/other", Limits: v1.RunLimits{Turns: new(3)}}
	f, err := c.ForkRun(ctx, i.ID, 0, again)
	if err == nil {
		i, err = c.ResumeRun(ctx, i.ID, again)
	}
	if err != nil {
		t.Fatal(err)
	}
	for what, id := range map[string]string{"fork": f.ID, "resume": i.ID} {
		var got *v1.Run
		testneed.Await(t, "the end of the "+what, func() bool { // a resumed run first shows the end of its first part
			got, err = c.Run(ctx, id)
			return err != nil || got.Model == "scripted/other" && !got.Running
		})
		if err != nil || got.Result == nil || got.Result.Answer != "from another model" || got.Model != "scripted/other" {
			t.Errorf("%s: %+v %v", what, got, err)
		}
	}
	again.Model = "scripted/none"
	if f, err := c.ForkRun(ctx, i.ID, 0, again); err == nil {
		t.Errorf("a model that is not there: %+v", f)
	}
}

func TestRunsOverHTTP(t *testing.T) {
	k := newRunBench(t)
	ctx := t.Context()
	c := k.Client(k.Key("acme", "execute"))
	question := client.RunOptions{Query: "What is the password?", Contexts: []client.RunContext{{Name: "notes", Text: new(haystack)}}, Labels: map[string]string{"why": "test"}}
	i, err := c.StartRun(ctx, question)
	if err != nil {
		t.Fatal(err)
	}
	kinds, last := follow(t, c, i.ID, 0)
	if kinds[0] != v1.KindRunStarted || kinds[len(kinds)-1] != v1.KindRunEnded {
		t.Errorf("%v", kinds)
	}
	if again, _ := follow(t, c, i.ID, last-2); len(again) != 2 {
		t.Errorf("the last two events are %v", again)
	}
	if i, err = c.Run(ctx, i.ID); err != nil || i.Result == nil || i.Result.Answer != "swordfish" || i.Labels["why"] != "test" {
		t.Fatalf("%+v %v", i, err)
	}
	asked := map[v1.Role]int{}
	prompts, err := c.RunPrompts(ctx, i.ID)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range c.PastRunEvents(ctx, i.ID) {
		var call v1.CallStarted
		if err != nil || e.Kind == v1.KindCallStarted && e.Decode(&call) != nil {
			t.Fatal(err)
		}
		for _, m := range prompts.Messages(call.Prompt) {
			asked[m.Role]++
		}
	}
	if asked["system"] == 0 || asked["user"] <= asked["system"] || asked["assistant"] == 0 {
		t.Errorf("messages of the calls: %v", asked)
	}
	f, err := c.ForkRun(ctx, i.ID, 1, client.RunAgain{})
	if err != nil {
		t.Fatal(err)
	}
	follow(t, c, f.ID, 0)
	var out bytes.Buffer
	if err := c.ExportRun(ctx, f.ID, &out); err != nil || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%v %s", err, out.String())
	}
	listed := func(c *client.Client) (n int) {
		for _, err := range c.Runs(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if n := listed(c); n != 2 {
		t.Errorf("%d runs are listed", n)
	}
	t.Run("others see nothing of it", func(t *testing.T) {
		other := k.Client(k.Key("other", "execute"))
		if n := listed(other); n != 0 {
			t.Errorf("%d runs", n)
		}
		for _, err := range other.RunEvents(ctx, i.ID, 0) {
			if v1.CodeOf(err) != v1.CodeRunNotFound {
				t.Errorf("events: %v", err)
			}
		}
		if _, err := other.CancelRun(ctx, i.ID); v1.CodeOf(err) != v1.CodeRunNotFound {
			t.Errorf("cancel: %v", err)
		}
	})
	t.Run("what is refused", func(t *testing.T) {
		many, far := int64(2_000_000), 9
		for name, tt := range map[string]struct {
			key  string
			o    client.RunOptions
			code v1.Code
		}{
			"who may only look":         {k.Key("acme", "read"), question, v1.CodeForbidden},
			"files of the host":         {"", client.RunOptions{Query: "?", Contexts: []client.RunContext{{Path: "/etc/passwd"}}}, v1.CodeMountRefused},
			"more than the server's":    {"", client.RunOptions{Query: "?", Limits: v1.RunLimits{Tokens: &many}}, v1.CodeForbidden},
			"deeper than the server's":  {"", client.RunOptions{Query: "?", Limits: v1.RunLimits{Depth: &far}}, v1.CodeForbidden},
			"no question":               {"", client.RunOptions{}, v1.CodeInvalidRequest},
			"a schema that is none":     {"", client.RunOptions{Query: "?", Schema: []byte(`{"type": 7}`)}, v1.CodeInvalidSchema},
			"a model that is not there": {"", client.RunOptions{Query: "?", Model: "nobody/x"}, v1.CodeModelUnknown},
			"a program of the host":     {"", client.RunOptions{Query: "?", Model: "scripted/root, agent/x"}, v1.CodeForbidden},
			"one for its calls":         {"", client.RunOptions{Query: "?", SubModels: []string{"agent/x"}}, v1.CodeForbidden},
			"a prompt of its own":       {"", client.RunOptions{Query: "?", System: "{{.Query}}"}, v1.CodeForbidden},
			"an unknown prompt":         {"", client.RunOptions{Query: "?", Prompt: "/etc/passwd"}, v1.CodePromptUnknown},
			"a sandbox of its choice":   {"", client.RunOptions{Query: "?", Host: &client.RunHost{Spec: &sandbox.Spec{Hostname: "x"}}}, v1.CodeForbidden},
			"a backend of its choice":   {"", client.RunOptions{Query: "?", Host: &client.RunHost{Backends: []string{"local"}}}, v1.CodeForbidden},
			"an MCP server":             {"", client.RunOptions{Query: "?", Host: &client.RunHost{MCP: []client.MCPServer{{Name: "x", Command: []string{"true"}}}}}, v1.CodeForbidden},
			"no such session":           {"", client.RunOptions{Query: "?", Session: "none"}, v1.CodeSessionNotFound},
			"an empty context":          {"", client.RunOptions{Query: "?", Contexts: []client.RunContext{{Text: new("")}}}, v1.CodeContextEmpty},
		} {
			asks := c
			if tt.key != "" {
				asks = k.Client(tt.key)
			}
			if _, err := asks.StartRun(ctx, tt.o); v1.CodeOf(err) != tt.code {
				t.Errorf("%s: %v, want %s", name, err, tt.code)
			}
		}
	})
	r, err := c.ReplayRun(ctx, i.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, c, r.ID, 0)
	if r, err = c.Run(ctx, r.ID); err != nil || r.Result == nil || r.Result.Answer != "swordfish" {
		t.Errorf("replayed: %+v %v", r, err)
	}
	host := &client.RunHost{Backends: []string{"local"}}
	for name, do := range map[string]func() (*rlm.Info, error){
		"resume": func() (*rlm.Info, error) { return c.ResumeRun(ctx, i.ID, client.RunAgain{Host: host}) },
		"fork":   func() (*rlm.Info, error) { return c.ForkRun(ctx, i.ID, 1, client.RunAgain{Host: host}) },
		"replay": func() (*rlm.Info, error) { return c.ReplayRun(ctx, i.ID, host) },
		"more": func() (*rlm.Info, error) {
			return c.ForkRun(ctx, i.ID, 1, client.RunAgain{Limits: v1.RunLimits{Turns: new(1000)}})
		},
	} {
		if _, err := do(); v1.CodeOf(err) != v1.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, id := range []string{i.ID, f.ID, r.ID} {
		if err := c.DeleteRun(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if n := listed(c); n != 0 {
		t.Errorf("%d runs are left", n)
	}
}

func TestARunIsCancelledAndResumed(t *testing.T) {
	k := newRunBench(t)
	ctx := t.Context()
	k.hold.Lock()
	i, err := k.Trusted.StartRun(ctx, client.RunOptions{Query: "What is the password?", Contexts: []client.RunContext{{Text: new(haystack)}}})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range k.Trusted.RunEvents(ctx, i.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == v1.KindTurnEnded && e.Turn == 2 {
			break
		}
	}
	if err := k.Trusted.DeleteRun(ctx, i.ID); v1.CodeOf(err) != v1.CodeBusy {
		t.Errorf("delete of a run that goes on: %v", err)
	}
	i, err = k.Trusted.CancelRun(ctx, i.ID)
	if err != nil || i.Result == nil || i.Result.Reason != v1.ReasonCancelled || i.Result.Answer != "half an answer" || !i.Result.Partial {
		t.Fatalf("%+v %v", i, err)
	}
	k.hold.Unlock()
	if *i.Limits.Tokens != 1_000_000 || *i.Limits.Time != *rlm.DefaultLimits().Time {
		t.Errorf("limits: %+v", i.Limits)
	}
	past := 0
	for _, err := range k.Trusted.PastRunEvents(ctx, i.ID) {
		if err != nil {
			t.Fatal(err)
		}
		past++
	}
	// A client can send back what the server returns.
	if _, err := k.Trusted.ResumeRun(ctx, i.ID, client.RunAgain{Limits: i.Limits}); err != nil {
		t.Fatal(err)
	}
	if kinds, _ := follow(t, k.Trusted, i.ID, 0); len(kinds) <= past {
		t.Errorf("%d events, of which %d were there before", len(kinds), past)
	}
	if i, err = k.Trusted.Run(ctx, i.ID); err != nil || i.Result == nil || i.Result.Answer != "swordfish" {
		t.Errorf("%+v %v", i, err)
	}
	if _, err := k.Trusted.ResumeRun(ctx, i.ID, client.RunAgain{}); v1.CodeOf(err) != v1.CodeRunEnded {
		t.Errorf("resume of what has ended: %v", err)
	}
}

func TestRunsInASession(t *testing.T) {
	k := newRunBench(t)
	ctx := t.Context()
	if _, _, err := k.Trusted.Open(ctx, "work", session.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	first := client.RunOptions{Query: "What is the password?", Contexts: []client.RunContext{{Text: new(haystack)}}, Session: "work"}
	k.hold.Lock()
	i, err := k.Trusted.StartRun(ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Trusted.StartRun(ctx, first); v1.CodeOf(err) != v1.CodeBusy {
		t.Errorf("a second run in the session: %v", err)
	}
	k.hold.Unlock()
	follow(t, k.Trusted, i.ID, 0)
	answer := func(o client.RunOptions) string {
		t.Helper()
		i, err = k.Trusted.StartRun(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		follow(t, k.Trusted, i.ID, 0)
		if i, err = k.Trusted.Run(ctx, i.ID); err != nil || i.Result == nil {
			t.Fatalf("%+v %v", i, err)
		}
		return i.Result.Answer
	}
	if got := answer(client.RunOptions{Query: "How long is it?", Session: "work"}); got != "9" {
		t.Errorf("the second question: %q", got)
	}
}

func TestAServerWithoutModels(t *testing.T) {
	k := servertest.New(t, server.Options{})
	if _, err := k.Trusted.StartRun(t.Context(), client.RunOptions{Query: "?"}); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Errorf("%v", err)
	}
}

func TestABodyThatDoesNotMove(t *testing.T) {
	server.SetStall(t, 300*time.Millisecond)
	k := newRunBench(t)
	open(t, k.Bench, "default", "work")
	const batch = "POST /v1/sessions/work/files/batch"
	part := "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\ntext"
	for _, tt := range []struct{ request, begins string }{
		{"POST /v1/runs", `{"`},
		{"POST /v1/chat/completions", `{"`},
		{"POST /v1/sessions", `{"`},
		{"POST /v1/sessions/work/cells", `{"`},
		{"PUT /v1/sessions/work/files?path=x", `{"`},
		{batch, part},
		{batch, part + "\r\n--b\r\n"},
	} {
		request := tt.request
		conn, err := net.Dial("tcp", strings.TrimPrefix(k.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, request+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n"+tt.begins); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		b, _ := io.ReadAll(res.Body)
		if res.Body.Close(); res.StatusCode != http.StatusRequestTimeout || !res.Close || !strings.Contains(string(b), string(v1.CodeBodyTimeout)) {
			t.Errorf("%s: %s %s", request, res.Status, b)
		}
	}
}

func TestAClientThatWritesOnGetsTheAnswer(t *testing.T) {
	k := newRunBench(t)
	open(t, k.Bench, "default", "work")
	conn, err := net.Dial("tcp", strings.TrimPrefix(k.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The body has no parts, so the server answers at once. The client reads the answer only after it has written for
	// longer than package http waits.
	_, err = io.WriteString(conn, "POST /v1/sessions/work/files/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000000\r\n\r\n"+
		strings.Repeat("x", 1<<20))
	for began := time.Now(); err == nil && time.Since(began) < time.Second; {
		_, err = conn.Write(make([]byte, 64<<10))
	}
	if err != nil {
		t.Fatalf("the connection was cut: %v", err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest || !res.Close {
		t.Errorf("%s", res.Status)
	}
}

func TestRepeatedRunLargerThanOtherBodies(t *testing.T) {
	k := newRunBench(t)
	body := `{"query":"What is the password?","contexts":[{"text":"` + strings.Repeat("x", server.DefaultBody) + `"}],"limits":{"turns":0}}`
	a := ask(t, k.Bench, "", "POST", "/v1/runs", body, "Idempotency-Key", "k")
	if a.problem(t).Code != v1.CodeInvalidRequest { // the body was read, and its limits are invalid
		t.Errorf("%d %s", a.status, a.body)
	}
}

// uses returns how often the program of the host was run.
func (k *runBench) uses(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(k.ran)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

func TestOnlyCallersOnTheSocketChooseProgramsOfTheHost(t *testing.T) {
	k := newRunBench(t)
	ctx := t.Context()
	one := 1
	few := v1.RunLimits{Turns: &one} // the run ends without an answer
	notes := []client.RunContext{{Text: new(haystack)}}
	begun := map[string]string{}
	for name, o := range map[string]client.RunOptions{
		"as its model":  {Query: "?", Contexts: notes, Model: "agent/x", Limits: few},
		"for its calls": {Query: "?", Contexts: notes, SubModels: []string{"agent/x"}, Limits: few},
	} {
		i, err := k.Trusted.StartRun(ctx, o) // the owner of the machine may choose the model
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		follow(t, k.Trusted, i.ID, 0)
		begun[name] = i.ID
	}
	if k.uses(t) == 0 {
		t.Fatal("the program was not run for its owner")
	}
	before := k.uses(t)
	c := k.Client(k.Key("default", "execute"))
	for name, id := range begun {
		if _, err := c.ResumeRun(ctx, id, client.RunAgain{}); v1.CodeOf(err) != v1.CodeForbidden {
			t.Errorf("resume of a run that has it %s: %v", name, err)
		}
		if _, err := c.ForkRun(ctx, id, 1, client.RunAgain{}); v1.CodeOf(err) != v1.CodeForbidden {
			t.Errorf("fork of a run that has it %s: %v", name, err)
		}
	}
	key := k.Key("acme", "execute")
	for name, text := range map[string]string{"short": "hello", "long": haystack} {
		for _, model := range []string{"agent/x", "scripted/root,agent/x", " agent/x "} {
			body, err := json.Marshal(map[string]any{"model": model, "messages": []map[string]string{{"role": "user", "content": text}}})
			if err != nil {
				t.Fatal(err)
			}
			if a := ask(t, k.Bench, key, "POST", "/v1/chat/completions", string(body)); a.status < 400 {
				t.Errorf("a %s conversation with %q: %d %.200s", name, model, a.status, a.body)
			}
		}
	}
	body, err := json.Marshal(map[string]any{"model": "scripted/root", "messages": []map[string]string{{"role": "user", "content": haystack}, {"role": "user", "content": "Use the program"}}})
	if err != nil {
		t.Fatal(err)
	}
	if a := ask(t, k.Bench, key, "POST", "/v1/chat/completions", string(body)); !strings.Contains(a.body, "refused: ") {
		t.Errorf("code of a conversation that chooses it: %d %.500s", a.status, a.body)
	}
	if n := k.uses(t); n != before {
		t.Errorf("the program was run %d times for others", n-before)
	}
}

func TestFewLargeBodiesAreInMemoryAtOnce(t *testing.T) {
	server.SetStall(t, 3*time.Second)
	k := newLimitedRunBench(t, server.Limits{Body: 1024})
	body := func(text string) string {
		return `{"model":"scripted/root","messages":[{"role":"user","content":"` + text + `"}]}`
	}
	large := body("Wait for it" + strings.Repeat(".", 2048))
	k.hold.Lock()
	long, err := json.Marshal(map[string]any{"stream": true, "messages": []map[string]string{{"role": "user", "content": haystack}, {"role": "user", "content": "What is the password?"}}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, k.URL+"/v1/chat/completions", bytes.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	under, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer under.Body.Close()
	if under.Header.Get("Recluse-Run") == "" {
		t.Fatalf("it is answered by no run: %s", under.Status)
	}
	// The run continues, and the body of its request is no longer in memory.
	answers := make(chan answer, 4)
	for range cap(answers) {
		go func() { answers <- ask(t, k.Bench, "", "POST", "/v1/chat/completions", large) }()
	}
	testneed.Await(t, "four are being answered", func() bool { return k.waiting.Load() == 4 })
	short, leave := context.WithTimeout(t.Context(), 20*time.Second)
	defer leave()
	if req, err = http.NewRequestWithContext(short, http.MethodPost, k.URL+"/v1/chat/completions", strings.NewReader(large)); err != nil {
		t.Fatal(err)
	}
	if res, err := plain.Do(req); err != nil {
		t.Errorf("a fifth: %v", err)
	} else if res.Body.Close(); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a fifth: %d", res.StatusCode)
	}
	if a := ask(t, k.Bench, "", "POST", "/v1/chat/completions", body("hello")); a.status != http.StatusOK {
		t.Errorf("a small one meanwhile: %d %s", a.status, a.body)
	}
	k.hold.Unlock()
	for range cap(answers) {
		if a := <-answers; a.status != http.StatusOK || !strings.Contains(a.body, "it came") {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := ask(t, k.Bench, "", "POST", "/v1/chat/completions", large); a.status != http.StatusOK {
		t.Errorf("another one behind them: %d %s", a.status, a.body)
	}
}
