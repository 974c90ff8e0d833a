package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/daemon"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// world is a user with separate directories.
type world struct {
	t    *testing.T
	data string
	env  []string
	self string // the program; empty: the test program
}

// newWorld returns an empty world. Everything that runs in it ends with the test.
func newWorld(t *testing.T, env ...string) *world {
	t.Helper()
	ready(t)
	home, err := os.MkdirTemp("", "recluse-cli-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, data: filepath.Join(home, "data")}
	shared, err := sharedDir()
	if err == nil {
		err = testbin.ShareTemplates(shared, w.data)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.env = append([]string{
		"XDG_DATA_HOME=" + w.data, "XDG_CONFIG_HOME=" + filepath.Join(home, "config"), "XDG_RUNTIME_DIR=" + filepath.Join(home, "run"), "RECLUSE_POOL_ENABLED=false",
		// so that no test touches the machine's own Docker engine
		"DOCKER_HOST=unix://" + filepath.Join(home, "no-engine.sock"),
	}, env...)
	t.Cleanup(func() {
		w.self = ""
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(w.data, "recluse", "server", "server.log"))
			t.Logf("the server's log: %s", log)
		}
		if got := w.run("", "session", "end", "--all"); got.status != 0 {
			t.Errorf("end: %+v", got)
		}
		w.await("no sandbox is left", func() bool { return len(w.sandboxes()) == 0 })
		if got := w.run("", "server", "stop"); got.status != 0 {
			t.Errorf("stop: %+v", got)
		}
		_ = os.RemoveAll(home)
	})
	return w
}

// sharedDir has the root file systems and templates of all worlds. TestMain removes it.
var sharedDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "recluse-cli-shared-") })

