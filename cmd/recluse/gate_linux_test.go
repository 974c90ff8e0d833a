package main

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/session"
)

// said is the answer of one door to a piece of code.
type said struct {
	Runs   bool
	Reason string
}

// door is an interface that runs code: exec, HTTP, MCP, a hook or a run.
type door func(t *testing.T, req gate.Request) said

// runner has the methods that sessions and their clients share.
type runner interface {
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
}

// through runs code in a session.
func through(r runner) door {
	return func(t *testing.T, req gate.Request) said {
		t.Helper()
		var v *sandbox.Verdict
		var err error
		if req.Language == gate.Python {
			v, err = r.Cell(t.Context(), sandbox.Cell{Code: req.Code})
		} else {
			v, err = r.Run(t.Context(), sandbox.Command{Shell: req.Code})
		}
		if v1.CodeOf(err) == v1.CodeGateRefused {
			return said{Reason: console.NewFailure(err).Message}
		}
		if err != nil {
			t.Fatal(err)
		}
		return said{Runs: true, Reason: v.Metadata[session.MetaGate]}
	}
}

// pieces is the code that is sent through every door.
var pieces = []struct {
	name     string
	language gate.Language
	code     string
	runs     bool // in mode block
}{
	{"harmless Python", gate.Python, "print(6*7)", true},
	{"a removal in Python", gate.Python, "import os\nd = '/nowhere/..'\nif False:\n    os.system('rm -rf ' + d)\n", false},
	{"harmless bash", gate.Bash, "echo 'rm -rf /'", true},
	{"a removal behind a variable", gate.Bash, "exit 0; x=/; rm -rf \"$x\"", false},
	{"what cannot be decided", gate.Bash, "exit 0; rm -rf \"$1\"", true},
	{"nothing", gate.Python, "", true},
}

// newDoors returns a world with a model that writes the pieces, one in each turn.
func newDoors(t *testing.T, env ...string) *world {
	t.Helper()
	type rule struct {
		Tags  map[string]string `json:"tags,omitempty"`
		Reply string            `json:"reply"`
	}
	script := struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}{Name: "root"}
	for i, p := range pieces {
		fence := map[gate.Language]string{gate.Python: "repl", gate.Bash: "bash"}[p.language]
		if p.code != "" {
			script.Rules = append(script.Rules, rule{map[string]string{"turn": strconv.Itoa(i + 1)}, "```" + fence + "\n" + p.code + "\n```\n"})
		}
	}
	script.Rules = append(script.Rules, rule{Reply: "```repl\nFINAL('all of them')\n```\n"})
	data, err := json.Marshal(script) // JSON is also YAML
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "root.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	// nobody is asked
	return newWorld(t, append([]string{untried, "RECLUSE_GATE_TRIES=100", "RECLUSE_MODELS_SCRIPTS=" + file, "RECLUSE_MODELS_DEFAULT=scripted/root"}, env...)...)
}

