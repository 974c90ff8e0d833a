//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/fifo"
)

func TestEngineLife(t *testing.T) {
	b := newBench(t)
	x := b.mustStart("one", nil, "")
	x.expect("echo $((6*7))", "42")
	x.expect("id -u", "0")
	x.expect("hostname 2>/dev/null || cat /proc/sys/kernel/hostname", "box")
	if kernel := x.ask("uname -v"); !strings.Contains(kernel, "2016") {
		t.Errorf("uname -v printed %q, which is not gVisor's", kernel)
	}
	x.expect("echo $RECLUSE_TEST_AS_USER.", ".")
	x.expect("echo x 2>/dev/null >/usr/x || echo refused", "refused")
	x.expect("echo x 2>/dev/null >/etc/x || echo refused", "refused")
	x.expect("echo $(ls -A /home /root /var/lib /run)", "/home: user /root: /run: recluse /var/lib:")
	x.expect("secret=kept; echo file >/tmp/f; echo ok", "ok")

	image := filepath.Join(b.dir, "image")
	if err := os.Mkdir(image, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.eng.checkpoint(t.Context(), "one", image, true); err != nil {
		t.Fatal(err)
	}
	x.expect("echo $secret", "kept")
	for _, id := range []string{"two", "three"} {
		copied := b.mustStart(id, nil, image)
		copied.expect("echo $secret $(cat /tmp/f)", "kept file")
		copied.expect("secret=changed; echo $secret", "changed")
	}
	x.expect("echo $secret", "kept")
	ids, err := b.eng.list()
	if err != nil || len(ids) != 3 {
		t.Errorf("list: %v %v, want three ids", ids, err)
	}
}

func TestEngineCheckpointEnds(t *testing.T) {
	b := newBench(t)
	x := b.mustStart("one", nil, "")
	x.expect("n=1; echo ok", "ok")
	image := t.TempDir()
	if err := b.eng.checkpoint(t.Context(), "one", image, false); err != nil {
		t.Fatal(err)
	}
	// A second checkpoint into the same directory must not overwrite the first.
	if err := b.eng.checkpoint(t.Context(), "one", image, false); err == nil {
		t.Error("a checkpoint was overwritten")
	}
	if err := b.eng.delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	y := b.mustStart("again", nil, image)
	y.expect("echo $n", "1")
}

func TestEngineReattach(t *testing.T) {
	b := newBench(t)
	x := b.mustStart("one", nil, "")
	x.expect("n=7; echo ok", "ok")
	if err := x.stream.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.attach(); err != nil {
		t.Fatal(err)
	}
	x.expect("echo $n", "7")
}

func TestEngineDeathIsSeen(t *testing.T) {
	for _, how := range []string{"sandbox process killed", "guest exits"} {
		t.Run(how, func(t *testing.T) {
			b := newBench(t)
			x := b.mustStart("one", nil, "")
			x.expect("echo ok", "ok")
			st, err := b.eng.state("one")
			if err != nil || !st.alive() {
				t.Fatalf("state: %+v %v", st, err)
			}
			p, err := openEngineProcess(st.Sandbox.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if how == "guest exits" {
				_, err = x.stream.Write([]byte("exit 3\n"))
			} else {
				err = unix.Kill(st.Sandbox.Pid, unix.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = x.stream.SetReadDeadline(time.Now().Add(answerWait))
			if _, err := x.lines.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("read: %v, want EOF", err)
			}
			if err := p.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			if st.alive() {
				t.Error("a dead sandbox is reported as alive")
			}
			if _, err := fifo.Open(x.dir); !errors.Is(err, fifo.ErrNoGuest) {
				t.Errorf("attach to a dead sandbox: %v", err)
			}
		})
	}
}

func TestEngineFailedStartLeavesNothing(t *testing.T) {
	tests := map[string]struct {
		change func(*bundleSpec)
		want   string
	}{
		"no such program":  {func(b *bundleSpec) { b.argv = []string{"/no/such"} }, "/no/such"},
		"no root":          {func(b *bundleSpec) { b.root = "/no/such/root" }, ""},
		"no source":        {func(b *bundleSpec) { b.binds = append(b.binds, bind{Source: "/no/such/dir", Target: "/mnt"}) }, ""},
		"root is no spec":  {func(b *bundleSpec) { b.root = "" }, ""},
		"empty command":    {func(b *bundleSpec) { b.argv = nil }, ""},
		"relative command": {func(b *bundleSpec) { b.argv = []string{"no-such-program"} }, "no-such-program"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			err := b.prepare("one", test.change).start(t.Context(), "")
			var failed *engineError
			if !errors.As(err, &failed) || failed.stderr == "" || !strings.Contains(failed.stderr, test.want) {
				t.Errorf("error %v", err)
			}
			if _, err := b.eng.state("one"); !errors.Is(err, errNoSandbox) {
				t.Errorf("state: %v", err)
			}
		})
	}
}

func TestEngineCancelledStartLeavesNothing(t *testing.T) {
	b := newBench(t)
	for i, after := range []time.Duration{0, 5, 15, 25, 35, 50, 70, 90, 120} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		err := b.prepare("c"+string(rune('a'+i)), nil).start(ctx, "")
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled after %d ms: %v", after, err)
		}
		if err != nil {
			b.checkEmpty()
			continue
		}
		if err := b.eng.delete(t.Context(), "c"+string(rune('a'+i))); err != nil {
			t.Error(err)
		}
	}
}

