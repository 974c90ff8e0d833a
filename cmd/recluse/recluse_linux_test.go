package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/doctor"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// asRecluse is the environment variable that makes the test program recluse itself, so that exit statuses and signals
// are those of a real process.
const asRecluse = "RECLUSE_TEST_AS_RECLUSE"

// patienceOf is the timeout of one invocation. On a busy machine, the first one makes a template.
const patienceOf = 90 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asRecluse) != "" {
		main()
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		if shared, err := sharedDir(); err == nil {
			_ = os.RemoveAll(shared) // the system removes what stays in its temporary directory
		}
		os.Exit(status)
	}))
}

// ready skips a test if no sandbox can be made. In CI it fails the test.
func ready(t *testing.T) {
	t.Helper()
	testneed.Sandboxes(t)
	for _, find := range []func(context.Context) (bundle.Program, error){bundle.Engine, bundle.Guest} {
		if _, err := find(t.Context()); err != nil {
			testneed.Lacking(t, err)
		}
	}
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patienceOf)
	t.Cleanup(cancel)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asRecluse+"=1", "RECLUSE_ENV=",
		// an agent may run the tests, but not recluse
		"CLAUDECODE=", "OPENCODE=", "CODEX_SANDBOX=", "CODEX_THREAD_ID=", "CURSOR_AGENT=")
	// A process that hangs prints its goroutines.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

type result struct {
	status         int
	stdout, stderr string
}

func status(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	e, ok := errors.AsType[*exec.ExitError](err)
	if !ok || e.ExitCode() < 0 {
		t.Fatal(err)
	}
	return e.ExitCode()
}

func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	return result{status(t, err), out.String(), errs.String()}
}