// sandboxes lists the sandboxes of the backend.
func (w *world) sandboxes() []string {
	list, err := filepath.Glob(filepath.Join(w.data, "recluse", "gvisor", "sandboxes", "[0-9a-z]*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// murder kills the process of a session's sandbox, and waits until the server has noticed.
func (w *world) murder(name string) {
	w.t.Helper()
	show := func() (i session.Info) {
		decodeJSON(w.t, w.must("session", "show", name, "--json"), &i)
		return i
	}
	i := show()
	files, err := filepath.Glob(filepath.Join(w.data, "recluse", "gvisor", "engine", "*"+i.Sandbox+"*.state"))
	if err != nil || len(files) != 1 {
		w.t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		w.t.Fatal(err)
	}
	var r struct{ Sandbox struct{ PID int } }
	decodeJSON(w.t, string(text), &r)
	if err := syscall.Kill(r.Sandbox.PID, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	w.await("it is noticed", func() bool { now := show(); return now.Sandbox != i.Sandbox || now.State == v1.StateLost })
}

func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	testneed.AwaitFor(w.t, patienceOf, what, ok)
}

func (w *world) command(args ...string) *exec.Cmd {
	w.t.Helper()
	cmd := command(w.t, args...)
	if w.self != "" {
		cmd.Path = w.self
	}
	cmd.Env = append(cmd.Env, w.env...)
	return cmd
}

func (w *world) run(stdin string, args ...string) result {
	w.t.Helper()
	cmd := w.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	return result{status(w.t, err), out.String(), errs.String()}
}

// unread runs a command whose stdout is a pipe without a reader, and returns its exit status and stderr.
func (w *world) unread(args ...string) string {
	w.t.Helper()
	r, out, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	r.Close()
	defer out.Close()
	cmd := w.command(args...)
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &errs
	return fmt.Sprintf("%v and %q", cmd.Run(), errs.String())
}

// must runs a command that must succeed, and returns its output.
func (w *world) must(args ...string) string {
	w.t.Helper()
	got := w.run("", args...)
	if got.status != 0 {
		w.t.Fatalf("recluse %s: %+v", strings.Join(args, " "), got)
	}
	return got.stdout
}

// expect runs a command and compares its output.
func (w *world) expect(want string, args ...string) {
	w.t.Helper()
	if got := w.must(args...); got != want {
		w.t.Errorf("recluse %s: got %q, want %q", strings.Join(args, " "), got, want)
	}
}

// server returns the status of the running server.
func (w *world) server() daemon.Status {
	w.t.Helper()
	var s daemon.Status
	decodeJSON(w.t, w.must("server", "status", "--json"), &s)
	return s
}

func decodeJSON(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
}

func TestSessionAcrossInvocations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.expect("", "exec", "--session", "work", "--python", "x = 41")
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	w.expect("hi\n", "exec", "--session", "work", "--", "sh", "-c", "echo hi | tee /home/user/f")
	w.expect("hi\n", "exec", "--session", "work", "--", "cat", "f")

	var list []session.Info
	decodeJSON(t, w.must("session", "list", "--json"), &list)
	if len(list) != 1 || list[0].Key.Name != "work" || list[0].State != v1.StateReady {
		t.Errorf("list: %+v", list)
	}
	if got := w.must("session", "show", "work"); !strings.Contains(got, "ready") {
		t.Errorf("show: %s", got)
	}
	if got := w.must("session", "extend", "work", "--for", "30m"); !strings.Contains(got, "work does not expire") {
		t.Errorf("extend: %s", got)
	}
	w.must("session", "vars", "set", "work", "goal=a b", "n=1")
	w.expect("goal=a b\nn=1\n", "session", "vars", "list", "work")
	w.expect("a b\n", "session", "vars", "get", "work", "goal")
	w.must("session", "vars", "delete", "work", "goal")
	if got := w.run("", "session", "vars", "get", "work", "goal", "--json"); !strings.Contains(got.stdout, "variable_not_found") || got.status != statusMissing {
		t.Errorf("deleted variable: %+v", got)
	}
	if got := w.must("session", "events", "work"); !strings.Contains(got, "state") {
		t.Errorf("events: %s", got)
	}
	if got := w.must("audit", "--session", "work"); !strings.Contains(got, "x = 41") {
		t.Errorf("audit: %s", got)
	}
	if got := w.must("audit", "--since", "1h", "--limit", "2", "--json"); strings.Count(got, "\n") != 2 || strings.Contains(got, "x = 41") {
		t.Errorf("the last two entries: %s", got)
	}
	if got := w.must("audit", "--since", "2100-01-01"); got != "" {
		t.Errorf("entries of the future: %s", got)
	}
	if err := w.unread("audit"); err != "exit status 141 and \"\"" {
		t.Errorf("output whose reader has closed it: %s", err)
	}
	if err := w.unread("exec", "--help"); err != "exit status 141 and \"\"" {
		t.Errorf("a help that nobody reads: %s", err)
	}
	w.must("session", "restart-interpreter", "work")
	w.expect("0\n", "exec", "--session", "work", "--python", "int('x' in globals())")
	w.expect("hi\n", "exec", "--session", "work", "--", "cat", "f")
	w.must("gc")
	w.must("session", "end", "work")
	for code, args := range map[v1.Code][]string{
		v1.CodeSessionNotFound: {"session", "end", "work"},
		v1.CodeKeyUnknown:      {"key", "revoke", "nosuch"},
		v1.CodeNotFound:        {"session", "restart-interpreter", "live", "--context", "nosuch"},
	} {
		w.must("session", "open", "live")
		if got := w.run("", append(args, "--json")...); got.status != statusMissing || !strings.Contains(got.stdout, `"`+string(code)+`"`) {
			t.Errorf("%s: %+v", args, got)
		}
	}
	// the status 1 of resume is that of the run
	for verb, want := range map[string]int{"show": statusMissing, "resume": statusFailure} {
		if got := w.run("", "runs", verb, "nosuch"); got.status != want || !strings.Contains(got.stderr, "nosuch") {
			t.Errorf("%s of a run that does not exist: %+v", verb, got)
		}
	}
	if got := w.run("", "session", "end", "nosuch", "live", "nosuch2"); got.status != statusMissing || !strings.Contains(got.stderr, `"nosuch"`) || !strings.Contains(got.stderr, `"nosuch2"`) {
		t.Errorf("one of three: %+v", got)
	}
	w.must("session", "open", "live")
	var ended struct{ Ended []string }
	got := w.run("", "session", "end", "--json", "nosuch", "live")
	if decodeJSON(t, got.stdout, &ended); got.status != statusMissing || !slices.Equal(ended.Ended, []string{"live"}) || !strings.Contains(got.stderr, "nosuch") {
		t.Errorf("one of two as JSON: %+v", got)
	}
	for _, name := range []string{"live", "work"} {
		if got := w.run("", "session", "show", name); got.status != statusMissing || !strings.Contains(got.stderr, name) {
			t.Errorf("show after end: %+v", got)
		}
	}
	if got := w.run("", "session", "open", "a:b", "--json"); got.status != statusFailure || !strings.Contains(got.stdout, string(v1.CodeInvalidKey)) {
		t.Errorf("a name with a colon: %+v", got)
	}
	w.expect("0\n", "exec", "--session", "work", "--python", "int('x' in globals())") // the name is free
}

func TestSessionHibernatesPausesAndResumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--python", "x = 41")
	id := strings.TrimSpace(w.must("exec", "--session", "work", "--background", "--", "sleep", "1000"))
	w.expect("work hibernated\n", "session", "hibernate", "work")
	if got := w.must("ps", "work"); !strings.Contains(got, id) || !strings.Contains(got, "asleep") {
		t.Errorf("ps: %s", got)
	}
	if got := w.must("session", "list"); !strings.Contains(got, "hibernated") {
		t.Errorf("after ps: %s", got)
	}
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	w.must("kill", "work", id)
	w.await("it has ended", func() bool { return !strings.Contains(w.must("ps", "work"), id) })
	w.expect("work paused\n", "session", "pause", "work")
	w.expect("work ready\n", "session", "resume", "work")
	w.expect("43\n", "exec", "--session", "work", "--python", "x + 2")
}

func TestSnapshotsAndForks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--python", "x = 1")
	w.must("snapshot", "save", "work", "warm")
	w.must("exec", "--session", "work", "--python", "x = 2")
	if got := w.must("snapshot", "list", "work"); !strings.Contains(got, "work@warm") {
		t.Errorf("list: %s", got)
	}
	w.must("snapshot", "restore", "work@warm")
	w.expect("1\n", "exec", "--session", "work", "--python", "x")
	w.must("snapshot", "restore", "work@warm", "--as", "other")
	w.expect("1\n", "exec", "--session", "other", "--python", "x")
	w.expect("work-1\nwork-2\nwork-3\n", "fork", "work", "--count", "3")
	for _, name := range []string{"work-1", "work-2", "work-3"} {
		w.expect("1\n", "exec", "--session", name, "--python", "x")
	}
	w.must("snapshot", "delete", "work@warm")
	if got := w.run("", "snapshot", "restore", "work@warm"); got.status != 1 {
		t.Errorf("restore of a deleted snapshot: %+v", got)
	}
	w.must("snapshot", "save", "work", "a")
	w.must("snapshot", "save", "work", "b")
	w.must("snapshot", "delete", "work", "--all")
	if got := w.must("snapshot", "list", "work", "--json"); strings.TrimSpace(got) != "[]" {
		t.Errorf("after --all: %s", got)
	}
}

func TestALostStateIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--python", "x = 1")
	w.must("snapshot", "save", "work", "warm")
	for _, args := range [][]string{{}, {"--json"}} {
		w.must("exec", "--session", "work", "--python", "x = 2")
		w.murder("work")
		got := w.run("", append(append([]string{"exec"}, args...), "--session", "work", "--python", "x")...)
		where := got.stderr
		if len(args) > 0 {
			var v sandbox.Verdict
			decodeJSON(t, got.stdout, &v)
			where = v.Metadata[session.MetaStateFrom]
			got.stdout = v.Result.Text() + "\n"
		}
		if got.status != 0 || got.stdout != "1\n" || !strings.Contains(where, strconv.Itoa(time.Now().Year())) {
			t.Errorf("%v: %+v", args, got)
		}
		if got := w.run("", "exec", "--session", "work", "--python", "x"); got.stderr != "" {
			t.Errorf("told twice: %+v", got)
		}
	}
	w.must("exec", "--session", "work", "--", "touch", "gone")
	w.murder("work")
	talkInTerminal(t, w.command("shell", "--session", "work"), 1, func(master *os.File, screen *heard) {
		say(t, master, "ls gone; exit 1\r")
		screen.await(t, "its state is that of")
	})
}

func TestSessionExecIsLikeExec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "s")
	for _, tt := range []struct {
		name   string
		stdin  string
		args   []string
		status int
		stdout string
		stderr string
	}{
		{"exception", "", []string{"--python", "print('before')\n1/0"}, 1, "before\n", "ZeroDivisionError"},
		{"code from the input", "print(6*7)", []string{"--python", "-"}, 0, "42\n", ""},
		{"input of a cell", "bob\n", []string{"--python", "print(input())"}, 0, "bob\n", ""},
		{"input of a command", "data\n", []string{"--", "wc", "-c"}, 0, "5\n", ""},
		{"streams apart", "", []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n", "err\n"},
		{"time-out", "", []string{"--timeout", "1s", "--", "sh", "-c", "echo so far; sleep 60"}, 124, "so far\n", "timed out after 1."},
		{"signal", "", []string{"--", "sh", "-c", "kill -SEGV $$"}, 139, "", "SIGSEGV"},
		{"not found", "", []string{"--", "no-such-program"}, 127, "", "did not start"},
		{"environment of one command", "", []string{"--env", "K=a=b", "--", "printenv", "K"}, 0, "a=b\n", ""},
		{"directory of one command", "", []string{"--dir", "/tmp", "--", "pwd"}, 0, "/tmp\n", ""},
		{"survivors stay", "", []string{"--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo done"}, 0, "done\n", "1 process is still running in the session"},
		{"another interpreter", "", []string{"--context", "b", "--python", "y = 1\ny"}, 0, "1\n", ""},
		{"another sandbox", "", []string{"--memory", "300m", "--", "true"}, 125, "", "differs in memory (512 MiB, requested 300 MiB)"},
		{"consent is the server's", "", []string{"--allow-no-isolation", "--", "true"}, 125, "", "configuration of their server"},
		{"cell in the background", "", []string{"--background", "--python", "1"}, 125, "", "--background cannot be used"},
		{"nothing to run", "", nil, 125, "", "nothing to run"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := w.run(tt.stdin, append([]string{"exec", "--session", "s"}, tt.args...)...)
			if got.status != tt.status || got.stdout != tt.stdout {
				t.Errorf("status %d, stdout %q; want %d, %q; stderr %q", got.status, got.stdout, tt.status, tt.stdout, got.stderr)
			}
			if tt.stderr == "" && got.stderr != "" || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("stderr %q, want %q", got.stderr, tt.stderr)
			}
		})
	}
	t.Run("script", func(t *testing.T) {
		script := filepath.Join(t.TempDir(), "s.py")
		if err := os.WriteFile(script, []byte("import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(5)\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := w.run("data", "exec", "--session", "s", "--python-file", script, "x", "-y"); got.status != 5 || got.stdout != "['x', '-y'] data\n" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("verdict as JSON", func(t *testing.T) {
		var v struct {
			Ended  string
			Status int
			Stdout struct{ Text string }
		}
		got := w.run("", "exec", "--session", "s", "--json", "--", "sh", "-c", "echo out; exit 3")
		decodeJSON(t, got.stdout, &v)
		if got.status != 3 || v.Status != 3 || v.Stdout.Text != "out\n" || got.stderr != "" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		cmd := w.command("exec", "--session", "s", "--", "sh", "-c", "trap '' INT TERM; echo up; sleep 600")
		out, errs := newHeard(), newHeard()
		cmd.Stdout, cmd.Stderr = out, errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out.await(t, "up")
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		if got := status(t, cmd.Wait()); got != 130 || !strings.Contains(errs.String(), "cancelled by SIGINT") {
			t.Errorf("status %d, %q", got, errs)
		}
		var ops []struct{ Kind, Command string }
		decodeJSON(t, w.must("ps", "s", "--json"), &ops)
		for _, o := range ops {
			if o.Kind != "process" || strings.Contains(o.Command, "600") { // commands before this one have left processes
				t.Errorf("still running: %+v", o)
			}
		}
	})
}

func TestCommandsInTheBackground(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := strings.TrimSpace(w.must("exec", "--session", "work", "--background", "--", "sh", "-c", "echo one; exec sleep 600"))
	if got := w.must("ps", "work"); !strings.Contains(got, id) || !strings.Contains(got, "running") {
		t.Errorf("ps: %s", got)
	}
	w.await("its output is there", func() bool { return w.must("logs", "work", id) == "one\n" })
	follow := w.command("logs", "work", id, "--follow")
	out := newHeard()
	follow.Stdout = out
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "one\n")
	var ops []struct {
		ID  string
		PID int
	}
	decodeJSON(t, w.must("ps", "work", "--json"), &ops)
	if len(ops) != 1 || ops[0].ID != id || ops[0].PID == 0 {
		t.Fatalf("ps: %+v", ops)
	}
	number := strconv.Itoa(ops[0].PID)
	for _, word := range []string{number, id[:len(id)-1]} {
		if got := w.must("logs", "work", word); got != "one\n" {
			t.Errorf("logs of %s: %q", word, got)
		}
	}
	w.must("kill", "work", number)
	if got := status(t, follow.Wait()); got != 0 {
		t.Errorf("logs --follow: status %d, %s", got, out)
	}
	if got := w.run("", "kill", "work", "nothing"); got.status != 1 || !strings.Contains(got.stderr, "cell or command not found") {
		t.Errorf("kill of nothing: %+v", got)
	}
	if got := w.run("", "kill", "work", id, "--signal", "NOSUCH"); got.status != 125 {
		t.Errorf("unknown signal: %+v", got)
	}
}

func TestKeysAndAnotherServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := strings.TrimSpace(w.must("key", "create", "ci"))
	_, errs := w.serveByHand("--listen", "127.0.0.1:0")
	_, rest, ok := strings.Cut(errs.String(), "listening on ")
	if !ok {
		t.Fatal(errs)
	}
	url, _, _ := strings.Cut(rest, "\n")
	far := &world{t: t, data: w.data, env: append(w.env, "RECLUSE_CLIENT_URL="+url, "RECLUSE_CLIENT_KEY="+key)}
	far.expect("42\n", "exec", "--session", "far", "--python", "6 * 7")
	// Without --session, the command also runs there, in a new sandbox that ends with it.
	far.env = append(far.env, "RECLUSE_BACKEND_ORDER=abacus") // unusable on this side
	far.expect("1 /tmp\n", "exec", "--env", "A=1", "--dir", "/tmp", "--", "sh", "-c", "echo $A $PWD")
	far.expect("42\n", "exec", "--python", "6 * 7")
	if got := far.run("", "exec", "--", "sh", "-c", "exit 3"); got.status != 3 {
		t.Errorf("its exit status: %+v", got)
	}
	var left []struct{ Key struct{ Name string } }
	if decodeJSON(t, far.must("session", "list", "--json"), &left); len(left) != 1 || left[0].Key.Name != "far" {
		t.Errorf("sessions that are left: %+v", left)
	}
	if got := far.must("config", "show"); strings.Contains(got, key) || !strings.Contains(got, "[redacted]") {
		t.Errorf("the key is shown: %s", got)
	}
	var keys []struct{ ID, Name string }
	decodeJSON(t, w.must("key", "list", "--json"), &keys)
	if len(keys) != 1 || keys[0].Name != "ci" {
		t.Fatalf("%+v", keys)
	}
	w.must("key", "revoke", keys[0].ID)
	if got := far.run("", "session", "list"); got.status != 125 || !strings.Contains(got.stderr, "revoked") {
		t.Errorf("with a revoked key: %+v", got)
	}
}

func TestDataDirectoryThatAnotherProgramHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := &app{stdin: os.Stdin, stdout: io.Discard, stderr: io.Discard}
	b, err := session.New(t.Context(), session.Options{Backends: a.backends(t.Context()), DataDir: filepath.Join(w.data, "recluse"), NoPool: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	got := w.run("", "session", "list")
	if got.status != 125 || !strings.Contains(got.stderr, strconv.Itoa(os.Getpid())) {
		t.Errorf("%+v", got)
	}
	if err := b.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	w.must("session", "list")
}

func TestCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		return p
	}
	same := func(name, want string) {
		t.Helper()
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	data := write("data.csv", "a,b\n")
	write("tree/one", "1")
	write("tree/sub/two", "2")
	if err := os.Symlink("one", filepath.Join(dir, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	listed := func(want map[string]string, args ...string) { // name and path of each file, and its content
		t.Helper()
		var got struct{ Manifest []v1.Uploaded }
		decodeJSON(t, w.must(append(args, "--json")...), &got)
		for _, u := range got.Manifest {
			content, ok := want[string(u.Name)+" "+string(u.Path)]
			if !ok || u.Size != int64(len(content)) || u.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte(content))) {
				t.Errorf("%v: %+v", args, u)
			}
		}
		if len(got.Manifest) != len(want) {
			t.Errorf("%v: %+v", args, got.Manifest)
		}
	}
	tree := filepath.Join(dir, "tree")
	listed(map[string]string{data + " /home/user/data.csv": "a,b\n"}, "cp", data, "work:/home/user/")
	w.expect("a,b\n", "exec", "--session", "work", "--", "cat", "/home/user/data.csv")
	w.expect("a,b\n", "cp", "work:data.csv", "-")
	listed(map[string]string{"/home/user/data.csv " + filepath.Join(dir, "back.csv"): "a,b\n"}, "cp", "work:data.csv", filepath.Join(dir, "back.csv"))
	same("back.csv", "a,b\n")
	listed(map[string]string{tree + "/one /home/user/t/one": "1", tree + "/sub/two /home/user/t/sub/two": "2"}, "cp", tree, "work:t")
	w.must("exec", "--session", "work", "--", "ln", "t/one", "t/same")
	listed(map[string]string{
		"/home/user/t/one " + dir + "/hard/one": "1", "/home/user/t/same " + dir + "/hard/same": "1", "/home/user/t/sub/two " + dir + "/hard/sub/two": "2",
	}, "cp", "work:t", filepath.Join(dir, "hard"))
	w.expect("12", "exec", "--session", "work", "--", "cat", "t/link", "t/sub/two")
	w.must("cp", "-r", filepath.Join(dir, "tree"), "work:t") // the directory exists, so the copy goes into it
	w.expect("1", "exec", "--session", "work", "--", "cat", "t/tree/one")
	w.must("cp", filepath.Join(dir, "tree")+"/.", "work:t")
	w.must("exec", "--session", "work", "--", "sh", "-c", "ln -s /etc/passwd t/out; ln -s ../../.. t/up; mkfifo t/pipe")
	got := w.run("", "cp", "work:t", filepath.Join(dir, "back"))
	if got.status != 0 || !strings.Contains(got.stderr, "outside of the copied directory") {
		t.Errorf("%+v", got)
	}
	same("back/one", "1")
	same("back/sub/two", "2")
	same("back/link", "1")
	for _, name := range []string{"back/out", "back/up", "back/pipe"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if got := w.run("x", "cp", "-", "work:new"); got.status != 0 {
		t.Errorf("%+v", got)
	}
	w.expect("x", "cp", "work:new", "-")
	w.must("session", "open", "elsewhere", "--dir", "/var/tmp")
	w.must("cp", data, "elsewhere:")
	w.must("cp", data, "elsewhere:data.csv")
	w.expect("a,b\n", "exec", "--session", "elsewhere", "--", "cat", "/var/tmp/data.csv")
	w.must("session", "end", "elsewhere")
	// Bad input.
	for name, args := range map[string][]string{
		"nothing of a session": {"a", "b"}, "two sessions": {"work:a", "other:b"}, "fifo": {"work:t/pipe", filepath.Join(dir, "p")},
		"no such directory": {data, "work:/home/user/no/"}, "never replace inside": {"-n", data, "work:data.csv"}, "never replace here": {"-n", "work:data.csv", data},
	} {
		if got := w.run("", append([]string{"cp"}, args...)...); got.status != statusFailure || got.stderr == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, args := range map[string][]string{
		"missing file": {filepath.Join(dir, "no"), "work:x"}, "missing file inside": {"work:no", dir}, "no session": {"nobody:x", dir},
	} {
		if got := w.run("", append([]string{"cp"}, args...)...); got.status != statusMissing || got.stderr == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	same("data.csv", "a,b\n")
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_LIMITS_MEMORY=300m")
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("session:\n  idle: 2h\n")
	var i session.Info
	decodeJSON(t, w.must("session", "open", "work", "--config", file, "--json"), &i)
	if i.Policy.Idle.Std() != 2*time.Hour || i.Spec.Limits.Memory != 300<<20 {
		t.Errorf("%+v", i)
	}
	w.must("exec", "--session", "work", "--", "true") // it keeps what it has
	if got := w.must("config", "show", "--config", file); !strings.Contains(got, file+":2") || !strings.Contains(got, "RECLUSE_LIMITS_MEMORY") {
		t.Errorf("%s", got)
	}
	write("sesion:\n  idle: 2h\n")
	for _, args := range [][]string{{"config", "show"}, {"exec", "--", "true"}, {"session", "list"}, {"serve"}} {
		if got := w.run("", append([]string{"--config", file}, args...)...); got.status != 125 || !strings.Contains(got.stderr, "did you mean session?") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.must("__complete", "session", "show", ""); strings.Contains(got, "work") {
		t.Errorf("%s", got)
	}
	if got := w.run("", "server", "status"); got.status != 1 {
		t.Errorf("completion started a server: %+v", got)
	}
	w.must("session", "open", "work")
	w.must("snapshot", "save", "work", "warm")
	for want, args := range map[string][]string{
		"work\tready": {"session", "show", "w"}, "work@warm": {"snapshot", "restore", ""}, "work:": {"cp", "wo"}, "work\t": {"exec", "--session", ""},
		"block": {"exec", "--gate", ""},
	} {
		if got := w.must(append([]string{"__complete"}, args...)...); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
}

func TestShellInASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--", "sh", "-c", "echo kept > f")
	talkInTerminal(t, w.command("shell", "--session", "work"), 9, func(master *os.File, screen *heard) {
		// A shell that starts, or is interrupted, may drop what is typed meanwhile: each line is typed at a prompt, and
		// prompts are counted.
		screen.await(t, "$ ")
		say(t, master, "PS1='at $((n+=1))> '\r")
		screen.await(t, "at 1> ")
		say(t, master, "echo size $(stty size) $(cat f) $((40+2))\r")
		screen.await(t, "size 33 99 kept 42")
		screen.await(t, "at 2> ")
		say(t, master, "\x03")
		screen.await(t, "^C")
		// A bash that is interrupted while it prints its prompt prints none until a key is pressed.
		pressed := time.Now()
		w.await("a prompt after an interrupt", func() bool {
			if time.Since(pressed) > time.Second {
				say(t, master, "\r")
				pressed = time.Now()
			}
			return strings.Contains(screen.String(), "at 3> ")
		})
		say(t, master, "echo more > g; exit 9\r")
	})
	w.expect("more\n", "exec", "--session", "work", "--", "cat", "g")
}

func TestASessionKeepsTheEnvironmentAndDirectoryItWasOpenedWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "es", "--env", "A=1", "--dir", "/tmp")
	w.expect("1 /tmp\n", "exec", "--session", "es", "--", "sh", "-c", "echo $A $(pwd)")
	w.expect("2 /tmp\n", "exec", "--session", "es", "--env", "A=2", "--", "sh", "-c", "echo $A $(pwd)")
	w.expect("'1'\n", "exec", "--session", "es", "--python", "import os; os.environ['A']")
}

func TestOutputIsBoundedForASessionAndForACall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "work", "--output", "2k")
	print := []string{"exec", "--session", "work", "--json", "--inline-bytes", "100", "--spool-bytes", "1k", "--", "sh", "-c", "seq -w 1000"}
	var v v1.Verdict
	decodeJSON(t, w.must(print...), &v)
	if v.Stdout.Produced != 5000 || v.Stdout.Kept() != 100 || v.Stdout.InFile != 1024 {
		t.Errorf("%+v", v.Stdout)
	}
	if got := w.run("", print...); got.status != 125 || !strings.Contains(got.stdout, "session_limit") {
		t.Errorf("a session that has produced its output: %+v", got)
	}
	if got := w.run("", "session", "open", "other", "--output", "-1"); got.status != 125 {
		t.Errorf("%+v", got)
	}
}