func TestEngineCorruptImage(t *testing.T) {
	b := newBench(t)
	x := b.mustStart("one", nil, "")
	image := t.TempDir()
	if err := b.eng.checkpoint(t.Context(), "one", image, true); err != nil {
		t.Fatal(err)
	}
	x.expect("echo ok", "ok")
	if err := os.Truncate(filepath.Join(image, "checkpoint.img"), 1000); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), answerWait)
	defer cancel()
	if err := b.prepare("two", nil).start(ctx, image); err == nil || ctx.Err() != nil {
		t.Errorf("restore of a truncated image: %v", err)
	}
	x.expect("echo ok", "ok")
}

func TestEngineManyAtOnce(t *testing.T) {
	b := newBench(t)
	const n = 4
	done := make(chan error, n)
	var boxes [n]*box
	for i := range n {
		boxes[i] = b.prepare("m"+string(rune('0'+i)), nil)
		go func() { done <- boxes[i].start(t.Context(), "") }()
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range boxes {
		x.expect("echo ok", "ok")
	}
}

func TestEngineKeepsEnvironmentOut(t *testing.T) {
	t.Setenv("SOME_API_KEY", "hush-hush")
	b := newBench(t)
	x := b.mustStart("one", nil, "")
	x.expect("env | grep -c hush-hush", "0")
	st, err := b.eng.state("one")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{st.Sandbox.Pid, st.GoferPid} {
		env, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "environ"))
		if err == nil && strings.Contains(string(env), "hush-hush") {
			t.Errorf("process %d has our environment", pid)
		}
	}
}

// TestEngineHasTimerSlack checks every thread of a started and of a restored sandbox, and that no thread of this
// program has the slack.
func TestEngineHasTimerSlack(t *testing.T) {
	want := itoa(int(timerSlack))
	var out strings.Builder
	cmd := exec.Command("cat", "/proc/self/timerslack_ns")
	cmd.Stdout = &out
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := startWithSlack(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if got := strings.TrimSpace(out.String()); err != nil || got != want {
		t.Errorf("a process has slack %s, want %s: %v", got, want, err)
	}
	if data, err := os.ReadFile(filepath.Join("/proc", itoa(unix.Gettid()), "timerslack_ns")); err != nil || strings.TrimSpace(string(data)) == want {
		t.Errorf("our own thread: %s %v", data, err)
	}
	if os.Getuid() != 0 {
		return // only root can read the slack of other processes
	}
	b := newBench(t)
	b.mustStart("one", nil, "")
	image := filepath.Join(b.dir, "image")
	if err := errors.Join(os.Mkdir(image, 0o700), b.eng.checkpoint(t.Context(), "one", image, true)); err != nil {
		t.Fatal(err)
	}
	b.mustStart("two", nil, image)
	for _, id := range []string{"one", "two"} {
		st, err := b.eng.state(id)
		if err != nil {
			t.Fatal(err)
		}
		threads, err := filepath.Glob(filepath.Join("/proc", itoa(st.Sandbox.Pid), "task", "*"))
		if err != nil || len(threads) < 2 {
			t.Fatal(threads, err)
		}
		for _, name := range threads {
			data, err := os.ReadFile(filepath.Join("/proc", filepath.Base(name), "timerslack_ns"))
			if err == nil && strings.TrimSpace(string(data)) != want { // a thread may have ended
				t.Errorf("%s: thread %s has slack %s", id, filepath.Base(name), data)
			}
		}
	}
}

// list returns the IDs of all sandboxes in the state of the engine, dead or alive.
func (e *engine) list() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(e.root, "*.state"))
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(names))
	for _, name := range names {
		id, _, ok := strings.Cut(filepath.Base(name), "_sandbox:")
		if ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func TestErrorsHoldNoMemoryOfASandbox(t *testing.T) {
	for name, said := range map[string]string{
		"an object of a checkpoint": `checkpoint failed: encoding &wire.Struct{Fields:[]wire.Object{wire.String("the secret of a sandbox")}}`,
		"very many words":           strings.Repeat("checkpoint failed: ", 100) + "the secret of a sandbox",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			words, program := filepath.Join(dir, "words"), filepath.Join(dir, "engine")
			script := fmt.Sprintf("#!/bin/sh\ncat %s >&2\nexit 1\n", words)
			if err := errors.Join(os.WriteFile(words, []byte(said), 0o644), os.WriteFile(program, []byte(script), 0o755)); err != nil {
				t.Fatal(err)
			}
			_, err := (&engine{path: program, root: dir}).call(t.Context(), "checkpoint", "one")
			if err == nil || !strings.Contains(err.Error(), "checkpoint failed: ") {
				t.Fatalf("the error lacks the output of the engine: %v", err)
			}
			if text := startError(err).Error(); strings.Contains(text, "secret") || len(text) > 1000 {
				t.Errorf("%d characters: %s", len(text), text)
			}
		})
	}
}