func TestExec(t *testing.T) {
	ready(t)
	script := filepath.Join(t.TempDir(), "s.py")
	if err := os.WriteFile(script, []byte("import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(5)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		stdin  string
		args   []string
		status int
		stdout string
		stderr string // a part of it; "": nothing at all
	}{
		{"another kernel", "", []string{"--python", "import platform; print(platform.release() != '" + doctor.HostKernel() + "')"}, 0, "True\n", ""},
		{"value of the last expression", "", []string{"--python", "x = 20\nx + 1"}, 0, "21\n", ""},
		{"None is not printed", "", []string{"--python", "None"}, 0, "", ""},
		{"exception", "", []string{"--python", "print('before')\n1/0"}, 1, "before\n", "ZeroDivisionError: division by zero"},
		{"exit of a cell", "", []string{"--python", "import sys; sys.exit(3)"}, 3, "", ""},
		{"code from the input", "print(6*7)", []string{"--python", "-"}, 0, "42\n", ""},
		{"input of a cell", "bob\n", []string{"--python", "print(input())"}, 0, "bob\n", ""},
		{"arguments of a cell", "", []string{"--python", "import sys; print(sys.argv)", "a", "-b"}, 0, "['-c', 'a', '-b']\n", ""},
		{"script", "data", []string{"--python-file", script, "x", "-y"}, 5, "['x', '-y'] data\n", ""},
		{"input of a command", "data\n", []string{"--", "wc", "-c"}, 0, "5\n", ""},
		{"no input", "data\n", []string{"-n", "--", "wc", "-c"}, 0, "0\n", ""},
		{"streams apart", "", []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n", "err\n"},
		{"time-out", "", []string{"--timeout", "1s", "--", "sh", "-c", "echo so far; sleep 60"}, 124, "so far\n", "recluse: timed out after 1."},
		{"limits of memory and processors", "", []string{"--memory", "128m", "--cpus", "0.5", "--python", "import os, subprocess as s\nprint(os.environ['OMP_NUM_THREADS'], s.run(['python3', '-c', 'x = []\\nwhile True: x.append(bytearray(8 << 20))']).returncode)"}, 0, "1 -9\n", "1 process killed: out of memory (limit 128 MiB)"},
		{"memory", "", []string{"--memory", "128m", "--", "python3", "-c", "x = []\nwhile True: x.append(bytearray(8 << 20))"}, 137, "", "recluse: killed: out of memory"},
		{"signal", "", []string{"--", "sh", "-c", "kill -SEGV $$"}, 139, "", "recluse: ended by SIGSEGV"},
		{"not found", "", []string{"--", "no-such-program"}, 127, "", "recluse: did not start: no-such-program"},
		{"not executable", "", []string{"--", "/etc/passwd"}, 126, "", "recluse: did not start: /etc/passwd"},
		{"environment", "", []string{"--env", "K=a=b", "--", "printenv", "K"}, 0, "a=b\n", ""},
		{"directory", "", []string{"--dir", "/tmp", "--", "pwd"}, 0, "/tmp\n", ""},
		{"survivors are told of", "", []string{"--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo done"}, 0, "done\n", "1 process was still running"},
		{"survivors by request", "", []string{"--kill-survivors", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo done"}, 0, "done\n", ""},
		{"consent", "", []string{"--backend", "local", "--", "true"}, 125, "", "--allow-no-isolation"},
		{"warning", "", []string{"--backend", "local", "--allow-no-isolation", "--", "echo", "hi"}, 0, "hi\n", "recluse: warning: code will run WITHOUT isolation"},
		{"limit that is refused", "", []string{"--backend", "local", "--allow-no-isolation", "--memory", "256m", "--", "true"}, 125, "", "limit memory: the local backend does not support this"},
		{"limit that is not kept", "", []string{"--backend", "local", "--allow-no-isolation", "--cpus", "1", "--", "echo", "hi"}, 0, "hi\n", "warning: the local backend does not guarantee a limit on cpus"},
		{"unknown backend", "", []string{"--backend", "nix", "--", "true"}, 125, "", "remedy: known backends: docker, e2b, gvisor, local, modal, prime"},
		{"unknown flag", "", []string{"--no-such-flag", "--", "true"}, 125, "", "recluse: unknown flag"},
		{"memory of nothing", "", []string{"--memory", "0", "--", "true"}, 125, "", "above zero"},
		{"memory below what boots", "", []string{"--memory", "1m", "--", "true"}, 125, "", "below the minimum of 64 MiB"},
		{"forbidden mount", "", []string{"--mount", "/etc:/x", "--", "true"}, 125, "", "recluse: mount /etc"},
		{"shown values without a cell", "", []string{"--save-display", "x", "--", "true"}, 125, "", "needs --python"},
		{"nothing to run", "", nil, 125, "", "nothing to run"},
		{"script that is not there", "", []string{"--python-file", script + ".not"}, 125, "", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := run(t, tt.stdin, append([]string{"exec"}, tt.args...)...)
			if got.status != tt.status || got.stdout != tt.stdout {
				t.Errorf("status %d, stdout %q; want %d, %q", got.status, got.stdout, tt.status, tt.stdout)
			}
			if tt.stderr == "" && got.stderr != "" || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("stderr %q, want %q", got.stderr, tt.stderr)
			}
		})
	}
}

func TestExecJSON(t *testing.T) {
	ready(t)
	got := run(t, "", "exec", "--json", "--timeout", "1s", "--", "sh", "-c", "echo out; echo err >&2; sleep 60")
	var v struct {
		Ended          string
		Status         int
		Stdout, Stderr struct{ Text string }
	}
	if err := json.Unmarshal([]byte(got.stdout), &v); err != nil {
		t.Fatalf("%v in %q", err, got.stdout)
	}
	if got.stderr != "" {
		t.Errorf("stderr %q: the verdict says it all", got.stderr)
	}
	if got.status != 124 || v.Status != 124 || v.Ended != "timeout" || v.Stdout.Text != "out\n" || v.Stderr.Text != "err\n" {
		t.Errorf("status %d, verdict %+v", got.status, v)
	}
	got = run(t, "", "exec", "--json", "--memory", "1m", "--", "true")
	var f struct{ Error console.Failure }
	if err := json.Unmarshal([]byte(got.stdout), &f); err != nil || f.Error.Code != "invalid_spec" || got.status != 125 || got.stderr != "" {
		t.Errorf("status %d, %q, %q, %v", got.status, got.stdout, got.stderr, err)
	}
}

func TestNobodyReads(t *testing.T) {
	ready(t)
	cmd := command(t, "exec", "--", "yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	if got := status(t, cmd.Wait()); got != statusPipe {
		t.Errorf("status %d, want %d", got, statusPipe)
	}
}

// heard collects output, and can wait for a text in it.
type heard struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	news chan struct{}
}

func newHeard() *heard { return &heard{news: make(chan struct{}, 1)} }

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Write(p)
	select {
	case h.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.buf.String()
}

func (h *heard) await(t *testing.T, what string) {
	t.Helper()
	limit := time.After(patienceOf)
	for !strings.Contains(h.String(), what) {
		select {
		case <-h.news:
		case <-limit:
			t.Fatalf("%q did not come: %q", what, h.String())
		}
	}
}

// onTerminal runs recluse on a new terminal and calls talk, which types. It checks that the terminal is restored.
func onTerminal(t *testing.T, want int, talk func(master *os.File, screen *heard), args ...string) {
	t.Helper()
	talkInTerminal(t, command(t, args...), want, talk)
}

func talkInTerminal(t *testing.T, cmd *exec.Cmd, want int, talk func(master *os.File, screen *heard)) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	resize(t, master, 33, 99)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	screen := newHeard()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			_, _ = screen.Write(buf[:n])
		}
	}()
	defer func() {
		if t.Failed() {
			t.Logf("screen: %s", screen)
		}
	}()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	talk(master, screen)
	if got := status(t, cmd.Wait()); got != want {
		t.Errorf("status %d, want %d", got, want)
	}
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if *after != *before {
		t.Errorf("the terminal was left as %+v, and was %+v", after, before)
	}
}

