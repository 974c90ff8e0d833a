package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

var commands = []feature{
	{"arguments reach the program as they are", onBackend | overHTTP, func(t *testing.T, s *suite) {
		v := run(t, s.open(t), sandbox.Command{Args: []string{"printf", "%s|", "a b", "$HOME", "", "'", "\xff\n", "*"}})
		same(t, "stdout", v.Stdout.String(), "a b|$HOME||'|\xff\n|*|")
	}},
	{"a shell script runs in bash", onBackend, func(t *testing.T, s *suite) {
		if !s.caps.Bash {
			t.Skip("SKIPPED: no bash here")
		}
		same(t, "stdout", shell(t, s.open(t), `a=(1 2 3); echo "${a[@]}" | tr 1 x; [[ -n $BASH_VERSION ]]`), "x 2 3\n")
	}},
	{"a shell script runs in the shell of the spec", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needPython(t)
		// Python is not a shell, so that the result cannot come from another shell.
		sb := s.open(t, func(x *sandbox.Spec) { x.Shell = "python3" })
		same(t, "stdout", shell(t, sb, "import os; print(6 * 7, os.path.basename(os.environ['SHELL']))"), "42 python3\n")
	}},
	{"a script of a megabyte runs, and its file is gone", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		long := strings.Repeat("# "+strings.Repeat("x", 997)+"\n", 1000)
		same(t, "stdout", shell(t, sb, "a=1\n"+long+"echo $((a + 1)); test -e \"$BASH_SOURCE\" || echo gone"), "2\ngone\n")
	}},
	{"a Python program has its name, arguments and input", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needPython(t)
		long := strings.Repeat("# "+strings.Repeat("x", 997)+"\n", 1000)
		v := run(t, s.open(t), sandbox.Command{
			Python:     "import sys, os\n" + long + "if __name__ == '__main__':\n    print(os.path.basename(__file__), sys.argv[1:], sys.stdin.read())\n    sys.exit(5)\n",
			Args:       []string{"../s.py", "x", "-y"},
			RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("data")},
		})
		same(t, "stdout", v.Stdout.String(), "s.py ['x', '-y'] data\n")
		same(t, "status", v.Status(), 5)
	}},
	{"a Python program goes neither with a shell script nor without a name", onBackend, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for _, c := range []sandbox.Command{{Python: "1"}, {Python: "1", Shell: "true"}, {Python: "1", Shell: "true", Args: []string{"s.py"}}} {
			if _, err := sb.Run(t.Context(), c); v1.CodeOf(err) != v1.CodeInvalidRequest {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}},
	{"a sandbox whose spec names a shell that is not there is not made", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needLibrary(t)
		spec := s.opts.Spec
		for _, name := range []string{"a-shell-that-is-not-there", "/etc/passwd"} {
			spec.Shell = name
			_, err := sandbox.Open(t.Context(), s.backend(t), spec)
			if v1.CodeOf(err) != v1.CodeNoShell || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}},
	{"code is the user of the spec and has its score, or that is refused", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needLibrary(t)
		user, score := s.opts.Spec, s.opts.Spec
		user.User = "2000"
		score.Options = map[string]json.RawMessage{"docker": []byte(`{"oom_score_adj": 600}`)}
		for _, c := range []struct {
			spec         sandbox.Spec
			script, want string
		}{
			{user, "id -u; touch f && stat -c %u f", "2000\n2000\n"},
			{score, "cat /proc/self/oom_score_adj", "600\n"},
		} {
			sb, err := sandbox.Open(t.Context(), s.backend(t), c.spec)
			if v1.CodeOf(err) == v1.CodeNotSupported && (c.spec.User == "" || !slices.Contains([]string{"gvisor", "vm"}, s.backend(t).Name())) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, c.script, shell(t, sb, c.script), c.want)
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}
	}},
	{"the environment is the sandbox's with the command's on top", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t, func(x *sandbox.Spec) { x.Env = map[string]string{"A": "of the sandbox", "B": "of the sandbox"} })
		v := run(t, sb, sandbox.Command{Shell: `echo "$A,$B,$C"; test -n "$PATH" -a -n "$HOME"`, RunOptions: sandbox.RunOptions{Env: map[string]string{"B": "of the command", "C": "x=y\nz"}}})
		succeeded(t, v)
		same(t, "stdout", v.Stdout.String(), "of the sandbox,of the command,x=y\nz\n")
	}},
	{"nothing of the host's environment is inside", onBackend, func(t *testing.T, s *suite) {
		if out := shell(t, s.open(t), "env"); strings.Contains(out, hostSecret) {
			t.Errorf("the host's environment is inside:\n%s", out)
		}
	}},
	{"a command starts in the home directory, or where it is told", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		same(t, "home", shell(t, sb, `test "$(pwd -P)" = "$(cd "$HOME"; pwd -P)" && echo yes`), "yes\n")
		same(t, "dir", run(t, sb, sandbox.Command{Args: []string{"pwd"}, Dir: "/usr/bin"}).Stdout.String(), "/usr/bin\n")
		v := run(t, sb, sandbox.Command{Args: []string{"pwd"}, Dir: "/nowhere"})
		same(t, "ended", v.Ended, v1.EndedStart)
		contains(t, "the reason", v.StartError, "/nowhere")
	}},
	{"a sandbox's working directory is made where it is missing", onBackend | overHTTP, func(t *testing.T, s *suite) {
		dirs := []string{"/tmp/recluse-work-" + ids.Hex(4)}
		// Without isolation the directory would be made on the host.
		if !s.opts.Plain && s.backend(t).Capabilities(t.Context()).Isolation > sandbox.IsolationNone {
			dirs = append(dirs, "/workspace/deep")
		}
		for _, dir := range dirs {
			sb := s.open(t, func(x *sandbox.Spec) { x.Dir = dir })
			same(t, "written", shell(t, sb, `pwd; echo text > file; cat "$(pwd)/file"; test "$(stat -c %u .)" = "$(id -u)" && echo mine; rm file; test "$PWD" = /workspace/deep || rmdir "$PWD"`), dir+"\ntext\nmine\n")
		}
	}},
	{"stdin is streamed while the command runs, and closed", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		r, w := io.Pipe()
		var out recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "cat; echo over", RunOptions: sandbox.RunOptions{Stdin: r, Stdout: &out}})
		for _, line := range []string{"one\n", "two\n"} {
			_, err := io.WriteString(w, line)
			noError(t, err)
			out.await(t, line)
		}
		noError(t, w.Close())
		succeeded(t, verdictOf(t, done))
		same(t, "stdout", out.String(), "one\ntwo\nover\n")
	}},
	{"a large stdin arrives whole", onBackend | overHTTP, func(t *testing.T, s *suite) {
		data := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
		v := run(t, s.open(t), sandbox.Command{Shell: "cksum; wc -c", RunOptions: sandbox.RunOptions{Stdin: bytes.NewReader(data)}})
		same(t, "first word", strings.Fields(v.Stdout.String())[1], fmt.Sprint(len(data)))
	}},
	{"without stdin a command reads an end at once", overHTTP, func(t *testing.T, s *suite) {
		same(t, "stdout", shell(t, s.open(t), "wc -c"), "0\n")
	}},
	{"a stdin that is never read holds nobody up", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{Stdin: endless}}))
		ctx, cancel := context.WithCancel(t.Context())
		var out recorder
		done := inBackground(ctx, sb.Run, sandbox.Command{Shell: "echo ready; exec sleep 1000", RunOptions: sandbox.RunOptions{Stdin: endless, Stdout: &out}})
		out.await(t, "ready")
		cancel()
		same(t, "ended", verdictOf(t, done).Ended, v1.EndedCancelled)
	}},
	{"a stdin that gives nothing holds nobody up", inGuest, func(t *testing.T, s *suite) {
		r, w := io.Pipe()
		defer w.Close()
		succeeded(t, run(t, s.open(t), sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{Stdin: r}}))
	}},
	{"exit codes are the command's own", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for _, code := range []int{0, 1, 3, 126, 127, 255} {
			v := run(t, sb, sandbox.Command{Shell: fmt.Sprintf("exit %d", code)})
			same(t, "ended", v.Ended, v1.EndedExit)
			same(t, "exit code", v.ExitCode, code)
			same(t, "status", v.Status(), code)
		}
	}},
	{"what cannot run is 126, what is not there 127", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		shell(t, sb, "echo text > plain; chmod 644 plain; mkdir dir; printf '\\x7fELFnot' > broken; chmod 755 broken")
		for _, c := range []struct {
			name string
			args []string
			code int
		}{
			{"missing on PATH", []string{"no-such-program"}, 127},
			{"missing by path", []string{"/no/such/program"}, 127},
			{"not executable", []string{"./plain"}, 126},
			{"a directory", []string{"./dir"}, 126},
			{"not a program", []string{"./broken"}, 126},
		} {
			v := run(t, sb, sandbox.Command{Args: c.args})
			same(t, c.name+": ended", v.Ended, v1.EndedStart)
			same(t, c.name+": exit code", v.ExitCode, c.code)
			if v.StartError == "" {
				t.Errorf("%s: the verdict has no start error", c.name)
			}
		}
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
	{"a signal that ended the command is named", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, sigUSR1} {
			v := run(t, sb, sandbox.Command{Shell: fmt.Sprintf("kill -%d $$; sleep 10", int(sig))})
			same(t, "ended", v.Ended, v1.EndedSignal)
			same(t, "signal", v.Signal, sig)
			same(t, "exit code", v.ExitCode, -1)
			same(t, "status", v.Status(), 128+int(sig))
		}
	}},
	{"a terminal has a size, and can be resized", onBackend | overHTTP, func(t *testing.T, s *suite) {
		if !s.caps.PTY {
			t.Skip("SKIPPED: no terminals here")
		}
		sb := s.open(t)
		var out recorder
		resize := make(chan sandbox.Size)
		done := inBackground(t.Context(), sb.Run, sandbox.Command{
			Shell: `test -t 0 && test -t 1 && test -t 2 && echo terminal; stty size
					until [ "$(stty size)" = "40 100" ]; do sleep 0.02; done; echo resized; echo to stderr >&2`,
			PTY:        &sandbox.Size{Rows: 24, Cols: 80},
			Resize:     resize,
			RunOptions: sandbox.RunOptions{Stdout: &out},
		})
		out.await(t, "terminal")
		out.await(t, "24 80")
		resize <- sandbox.Size{Rows: 40, Cols: 100}
		succeeded(t, verdictOf(t, done))
		contains(t, "stdout", out.String(), "resized\r\n")
		contains(t, "stdout", out.String(), "to stderr\r\n")
	}},
	{"Ctrl-C is heard behind lines that nobody reads", inGuest, func(t *testing.T, s *suite) {
		if !s.caps.PTY {
			t.Skip("SKIPPED: no terminals here")
		}
		sb := s.open(t)
		r, w := io.Pipe()
		defer w.Close()
		var out recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{
			Shell:      `trap 'read -t 0.2 line; echo "interrupted, heard <$line>"; exit 7' INT; echo ready; while :; do sleep 0.02; done`,
			PTY:        &sandbox.Size{Rows: 24, Cols: 80},
			RunOptions: sandbox.RunOptions{Stdin: r, Stdout: &out},
		})
		out.await(t, "ready")
		_, err := io.WriteString(w, "one\rtwo\r")
		noError(t, err)
		out.await(t, "one")
		_, err = io.WriteString(w, "three\x03")
		noError(t, err)
		v := verdictOf(t, done)
		same(t, "exit code", v.ExitCode, 7)
		contains(t, "what was typed ahead", out.String(), "heard <>")
	}},
	{"Ctrl-C and Ctrl-D in a terminal mean what they mean", overHTTP, func(t *testing.T, s *suite) {
		if !s.caps.PTY {
			t.Skip("SKIPPED: no terminals here")
		}
		sb := s.open(t)
		r, w := io.Pipe()
		defer w.Close()
		var out recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "echo ready; exec sleep 1000", PTY: &sandbox.Size{Rows: 24, Cols: 80}, RunOptions: sandbox.RunOptions{Stdin: r, Stdout: &out}})
		out.await(t, "ready")
		_, err := w.Write([]byte{3})
		noError(t, err)
		v := verdictOf(t, done)
		same(t, "ended", v.Ended, v1.EndedSignal)
		same(t, "signal", v.Signal, syscall.SIGINT)

		v = run(t, sb, sandbox.Command{Shell: "cat >/dev/null; echo end", PTY: &sandbox.Size{Rows: 24, Cols: 80}, RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("text\n")}})
		succeeded(t, v)
		contains(t, "stdout", v.Stdout.String(), "end\r\n")
	}},
	{"a terminal that floods and ends loses nothing of its end", inGuest, func(t *testing.T, s *suite) {
		if !s.caps.PTY {
			t.Skip("SKIPPED: no terminals here")
		}
		var out recorder
		v := run(t, s.open(t), sandbox.Command{Shell: "seq 1 20000; echo the end", PTY: &sandbox.Size{Rows: 24, Cols: 80}, RunOptions: sandbox.RunOptions{Stdout: &out}})
		succeeded(t, v)
		if !strings.HasSuffix(out.String(), "20000\r\nthe end\r\n") {
			t.Errorf("the end of %d bytes is %q", len(out.String()), out.String()[max(0, len(out.String())-60):])
		}
	}},
	{"a background command is listed, followed, and ends by itself", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		id, err := sb.Start(t.Context(), sandbox.Command{Shell: "echo first; until [ -e go ]; do sleep 0.02; done; echo second; echo wrong >&2; exit 5", RunOptions: sandbox.RunOptions{Metadata: map[string]string{"k": "v"}}})
		noError(t, err)
		var part recorder
		testneed.Await(t, "the first line", func() bool {
			part = recorder{}
			v, err := sb.Follow(t.Context(), id, sandbox.FollowOptions{Stdout: &part, NoWait: true})
			noError(t, err)
			if v != nil {
				t.Fatalf("the command has ended: %s", v)
			}
			return part.String() == "first\n"
		})
		o := operation(t, sb, id)
		same(t, "running", o.Running, true)
		same(t, "kind", o.Kind, "command")
		same(t, "bytes so far", o.Stdout, 6)
		if o.PID <= 0 || o.Started.IsZero() || !strings.Contains(o.Command, "echo first") {
			t.Errorf("incomplete operation: %+v", o)
		}
		var out, errs recorder
		done := inBackground(t.Context(), followOf(sb, id), sandbox.FollowOptions{StdoutOffset: 3, Stdout: &out, Stderr: &errs})
		out.await(t, "st\n")
		shell(t, sb, "touch go")
		v := verdictOf(t, done)
		same(t, "stdout from byte 3 on", out.String(), "st\nsecond\n")
		same(t, "stderr", errs.String(), "wrong\n")
		same(t, "exit code", v.ExitCode, 5)
		same(t, "metadata", v.Metadata["k"], "v")

		var again recorder
		v, err = sb.Follow(t.Context(), id, sandbox.FollowOptions{StdoutOffset: 6, Stdout: &again})
		noError(t, err)
		same(t, "followed again after its end", again.String(), "second\n")
		same(t, "exit code", v.ExitCode, 5)
		same(t, "running", operation(t, sb, id).Running, false)
		noError(t, sb.Forget(t.Context(), id))
		_, err = sb.Follow(t.Context(), id, sandbox.FollowOptions{})
		fails(t, "follow a forgotten command", err, v1.CodeNotFound)
	}},
	{"a background command can be signalled and killed", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		id, err := sb.Start(t.Context(), sandbox.Command{Shell: `trap 'echo got it' USR1; echo ready; while :; do sleep 0.02; done`})
		noError(t, err)
		var out recorder
		done := inBackground(t.Context(), followOf(sb, id), sandbox.FollowOptions{Stdout: &out})
		out.await(t, "ready")
		fails(t, "forget a running command", sb.Forget(t.Context(), id), v1.CodeBusy)
		// bash handles the signal. The sleep in the same process group is killed by it, which does no harm.
		noError(t, sb.Signal(t.Context(), id, sigUSR1, sandbox.SignalOptions{}))
		out.await(t, "got it")
		noError(t, sb.Signal(t.Context(), id, syscall.SIGKILL, sandbox.SignalOptions{}))
		v := verdictOf(t, done)
		same(t, "ended", v.Ended, v1.EndedKilled)
		same(t, "signal", v.Signal, syscall.SIGKILL)
		err = sb.Signal(t.Context(), id, syscall.SIGTERM, sandbox.SignalOptions{})
		fails(t, "signal an ended command", err, v1.CodeNotFound)
		err = sb.Signal(t.Context(), "nobody", syscall.SIGTERM, sandbox.SignalOptions{})
		fails(t, "signal an unknown command", err, v1.CodeNotFound)
	}},
	{"a background command can be cancelled with everything it started", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		id, err := sb.Start(t.Context(), sandbox.Command{Shell: `setsid sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; trap '' TERM; while :; do sleep 0.05; done`})
		noError(t, err)
		pids := pidsIn(t, sb, "pids", 2)
		noError(t, sb.Cancel(t.Context(), id))
		v, err := sb.Follow(t.Context(), id, sandbox.FollowOptions{})
		noError(t, err)
		same(t, "ended", v.Ended, v1.EndedCancelled)
		if alive := livingPIDs(t, sb, pids); len(alive) > 0 {
			t.Errorf("processes %v still run", alive)
		}
	}},
	{"a background command that cannot start says so", overHTTP, func(t *testing.T, s *suite) {
		_, err := s.open(t).Start(t.Context(), sandbox.Command{Args: []string{"no-such-program"}})
		fails(t, "start", err, v1.CodeStartFailed)
	}},
	{"stdout and stderr are apart and come while the command runs", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		var out, errs recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "echo out; echo err >&2; until [ -e go ]; do sleep 0.02; done; echo more", RunOptions: sandbox.RunOptions{Stdout: &out, Stderr: &errs}})
		out.await(t, "out\n")
		errs.await(t, "err\n")
		select {
		case <-done:
			t.Fatal("the command ended too early")
		default:
		}
		shell(t, sb, "touch go")
		v := verdictOf(t, done)
		same(t, "stdout", out.String(), "out\nmore\n")
		same(t, "stderr", errs.String(), "err\n")
		same(t, "stdout of the verdict", v.Stdout.String(), "out\nmore\n")
		same(t, "stderr of the verdict", v.Stderr.String(), "err\n")
	}},
	{"many commands run at once", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		var runs []<-chan outcome
		for i := range 20 {
			runs = append(runs, inBackground(t.Context(), sb.Run, sandbox.Command{Shell: fmt.Sprintf("echo %d; sleep 0.05; exit %d", i, i)}))
		}
		for i, r := range runs {
			v := verdictOf(t, r)
			same(t, "exit code", v.ExitCode, i)
			same(t, "stdout", v.Stdout.String(), fmt.Sprintln(i))
		}
	}},
	{"a verdict is complete", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		before := time.Now()
		v := run(t, sb, sandbox.Command{
			Shell: `python3 -c 'x = bytearray(40 << 20); s = 0
for i in range(1000000): s += i' 2>/dev/null || { head -c 40000000 /dev/zero | tail -c 39000000 >/dev/null; }; echo hello`,
			RunOptions: sandbox.RunOptions{ID: "my-own", Metadata: map[string]string{"ticket": "42"}},
		})
		took := time.Since(before)
		same(t, "id", v.ID, "my-own")
		same(t, "metadata", v.Metadata["ticket"], "42")
		if v.Wall <= 0 || v.Wall > took {
			t.Errorf("wall time %s, but the call took %s", v.Wall, took)
		}
		if v.CPU <= 0 || v.CPU > 4*took {
			t.Errorf("CPU time %s in %s", v.CPU, took)
		}
		if v.PeakMemory < 20<<20 || v.PeakMemory > 1<<30 {
			t.Errorf("peak memory %d", v.PeakMemory)
		}
		if d := v.Started.Sub(before).Abs(); d > 5*time.Second {
			t.Errorf("the start time differs by %s from the host's clock", d)
		}
		var got struct {
			ID     string
			Ended  string
			Status int
			Stdout struct {
				Text     string
				Produced int
			}
			Metadata map[string]string
			Wall     int64 `json:"wall_ns"`
		}
		b, err := json.Marshal(v)
		noError(t, err)
		noError(t, json.Unmarshal(b, &got))
		if got.ID != "my-own" || got.Ended != "exit" || got.Stdout.Text != "hello\n" || got.Stdout.Produced != 6 || got.Metadata["ticket"] != "42" || got.Wall <= 0 {
			t.Errorf("as JSON: %s", b)
		}
	}},
	{"a bad request is refused and harms nothing", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for _, c := range []struct {
			name string
			cmd  sandbox.Command
		}{
			{"nothing to run", sandbox.Command{}},
			{"both arguments and a script", sandbox.Command{Args: []string{"true"}, Shell: "true"}},
			{"an empty program", sandbox.Command{Args: []string{""}}},
			{"NUL in an argument", sandbox.Command{Args: []string{"echo", "a\x00b"}}},
			{"NUL in the environment", sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{Env: map[string]string{"A": "\x00"}}}},
			{"NUL in the directory", sandbox.Command{Args: []string{"true"}, Dir: "/\x00"}},
			{"a negative timeout", sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{Timeout: -5}}},
			{"a negative grace", sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{KillGrace: -5}}},
			{"too much output inline", sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{InlineBytes: 1 << 30}}},
			{"an id like a path", sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{ID: "../../x"}}},
		} {
			_, err := sb.Run(t.Context(), c.cmd)
			fails(t, c.name, err, v1.CodeInvalidRequest)
		}
		run(t, sb, sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{ID: "twice"}})
		_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{ID: "twice"}})
		fails(t, "an id used twice", err, v1.CodeOperationExists)
		_, err = sb.Run(cancelledContext(), sandbox.Command{Args: []string{"true"}})
		fails(t, "a cancelled ctx", err, v1.CodeCancelled)
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
	{"processes that are left running are listed and can be ended", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needPython(t)
		sb, ctx := s.open(t), t.Context()
		left := func(command string) (found []sandbox.Operation) {
			ops, err := sb.Operations(ctx)
			noError(t, err)
			for _, o := range ops {
				if o.Kind == v1.OperationProcess && strings.Contains(o.Command, command) {
					found = append(found, o)
				}
			}
			return found
		}
		shell(t, sb, "setsid sleep 1001 >/dev/null 2>&1 & sh -c 'trap : TERM; while :; do sleep 1002; done' >/dev/null 2>&1 &")
		okCell(t, sb, "import subprocess; p = subprocess.Popen(['sleep', '1003'])")
		for _, command := range []string{"sleep 1001", "trap", "sleep 1003"} {
			found := left(command)
			if len(found) != 1 || !found[0].Running || found[0].PID == 0 {
				t.Fatalf("%s: %+v", command, found)
			}
			noError(t, sb.Cancel(ctx, found[0].ID))
			testneed.Await(t, command+" has gone", func() bool { return len(left(command)) == 0 })
			// A process that is ending loses its command line before its pid.
			testneed.Await(t, "there is nothing to cancel", func() bool { return v1.CodeOf(sb.Cancel(ctx, found[0].ID)) == v1.CodeNotFound })
		}
		same(t, "the interpreter lives", okCell(t, sb, "p.wait()").Result.Text(), "-15")
		testneed.Await(t, "nothing is left", func() bool { return len(left("")) == 0 })
	}},
}

func operation(t *testing.T, sb Machine, id string) sandbox.Operation {
	t.Helper()
	ops, err := sb.Operations(t.Context())
	noError(t, err)
	for _, o := range ops {
		if o.ID == id {
			return o
		}
	}
	t.Fatalf("%s is not listed among %d operations", id, len(ops))
	return sandbox.Operation{}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
