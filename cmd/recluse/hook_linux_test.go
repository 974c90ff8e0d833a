package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/internal/doctor"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// projectOwner owns the projects of tests that run as root. It is neither root nor the default user of sandboxes.
const projectOwner = 4242

// project makes a directory that may be mounted in a sandbox.
func project(t *testing.T) string {
	t.Helper()
	top, err := os.MkdirTemp("/srv", "recluse-project-") // a sandbox has its own /tmp
	if err != nil {
		testneed.Lacking(t, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "my project")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chown(dir, projectOwner, projectOwner), os.Chown(filepath.Join(dir, "sub"), projectOwner, projectOwner)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// agent acts as Claude Code: it calls the hook, and runs the answer in a shell.
func (w *world) agent(dir, cwd string, input map[string]any) *exec.Cmd {
	w.t.Helper()
	call, err := json.Marshal(map[string]any{"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": cwd, "tool_input": input})
	if err != nil {
		w.t.Fatal(err)
	}
	got := w.run(string(call), "hook", "--agent", string(agents.ClaudeCode), "--project", dir)
	if got.status != 0 || got.stderr != "" {
		w.t.Fatalf("%+v", got)
	}
	var answer struct {
		Specific struct {
			Updated struct {
				Command string `json:"command"`
			} `json:"updatedInput"`
		} `json:"hookSpecificOutput"`
	}
	decodeJSON(w.t, got.stdout, &answer)
	sh := exec.CommandContext(w.t.Context(), "bash", "-c", "exec "+answer.Specific.Updated.Command)
	sh.Env = w.command().Env
	return sh
}

func (w *world) agentRuns(dir, cwd string, input map[string]any) result {
	w.t.Helper()
	sh := w.agent(dir, cwd, input)
	var out, errs bytes.Buffer
	sh.Stdout, sh.Stderr = &out, &errs
	err := sh.Run()
	return result{status(w.t, err), out.String(), errs.String()}
}

// owner returns the uid of the owner of a file.
func owner(t *testing.T, path string) int {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(fi.Sys().(*syscall.Stat_t).Uid) //nolint:forcetypeassert // on Linux it is
}

func TestAnAgentsCommandsRunInItsProjectsSession(t *testing.T) {
	w := newWorld(t)
	dir := project(t)
	sub := filepath.Join(dir, "sub")
	for _, tt := range []struct {
		name, command string
		status        int
		stdout        string
		stderr        string
	}{
		{"another kernel", `[ "$(uname -r)" = '` + doctor.HostKernel() + `' ] || echo inside`, 0, "inside\n", ""},
		{"its own directory", "pwd", 0, sub + "\n", ""},
		{"streams and status", "echo out; echo err >&2; exit 7", 7, "out\n", "err\n"},
		{"quotes", `printf '%s|' "a b" 'c'"'"'d' e\\f $'g\nh'`, 0, "a b|c'd|e\\f|g\nh|", ""},
		{"unicode", "echo 'déjà 漢字 🦀'", 0, "déjà 漢字 🦀\n", ""},
		{"a here-document", "cat <<'E'\n$x `y` \\z \"q\"\nE\n", 0, "$x `y` \\z \"q\"\n", ""},
		{"a file of the project", "echo kept > ../file; cat ../file", 0, "kept\n", ""},
		{"the project's owner", "id -u; stat -c %u ../file; touch ~/f", 0, strings.Repeat(strconv.Itoa(owner(t, dir))+"\n", 2), ""},
		{"nothing", "", 0, "", ""},
		{"a megabyte", strings.Repeat("# "+strings.Repeat("x", 998)+"\n", 1000) + "echo done", 0, "done\n", ""},
	} {
		got := w.agentRuns(dir, sub, map[string]any{"command": tt.command})
		if got.status != tt.status || got.stdout != tt.stdout || got.stderr != tt.stderr {
			t.Errorf("%s: %.300s", tt.name, strings.TrimSpace(got.stdout+got.stderr))
			t.Logf("status %d", got.status)
		}
	}
	file := filepath.Join(dir, "file")
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept\n" || owner(t, file) != owner(t, dir) {
		t.Errorf("%q %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.data, "recluse", "hook", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	list := w.must("session", "list", "--json")
	if strings.Count(list, agents.SessionName(dir)) == 0 || strings.Count(list, `"state"`) != 1 {
		t.Errorf("not one session: %s", list)
	}
}

func TestAnAgentsTimeOutEndsTheWholeTree(t *testing.T) {
	w := newWorld(t)
	dir := project(t)
	alive := func() bool {
		return strings.Contains(w.must("exec", "--session", agents.SessionName(dir), "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "sleep 777")
	}
	tree := "setsid sleep 777 & (sleep 777 &) ; echo begun; sleep 777"
	got := w.agentRuns(dir, dir, map[string]any{"command": tree, "timeout": 3000})
	if got.status != 124 || got.stdout != "begun\n" || !strings.Contains(got.stderr, "timed out") || alive() {
		t.Errorf("%+v, alive: %v", got, alive())
	}
	// An agent stops a command by a signal.
	sh := w.agent(dir, dir, map[string]any{"command": tree})
	out := newHeard()
	sh.Stdout = out
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "begun")
	if err := sh.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := status(t, sh.Wait()); got != 128+int(syscall.SIGTERM) || alive() {
		t.Errorf("status %d, alive: %v", got, alive())
	}
}

func TestAProjectInARefusedPlaceNeedsTheOperator(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has files in /root")
	}
	top, err := os.MkdirTemp("/root", "recluse-project-")
	if err != nil {
		testneed.Lacking(t, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	if err := os.Chmod(top, 0o777); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	if got := w.agentRuns(top, top, map[string]any{"command": "pwd"}); got.status != statusFailure || !strings.Contains(got.stderr, "mounting this path is not allowed") {
		t.Errorf("%+v", got)
	}
	w.must("server", "stop")
	w.env = append(w.env, "RECLUSE_BACKEND_ALLOW_MOUNTS="+top)
	if got := w.agentRuns(top, top, map[string]any{"command": "pwd; echo x > y; ls /root"}); got.status != 0 || got.stdout != top+"\n"+filepath.Base(top)+"\n" {
		t.Errorf("%+v", got)
	}
}

func TestAHookThatCannotWorkBlocks(t *testing.T) {
	for name, args := range map[string][]string{
		"no agent":            {"hook", "--project", "/x"},
		"an unknown agent":    {"hook", "--agent", "vi", "--project", "/x"},
		"no project":          {"hook", "--agent", "codex"},
		"a relative one":      {"hook", "--agent", "codex", "--project", "x"},
		"a misspelt policy":   {"hook", "--agent", "codex", "--project", "/x", "--unexpected", "maybe"},
		"a misspelt decision": {"hook", "--agent", "codex", "--project", "/x", "--permission", "yes"},
		"an unknown flag":     {"hook", "--agent", "codex", "--project", "/x", "--projects", "/y"},
		"a flag cut short":    {"hook", "--agent", "codex", "--project"},
		"a flag of all verbs": {"hook", "--agent", "codex", "--project", "/x", "--json=maybe"},
		"a word too many":     {"hook", "--agent", "codex", "--project", "/my", "project"},
		"a word too early":    {"hook", "rum", "--agent", "codex", "--project", "/x"},
	} {
		if got := run(t, "{}", args...); got.status != 2 || got.stdout != "" || got.stderr == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := run(t, "{}", "hook", "run", "--project", "/x", "--file", "/etc/passwd"); got.status != statusFailure || !strings.Contains(got.stderr, "--file") {
		t.Errorf("%+v", got)
	}
	for flag, args := range map[string][]string{
		"--config":  {"--config", "/x/other.yaml"},
		"--project": {"--project", "/y"},
	} {
		args = append(append([]string{"hook", "run", "--project", "/x"}, args...), "--", "true")
		if got := run(t, "", args...); got.status != statusFailure || !strings.Contains(got.stderr, flag) || strings.Contains(got.stderr, "directory") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := run(t, "", "hook", "run", "--project", "/x", "--fiel", "x"); got.status != statusFailure || !strings.Contains(got.stderr, "--fiel") {
		t.Errorf("%+v", got)
	}
}

func TestAHookThatCannotSayWhyBlocksToo(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		testneed.Lacking(t, err)
	}
	defer full.Close()
	cmd := command(t, "hook", "--agent", "codex", "--project", "/x")
	cmd.Stdin, cmd.Stderr = strings.NewReader("no call"), full
	if got := status(t, cmd.Run()); got != 2 {
		t.Errorf("status %d", got)
	}
}

func TestAHookThatNobodyReadsBlocksToo(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	cmd := command(t, "hook", "--agent", "codex", "--project", "/x")
	cmd.Stdin, cmd.Stdout = strings.NewReader(`{"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": "/x", "tool_input": {"command": "true"}}`), w
	if got := status(t, cmd.Run()); got != 2 {
		t.Errorf("status %d", got)
	}
}

// For a call of hook, the other verbs are not made.
func TestHookAloneIsTheSameVerb(t *testing.T) {
	for _, args := range [][]string{{"hook"}, {"hook", "run"}} {
		all, _, err := (&app{stdin: os.Stdin}).root().Find(args)
		if err != nil {
			t.Fatal(err)
		}
		alone, _, err := (&app{stdin: os.Stdin}).root(args...).Find(args)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*cobra.Command{all, alone} {
			c.InitDefaultHelpFlag()
		}
		if got, want := helpText(alone)+alone.UsageString(), helpText(all)+all.UsageString(); got != want || !strings.Contains(want, "--project") {
			t.Errorf("%v: got\n%s\nwant\n%s", args, got, want)
		}
	}
	// If a global flag comes first, all verbs are made.
	for _, tt := range [][]string{
		{"hook", "run", "--project", "x", "--", "true"},
		{"hook", "run", "--project", "/x", "--fiel", "x"},
		{"hook", "run", "--project", "/x"},
		{"hook", "--agent", "vi", "--project", "/x"},
		{"hook", "run", "--help"},
	} {
		got, want := run(t, "{}", tt...), run(t, "{}", append([]string{"--verbose"}, tt...)...)
		if got != want {
			t.Errorf("%q: got %+v, want %+v", tt, got, want)
		}
	}
}