func resize(t *testing.T, master *os.File, rows, cols uint16) {
	t.Helper()
	if err := pty.Setsize(master, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		t.Fatal(err)
	}
}

func say(t *testing.T, master *os.File, line string) {
	t.Helper()
	if _, err := master.WriteString(line); err != nil {
		t.Fatal(err)
	}
}

func TestShell(t *testing.T) {
	ready(t)
	onTerminal(t, 9, func(master *os.File, screen *heard) {
		// The awaited text is computed inside, so that the echo of the typed line does not match.
		say(t, master, "echo size $(stty size) $((40+2))\r")
		screen.await(t, "size 33 99 42")
		say(t, master, "exit 9\r")
		screen.await(t, `"exit_code": 9`) // the verdict, on stderr
	}, "shell", "--json")
}

// watcher is a program that reports every signal and line from its terminal.
const watcher = `import os, signal, sys
def size(*_): print("size", *os.get_terminal_size(), flush=True)
def interrupt(*_): print("interrupted", os.getpid() > 0, flush=True)
signal.signal(signal.SIGWINCH, size)
signal.signal(signal.SIGINT, interrupt)
size()
for line in sys.stdin:
    if line.strip() == "leave": sys.exit(11)
    print("heard", line.strip().upper(), flush=True)
`

func TestTerminal(t *testing.T) {
	ready(t)
	onTerminal(t, 11, func(master *os.File, screen *heard) {
		screen.await(t, "size 99 33")
		resize(t, master, 44, 111)
		screen.await(t, "size 111 44")
		say(t, master, "\x03")
		screen.await(t, "interrupted True")
		say(t, master, "word\r")
		screen.await(t, "heard WORD")
		say(t, master, "leave\r")
	}, "shell", "--", "python3", "-c", watcher)
}

func TestShellWithoutTerminal(t *testing.T) {
	got := run(t, "", "shell")
	if got.status != 125 || !strings.Contains(got.stderr, "not a terminal") {
		t.Errorf("%+v", got)
	}
}

func TestDoctor(t *testing.T) {
	ready(t)
	got := run(t, "", "doctor", "--json")
	var d doctor.Report
	// Levels of isolation are written by their names and not read back.
	if err := json.Unmarshal([]byte(got.stdout), &struct {
		Chosen *string
		Trial  **doctor.Trial
	}{&d.Chosen, &d.Trial}); err != nil {
		t.Fatalf("%v in %q", err, got.stdout)
	}
	if got.status != 0 || d.Chosen != "gvisor" || d.Trial == nil || !d.Trial.OK {
		t.Errorf("status %d: %s %s", got.status, got.stdout, got.stderr)
	}
	got = run(t, "", "doctor", "--min-isolation", "vm")
	if got.status != 1 || !strings.Contains(got.stdout, "no backend is selected") || !strings.Contains(got.stdout, "vm is required") ||
		!strings.Contains(got.stdout, "the first sandbox starts in about 250ms; no maximum lifetime") {
		t.Errorf("%+v", got)
	}
}

func TestVersionAndHelp(t *testing.T) {
	if got := run(t, "", "version"); got.status != 0 || !strings.HasPrefix(got.stdout, "recluse ") {
		t.Errorf("%+v", got)
	}
	for _, flag := range []string{"--version", "-V"} {
		if got := run(t, "", flag); got.status != 0 || !strings.HasPrefix(got.stdout, "recluse ") || strings.Count(got.stdout, "\n") != 1 {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	got := run(t, "", "version", "--json")
	var b build
	if err := json.Unmarshal([]byte(got.stdout), &b); err != nil || got.status != 0 || b.Version == "" || b.Go != runtime.Version() || b.Platform != runtime.GOOS+"/"+runtime.GOARCH || b.Engine == nil || b.Guest == nil {
		t.Errorf("%v, status %d: %s%s", err, got.status, got.stdout, got.stderr)
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "CLI.md"))
	if err != nil {
		t.Fatal(err)
	}
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Name() == "completion" || c.Name() == "help" {
			return
		}
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		if !c.HasSubCommands() && !strings.Contains(string(doc), "`"+c.CommandPath()) {
			t.Errorf("%s is not in docs/CLI.md", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check((&app{}).root())
	for _, verb := range []string{"", "exec", "session", "session vars set", "serve"} {
		t.Run("help of "+verb, func(t *testing.T) {
			t.Parallel()
			args := append(strings.Fields(verb), "--help")
			if got := run(t, "", args...); got.status != 0 || !strings.Contains(got.stdout, "Usage:") || !strings.Contains(got.stdout, "Examples:") {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := run(t, "", "completion", "bash"); got.status != 0 || !strings.Contains(got.stdout, "complete ") {
		t.Errorf("completion: status %d", got.status)
	}
}