// runDoor makes a model write all pieces in one run, and returns the answer to each.
func (p *parity) runDoor(c *client.Client, mode gate.Mode) door {
	p.t.Helper()
	info, err := c.StartRun(p.t.Context(), client.RunOptions{Query: "Write it all.", Contexts: []client.RunContext{{Text: new(strings.Repeat("nothing here\n", 40_000))}}, Gate: string(mode)})
	if err != nil {
		p.t.Fatal(err)
	}
	heard := map[string]said{"": {Runs: true}} // an empty reply has no code
	var code string
	for e, err := range c.RunEvents(p.t.Context(), info.ID, 0) {
		if err != nil {
			p.t.Fatal(err)
		}
		var (
			begun v1.CellStarted
			told  v1.Judged
			ended v1.CellEnded
		)
		switch e.Kind {
		case v1.KindCellStarted:
			err = e.Decode(&begun)
			code = strings.TrimSpace(begun.Code)
			heard[code] = said{Runs: true}
		case v1.KindGate:
			err = e.Decode(&told)
			heard[code] = said{Runs: true, Reason: told.Reason}
		case v1.KindCellEnded:
			err = e.Decode(&ended)
			if ended.Ended == v1.EndedStart {
				heard[code] = said{Reason: heard[code].Reason}
			}
			if ended.Ended == v1.EndedStart && ended.Error != heard[code].Reason {
				p.t.Errorf("the model hears %q, the log %q", ended.Error, heard[code].Reason)
			}
		default: // the other events do not matter here
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return func(t *testing.T, req gate.Request) said {
		t.Helper()
		s, ok := heard[strings.TrimSpace(req.Code)]
		if !ok {
			t.Errorf("the run had no such code: %v", heard)
		}
		return s
	}
}

func TestTheGateSaysTheSameAtEveryDoor(t *testing.T) {
	w := newDoors(t)
	p := newParity(t, w, config.Default().Gate)
	for _, mode := range []gate.Mode{gate.ModeOff, gate.ModeWarn, gate.ModeBlock} {
		p.compare(mode, mode)
	}
	// The audit log has the decisions.
	entries := w.must("audit", "--session", "block", "--json")
	var denied int
	for line := range strings.Lines(entries) {
		var e session.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Gate == string(v1.GateDeny) && e.Error == string(v1.CodeGateRefused) && e.Digest != "" {
			denied++
		}
	}
	if denied != 8 { // two pieces, through four doors of this server
		t.Errorf("%d denials in the audit log: %s", denied, entries)
	}
	// The audit log also has the decisions of runs: denied, warned and allowed.
	actions := map[string]int{}
	for line := range strings.Lines(w.must("audit", "--action", "judge", "--json")) {
		var e session.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(e.Actor, "run ") || e.Digest == "" {
			t.Errorf("%+v", e)
		}
		actions[e.Gate]++
	}
	if want := map[string]int{"deny": 2, "warn": 2, "allow": 14}; !maps.Equal(actions, want) {
		t.Errorf("in the audit log the gate said of runs %v, want %v", actions, want)
	}
}

// A session or a configuration that requests a weaker mode than gate.min_mode gets gate.min_mode.
func TestTheFloorOfTheGateHoldsAtEveryDoor(t *testing.T) {
	modes := []gate.Mode{gate.ModeBlock}
	if testneed.AllTests() {
		modes = append(modes, gate.ModeWarn)
	}
	for _, least := range modes {
		w := newDoors(t, "RECLUSE_GATE_RULES=off", "RECLUSE_GATE_GRAPH=off", "RECLUSE_GATE_MIN_MODE="+string(least))
		cfg := config.Default().Gate
		cfg.Rules, cfg.Graph, cfg.MinMode = string(gate.ModeOff), string(gate.ModeOff), string(least)
		p := newParity(t, w, cfg)
		p.doors["exec"] = func(_ *testing.T, req gate.Request) said { return w.execDoor(req) } // as configured
		p.doors["an agent's hook"] = w.hookDoor(project(t))
		p.compare(gate.ModeOff, least)
		if got := w.must("session", "show", "off", "--json"); !strings.Contains(got, `"gate": "`+string(least)+`"`) {
			t.Errorf("the session tells another mode: %s", got)
		}
	}
}

// parity sends the same code through all doors.
type parity struct {
	t       *testing.T
	w       *world
	checker *gate.Checker
	manager *session.Manager
	doors   map[string]door // in addition to those of each session
}

func newParity(t *testing.T, w *world, cfg config.Gate) *parity {
	t.Helper()
	checker, err := cfg.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checker.Close() })
	guest, err := bundle.Guest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := session.New(t.Context(), session.Options{
		Backends: []sandbox.Backend{local.New(local.Options{GuestPath: guest.Path})}, Require: backend.Requirements{AllowNone: true}, DataDir: t.TempDir(), NoPool: true, Gate: checker,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &parity{t: t, w: w, checker: checker, manager: m, doors: map[string]door{}}
}

// of returns every door to sessions that were opened with a mode.
func (p *parity) of(mode gate.Mode) map[string]door {
	t, w := p.t, p.w
	t.Helper()
	w.must("session", "open", string(mode), "--gate", string(mode))
	c, err := client.New(client.Options{Socket: w.server().Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	remote, _, err := c.Open(t.Context(), string(mode), session.OpenOptions{Existing: true})
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := p.manager.Open(t.Context(), session.Key{Name: string(mode)}, session.OpenOptions{Settings: session.Settings{Gate: string(mode)}})
	if err != nil {
		t.Fatal(err)
	}
	doors := map[string]door{
		"library": through(own), "HTTP": through(remote),
		"MCP":            w.mcpDoor(string(mode)),
		"MCP over HTTP":  w.mcpHTTPDoor(string(mode)),
		"a model's run":  p.runDoor(c, mode),
		"exec --session": func(_ *testing.T, req gate.Request) said { return w.execDoor(req, "--session", string(mode)) },
		"gate check": func(t *testing.T, req gate.Request) said {
			got := w.run(req.Code, "gate", "check", "--json", "--mode", string(mode), "--language", string(req.Language), "-")
			var list []gate.Decision
			decodeJSON(t, got.stdout, &list)
			s := said{Runs: list[0].Action.Runs(), Reason: list[0].Reason}
			if list[0].Action == v1.GateAllow {
				s.Reason = "" // notes are not reported when code runs
			}
			if s.Runs != (got.status == 0) {
				t.Errorf("status %d of %+v", got.status, s)
			}
			return s
		},
	}
	maps.Copy(doors, p.doors)
	return doors
}

// compare compares the doors of sessions that were opened with one mode, while another mode may apply.
func (p *parity) compare(mode, holds gate.Mode) {
	p.t.Helper()
	doors := p.of(mode)
	for _, tt := range pieces {
		p.t.Run(string(mode)+" at least "+string(holds)+"/"+tt.name, func(t *testing.T) {
			req := gate.Request{Language: tt.language, Code: tt.code, Attempt: 1, Rules: mode, Graph: mode}
			d, err := p.checker.Judge(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			want := said{Runs: d.Action.Runs(), Reason: d.Reason}
			if d.Action == v1.GateAllow {
				want.Reason = ""
			}
			if runs := tt.runs || holds != gate.ModeBlock; want.Runs != runs || !tt.runs && (want.Reason == "") != (holds == gate.ModeOff) {
				t.Errorf("the gate itself: %+v", d)
			}
			for name, open := range doors {
				if got := open(t, req); got != want {
					t.Errorf("%s: %+v, want %+v", name, got, want)
				}
			}
		})
	}
}

// hookDoor runs shell commands as the hook of an agent does. It ignores other code.
func (w *world) hookDoor(dir string) door {
	exec := func(req gate.Request) said { return w.execDoor(req) }
	return func(t *testing.T, req gate.Request) said {
		t.Helper()
		if req.Language != gate.Bash {
			return exec(req)
		}
		got := w.agentRuns(dir, dir, map[string]any{"command": req.Code})
		if _, reason, ok := strings.Cut(got.stderr, "recluse: gate: "); ok {
			return said{Runs: true, Reason: strings.TrimSuffix(reason, "\n")}
		}
		if _, reason, ok := strings.Cut(got.stderr, "recluse: judge code: "); ok {
			reason, _, _ = strings.Cut(reason, "\n  remedy: ")
			return said{Reason: strings.TrimSuffix(reason, "\n")}
		}
		return said{Runs: true}
	}
}

// mcpDoor runs code by the tools of an MCP server.
func (w *world) mcpDoor(name string) door {
	w.t.Helper()
	cl := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	s, err := cl.Connect(w.t.Context(), &sdk.CommandTransport{Command: w.command("mcp", "--session", name, "--keep")}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return toolDoor(s, name)
}

// mcpHTTPDoor runs code by the tools of the server's MCP over HTTP.
func (w *world) mcpHTTPDoor(name string) door {
	w.t.Helper()
	key := strings.TrimSpace(w.must("key", "create", "mcp-"+name))
	socket := w.server().Socket
	base := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	w.t.Cleanup(base.CloseIdleConnections)
	tr := &sdk.StreamableClientTransport{Endpoint: "http://localhost/mcp", HTTPClient: &http.Client{Transport: keyed{key, base}}, DisableStandaloneSSE: true}
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(w.t.Context(), tr, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return toolDoor(s, name)
}

// keyed sends a key with each request.
type keyed struct {
	key  string
	base http.RoundTripper
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return k.base.RoundTrip(r)
}

// toolDoor runs code by tools, in a session by name.
func toolDoor(s *sdk.ClientSession, name string) door {
	return func(t *testing.T, req gate.Request) said {
		t.Helper()
		p := &sdk.CallToolParams{Name: "run_code", Arguments: map[string]any{"code": req.Code, "session": name}}
		if req.Language == gate.Bash {
			p = &sdk.CallToolParams{Name: "run_bash", Arguments: map[string]any{"command": req.Code, "session": name}}
		}
		res, err := s.CallTool(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if !res.IsError {
			out, _ := res.StructuredContent.(map[string]any)
			warning, _ := out["gate_warning"].(string)
			return said{Runs: true, Reason: warning}
		}
		text := res.Content[0].(*sdk.TextContent).Text
		refusal, ok := strings.CutPrefix(text, string(v1.CodeGateRefused)+": judge code: ")
		if !ok {
			t.Fatal(text)
		}
		reason, _, _ := strings.Cut(refusal, " (change the code") // the remedy
		reason, _, _ = strings.Cut(reason, "; change the code")
		return said{Reason: reason}
	}
}

// execDoor runs code by the command line.
func (w *world) execDoor(req gate.Request, args ...string) said {
	args = append([]string{"--json", "exec"}, args...)
	if req.Language == gate.Python {
		args = append(args, "--python", req.Code)
	} else {
		args = append(args, "--", "bash", "-c", req.Code)
	}
	got := w.run("", args...)
	var v struct {
		Metadata map[string]string `json:"metadata"`
		Error    json.RawMessage   `json:"error"`
		Ended    string            `json:"ended"`
	}
	decodeJSON(w.t, got.stdout, &v)
	if v.Ended != "" {
		return said{Runs: true, Reason: v.Metadata[session.MetaGate]}
	}
	var f console.Failure
	decodeJSON(w.t, string(v.Error), &f)
	if f.Code != v1.CodeGateRefused {
		w.t.Fatalf("%+v", got)
	}
	return said{Reason: f.Message}
}

func TestAnExecOfItsOwnPassesTheGate(t *testing.T) {
	w := newWorld(t, "RECLUSE_GATE_RULES=block")
	got := w.run("", "exec", "--", "bash", "-c", "exit 0\nrm -rf /")
	if got.status != statusFailure || !strings.Contains(got.stderr, "rule no-root-removal") || !strings.Contains(got.stderr, "not run") {
		t.Errorf("%+v", got)
	}
	script := filepath.Join(t.TempDir(), "s.py")
	if err := os.WriteFile(script, []byte("import shutil\nshutil.rmtree('/')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := w.run("", "exec", "--python-file", script); got.status != statusFailure || !strings.Contains(got.stderr, "line 2") {
		t.Errorf("%+v", got)
	}
	if got := w.run("", "exec", "--session", "s", "--python-file", script); got.status != statusFailure || !strings.Contains(got.stderr, "line 2") {
		t.Errorf("%+v", got)
	}
	w.env = append(w.env, "RECLUSE_GATE_RULES=warn") // differs from that of the server
	if got := w.run("", "exec", "--session", "s", "--python-file", script); got.status != statusFailure || !strings.Contains(got.stderr, "line 2") {
		t.Errorf("%+v", got)
	}
	if log := w.must("audit", "--session", "s", "--action", "command", "--json"); strings.Count(log, `"gate":"deny"`) != 2 || strings.Count(log, "shutil.rmtree") != 2 {
		t.Errorf("the audit log has %s", log)
	}
	const harmful = "echo on; exit 0\nrm -rf /"
	got = w.run("", "exec", "--", "bash", "-c", harmful)
	if got.status != 0 || got.stdout != "on\n" || !strings.HasPrefix(got.stderr, "recluse: gate: line 1: removes /") || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("a warning is more than a line: %+v", got)
	}
	if got := w.run("", "exec", "-v", "--", "bash", "-c", harmful); got.status != 0 || !strings.Contains(got.stderr, "rule no-root-removal\n  Instead: ") {
		t.Errorf("-v: %+v", got)
	}
	if got := w.run("", "exec", "--gate", "off", "--", "bash", "-c", harmful); got.status != 0 || got.stderr != "" {
		t.Errorf("--gate off: %+v", got)
	}
	if got := w.run("", "exec", "--gate", "block", "--", "bash", "-c", harmful); got.status != statusFailure || got.stdout != "" {
		t.Errorf("--gate block: %+v", got)
	}
	if got := w.run("", "exec", "--session", "t", "--gate", "off", "--", "bash", "-c", harmful); got.status != 0 || got.stderr != "" {
		t.Errorf("--gate off in a session: %+v", got)
	}
	if got := w.run("", "exec", "--session", "t", "--gate", "block", "--", "true"); got.status != statusFailure || !strings.Contains(got.stderr, "its gate is off") {
		t.Errorf("another gate in the session: %+v", got)
	}
	if got := w.run("", "exec", "--gate", "loud", "--", "true"); got.status != statusFailure || !strings.Contains(got.stderr, "off, warn or block") {
		t.Errorf("--gate loud: %+v", got)
	}
}

func TestAPersonAnswersTheGate(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	text := "version: 1\nrules:\n  - name: ask-first\n    action: ask\n    message: pushes\n    when:\n      - {command: push}\n    tests:\n      hit: [{bash: push}]\n      miss: [{bash: pull}]\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "RECLUSE_GATE_RULES=block", "RECLUSE_GATE_RULES_FILE="+rules)
	w.expect("2 tests of 1 rule pass\n", "gate", "test", rules)
	push := func() result { return w.run("", "exec", "--session", "s", "--", "push") }
	if got := push(); got.status != statusFailure || !strings.Contains(got.stderr, "a person must agree") {
		t.Fatalf("%+v", got)
	}
	var questions []gate.Approval
	decodeJSON(t, w.must("gate", "list", "--json"), &questions)
	if len(questions) != 1 || questions[0].Request.Session != "s" {
		t.Fatalf("%+v", questions)
	}
	w.must("gate", "grant", questions[0].ID)
	if got := push(); got.status != 127 { // the code runs, and the program does not exist
		t.Errorf("%+v", got)
	}
	if got := push(); got.status != statusFailure { // a grant is valid for one run
		t.Errorf("%+v", got)
	}
	decodeJSON(t, w.must("gate", "list", "--json"), &questions)
	if len(questions) != 1 {
		t.Fatalf("%+v", questions)
	}
	w.must("gate", "refuse", questions[0].ID, "--note", "not on a Friday")
	if got := push(); got.status != statusFailure || !strings.Contains(got.stderr, "not on a Friday") {
		t.Errorf("%+v", got)
	}
	if got := w.run("", "gate", "grant", questions[0].ID); got.status != statusFailure || !strings.Contains(got.stderr, "already refused") {
		t.Errorf("%+v", got)
	}
	if log := w.must("audit", "--action", "approval", "--json"); strings.Count(log, "granted") != 1 || strings.Count(log, "refused") != 1 {
		t.Errorf("%s", log)
	}
}

func TestQuestionsAndAnswersOutliveTheServer(t *testing.T) {
	w := newWorld(t, "RECLUSE_GATE_RULES=block", "RECLUSE_GATE_TRIES=1")
	remove := func(what string) result { return w.run("", "exec", "--session", "s", "--", "rm", "-rf", "/", what) }
	pending := func() (list []gate.Approval) {
		t.Helper()
		decodeJSON(t, w.must("gate", "list", "--json"), &list)
		return list
	}
	for _, what := range []string{"/nothing/granted", "/nothing/refused", "/nothing/asked"} {
		if got := remove(what); got.status != statusFailure {
			t.Fatalf("%+v", got)
		}
	}
	list := pending()
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	called := 0
	for line := range strings.Lines(w.must("session", "events", "s", "--json")) {
		var e session.Event
		decodeJSON(t, line, &e)
		if e.Kind == "gate" && e.Attrs["escalated"] == "true" && e.Attrs["approval"] != "" && e.Attrs["rules"] == "no-root-removal" {
			called++
		}
	}
	if called != 3 {
		t.Errorf("the session's events tell of %d calls for a person", called)
	}
	w.must("gate", "grant", list[0].ID)
	w.must("gate", "refuse", list[1].ID, "--note", "not on a Friday")
	if err := syscall.Kill(w.server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if left := pending(); len(left) != 1 || left[0].ID != list[2].ID || left[0].Request.Text() != list[2].Request.Text() {
		t.Errorf("of what nobody has answered there is %+v", left)
	}
	if got := remove("/nothing/refused"); got.status != statusFailure || !strings.Contains(got.stderr, "not on a Friday") {
		t.Errorf("the refusal is forgotten: %+v", got)
	}
	if got := remove("/nothing/granted"); got.status == statusFailure {
		t.Errorf("the grant is forgotten: %+v", got)
	}
	w.must("server", "stop")
	if got := remove("/nothing/granted"); got.status != statusFailure {
		t.Errorf("the grant was good for two runs: %+v", got)
	}
	w.must("gate", "grant", list[2].ID) // requested by a server that was killed, answered by the second server after it
	if got := remove("/nothing/asked"); got.status == statusFailure {
		t.Errorf("the grant does not hold: %+v", got)
	}
}

func TestMistakesOfGateCheck(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(bad, []byte("version: 1\nrules:\n  - name: x\n    acton: deny\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no file":          {[]string{"gate", "check", "/no/such.py"}, "cannot read the file"},
		"no language":      {[]string{"gate", "check", "-"}, "--language"},
		"unknown mode":     {[]string{"gate", "check", "--mode", "sometimes", "-"}, "off, warn or block"},
		"misspelt rules":   {[]string{"gate", "check", "--rules", bad, "--language", "bash", "-"}, "rules.yaml:4:5"},
		"tests of nothing": {[]string{"gate", "test", "/no/such.yaml"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := run(t, "ls\n", tt.args...); got.status != statusFailure || !strings.Contains(got.stderr, tt.want) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestAGateThatOnlyWarnsSaysSo(t *testing.T) {
	t.Parallel()
	const code = "rm -rf /\n"
	for mode, want := range map[string]result{
		"warn":  {status: 0, stdout: "-: warn: it would run, because the gate only warns"},
		"block": {status: 1, stdout: "-: deny\n"},
	} {
		if got := run(t, code, "gate", "check", "--language", "bash", "--mode", mode, "-"); got.status != want.status || !strings.Contains(got.stdout, want.stdout) {
			t.Errorf("%s: %+v", mode, got)
		}
	}
}

// The remedy of a refusal names the command that grants it only where a person reads it. A model could run the command.
func TestOnlyAPersonIsToldHowToGrant(t *testing.T) {
	w := newWorld(t, untried, "RECLUSE_GATE_RULES=block")
	dir := project(t)
	const shred = "shred -u n.txt"
	exec := []string{"exec", "--session", "work", "--", "sh", "-c", shred}
	hook := []string{"hook", "run", "--project", dir, "--", shred}
	for _, tt := range []struct {
		name  string
		env   string
		args  []string
		model bool
	}{
		{"exec", "", exec, false},
		{"exec in an agent", "CLAUDECODE=1", exec, true},
		{"hook run", "", hook, true},
		{"hook run --json", "", append([]string{"--json"}, hook...), true},
	} {
		cmd := w.command(tt.args...)
		cmd.Env = append(cmd.Env, tt.env)
		out, err := cmd.CombinedOutput()
		if status(t, err) != statusFailure || !strings.Contains(string(out), "shred") {
			t.Fatalf("%s: %v: %s", tt.name, err, out)
		}
		granted, asked := strings.Contains(string(out), v1.GrantCommand), strings.Contains(string(out), "ask the user")
		if granted == tt.model || asked != tt.model {
			t.Errorf("%s: %s", tt.name, out)
		}
	}
}
