package docker

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestANewProgramAdoptsWhatRuns(t *testing.T) {
	b := newBackend(t, nil)
	ctx := t.Context()
	cmd, id := maker(t, b, false)
	kill(cmd)
	all, err := b.List(ctx)
	if err != nil || len(all) != 1 || all[0].ID != id || !all[0].Running || all[0].Labels["made"] != "elsewhere" {
		t.Fatalf("list: %+v, %v", all, err)
	}
	sb, err := sandbox.Attach(ctx, b, id)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	if v, err := sb.Cell(ctx, sandbox.Cell{Code: "kept"}); err != nil || v.Result.Text() != "42" {
		t.Fatalf("the variable is %v, %v", v, err)
	}
	shell(t, sb, "touch go")
	var out strings.Builder
	v, err := sb.Follow(ctx, "counting", sandbox.FollowOptions{Stdout: &out})
	if err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	lines := strings.Fields(out.String())
	for i, l := range lines[:len(lines)-1] {
		if l != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q: the output is incomplete", i+1, l)
		}
	}
}

func TestANewProgramFencesOutTheOneBefore(t *testing.T) {
	b := newBackend(t, nil)
	_, id := maker(t, b, false) // this program keeps running
	sb, err := sandbox.Attach(t.Context(), b, id)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "kept"}); err != nil || v.Result.Text() != "42" {
		t.Fatalf("the variable is %v, %v", v, err)
	}
	// And loses its own attachment in turn.
	other := newBackend(t, func(o *Options) { o.Dir, o.Instance = b.dir, b.instance })
	next, err := sandbox.Attach(t.Context(), other, id)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Detach()
	shell(t, next, "true")
	testneed.Await(t, "the end of the attachment before", func() bool {
		return v1.CodeOf(sb.Ping(t.Context())) == v1.CodeGuestLost
	})
	sb.Detach()
	shell(t, next, "true")
}

func TestWhatADeadProgramLeftIsEnded(t *testing.T) {
	b := newBackend(t, nil)
	ctx := t.Context()
	dead, left := maker(t, b, false)
	persistent, kept := maker(t, b, true)
	_, alive := maker(t, b, false)
	taken, used := maker(t, b, false)
	for _, c := range []interface{ Kill() error }{dead.Process, persistent.Process, taken.Process} {
		_ = c.Kill()
	}
	for _, c := range []interface{ Wait() error }{dead, persistent, taken} {
		_ = c.Wait()
	}
	// A program that has attached owns the sandbox from then on, even after it has detached.
	user, err := sandbox.Attach(ctx, newBackend(t, func(o *Options) { o.Dir, o.Instance = b.dir, b.instance }), used)
	if err != nil {
		t.Fatal(err)
	}
	user.Detach()
	open(t, b, sandbox.Spec{})
	if l := leftovers(t, []string{left}); len(l) > 0 {
		t.Errorf("the orphan still exists: %q", l)
	}
	running := map[string]bool{}
	all, err := b.List(ctx)
	for _, i := range all {
		running[i.ID] = i.Running
	}
	if err != nil || len(all) != 4 || !running[kept] || !running[alive] || !running[used] {
		t.Errorf("list: %+v, %v", all, err)
	}
}

func TestTwoInstancesDoNotTouchEachOther(t *testing.T) {
	mine, theirs := newBackend(t, nil), newBackend(t, nil)
	ctx := t.Context()
	sb := open(t, theirs, sandbox.Spec{})
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := theirs.DeleteSnapshot(context.WithoutCancel(ctx), snap.ID); err != nil {
			t.Error(err)
		}
	}()
	if all, err := mine.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("list: %+v, %v", all, err)
	}
	if _, err := mine.Attach(ctx, sb.ID()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("attach: %v", err)
	}
	if err := errors.Join(mine.Stop(ctx, sb.ID()), mine.DeleteSnapshot(ctx, snap.ID)); err != nil {
		t.Error(err)
	}
	if _, err := mine.Restore(ctx, snap, sandbox.RestoreOptions{}); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("restore: %v", err)
	}
	if err := mine.sweep(ctx); err != nil {
		t.Error(err)
	}
	shell(t, sb, "true")
	if all, err := theirs.Snapshots(ctx); err != nil || len(all) != 1 {
		t.Errorf("snapshots are %+v, %v", all, err)
	}
}

func TestWhatHappensBehindOurBackIsNamed(t *testing.T) {
	b := newBackend(t, nil)
	for _, c := range []struct {
		name string
		args []string
		code v1.Code
		says string
	}{
		{"removed", []string{"rm", "-f"}, v1.CodeSandboxLost, "removed by another program"},
		{"stopped", []string{"stop"}, v1.CodeSandboxLost, "stopped by another program"},
		{"killed through the engine", []string{"kill"}, v1.CodeSandboxLost, "stopped by another program"},
		{"restarted", []string{"restart"}, v1.CodeSandboxLost, "stopped by another program"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sb := open(t, b, sandbox.Spec{})
			docker(t, append(c.args, containerName(sb.ID()))...)
			await(t, "the news", sb.Gone())
			_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
			if v1.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("a command afterwards: %q, %v", v1.CodeOf(err), err)
			}
		})
	}
	t.Run("paused and gone on", func(t *testing.T) {
		sb := open(t, b, sandbox.Spec{})
		name := containerName(sb.ID())
		incidents := make(chan sandbox.Incident, 16)
		sb.OnIncident(func(i sandbox.Incident) { incidents <- i })
		told := func(code v1.Code) (since string) {
			t.Helper()
			select {
			case i := <-incidents:
				if i.Code != code {
					t.Errorf("got incident %+v, want %s", i, code)
				}
				return i.Attrs[AttrSince]
			case <-time.After(20 * time.Second):
				t.Fatalf("incident %s is not reported", code)
			}
			return ""
		}
		began, ended := make(chan struct{}), make(chan struct{})
		var v *sandbox.Verdict
		var err error
		go func() {
			defer close(ended)
			v, err = sb.Cell(t.Context(), sandbox.Cell{
				Code:       "import time\nopen('ran', 'a').write('once')\nprint('began')\nfor _ in range(20): time.sleep(0.05)\nopen('ran').read()",
				RunOptions: sandbox.RunOptions{Stdout: signalWriter{sync.OnceFunc(func() { close(began) })}},
			})
		}()
		await(t, "the cell", began)
		docker(t, "pause", name)
		first := told(CodePaused)
		_, refused := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
		if e, ok := errors.AsType[*v1.Error](refused); !ok || e.Code != CodePaused || !e.Retry {
			t.Errorf("a command meanwhile: %v", refused)
		}
		select {
		case <-sb.Gone():
			t.Error("the sandbox is reported as gone")
		case <-ended:
			t.Errorf("the cell ended: %v, %v", v, err)
		default:
		}
		docker(t, "unpause", name)
		if since := told(CodeResumed); since != first {
			t.Errorf("a pause that began %s is reported as ended with the begin %s", first, since)
		}
		await(t, "the cell's end", ended)
		if err != nil || v.Result.Text() != "'once'" {
			t.Errorf("the cell: %v, %v", v, err)
		}
		docker(t, "pause", name)
		if second := told(CodePaused); second == first {
			t.Error("a second pause is reported like the first")
		}
		sb.Detach()
		if _, err := sandbox.Attach(t.Context(), b, sb.ID()); v1.CodeOf(err) != CodePaused {
			t.Errorf("attach to a paused sandbox: %v", err)
		}
		docker(t, "unpause", name)
		again, err := sandbox.Attach(t.Context(), b, sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		shell(t, again, "true")
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("renamed", func(t *testing.T) {
		testRename(t, b)
	})
	t.Run("killed for memory", func(t *testing.T) {
		sb := open(t, b, sandbox.Spec{})
		// The kernel kills the guest itself when the limit is set below its memory.
		name := containerName(sb.ID())
		pid := docker(t, "inspect", "--format", "{{.State.Pid}}", name)
		if err := os.WriteFile("/proc/"+pid+"/oom_score_adj", []byte("1000"), 0); err != nil {
			t.Fatal(err)
		}
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo 0 > /proc/self/oom_score_adj; exec python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'"})
		await(t, "the news", sb.Gone())
		if err == nil {
			_, err = sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
		}
		if v1.CodeOf(err) != v1.CodeSandboxLost || !strings.Contains(err.Error(), "OOM-killed") {
			t.Errorf("reported as %v, %v", v, err)
		}
	})
	t.Run("killed from outside after an earlier kill for memory", func(t *testing.T) {
		sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 128 << 20}})
		v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", "x = []\nwhile True: x.append(bytearray(8 << 20))"}})
		if err != nil || v.Ended != v1.EndedMemory {
			t.Fatalf("%v, %v", v, err)
		}
		m := b.attachment(sb.ID())
		oom := func() time.Time {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.oom
		}
		f, err := b.facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !f.Podman { // its service reports no such events
			testneed.Await(t, "the Docker engine reports the kill", func() bool { return !oom().IsZero() })
		}
		m.mu.Lock()
		m.oom = time.Now().Add(-time.Hour) // as if it were long ago
		m.mu.Unlock()
		killGuest(t, b, sb.ID())
		await(t, "the news", sb.Gone())
		if err := sb.Ping(t.Context()); v1.CodeOf(err) != v1.CodeGuestLost || !strings.Contains(err.Error(), "signal 9") {
			t.Errorf("reported as %v", err)
		}
	})
}

// signalWriter is a writer that signals the first write.
type signalWriter struct{ written func() }

func (w signalWriter) Write(p []byte) (int, error) {
	w.written()
	return len(p), nil
}

func TestMemoryKillsAreToldFromExits(t *testing.T) {
	sb := open(t, newBackend(t, nil), sandbox.Spec{Limits: sandbox.Limits{Memory: 128 << 20}})
	const hog = "python3 -c 'x = []\nwhile True: x.append(bytearray(8 << 20))'"
	for _, c := range []struct {
		name, script string
		ended        sandbox.Ending
		kills        bool
	}{
		{"a hog", "exec " + hog, v1.EndedMemory, true},
		{"a hog's shell", hog + "; exit $?", v1.EndedExit, true},
		{"kill -9 of itself", "kill -9 $$", v1.EndedSignal, false},
		{"the exit code of a kill", "exit 137", v1.EndedExit, false},
		{"success", "true", v1.EndedExit, false},
	} {
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: c.script})
		if err != nil || v.Ended != c.ended || (v.MemoryKills > 0) != c.kills {
			t.Errorf("%s: %v with %d memory kills, %v", c.name, v, v.MemoryKills, err)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	b := newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{})
	for range 2 {
		if err := sb.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := sb.Ping(ctx); err == nil {
		t.Error("a paused sandbox answers")
	}
	for range 2 {
		if err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	shell(t, sb, "true")
}

func TestLabelsCanBeChanged(t *testing.T) {
	b := newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{Labels: map[string]string{sandbox.LabelSession: "pool"}})
	if err := b.Label(t.Context(), sb.ID(), map[string]string{sandbox.LabelSession: "alice"}); err != nil {
		t.Fatal(err)
	}
	all, err := b.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Labels[sandbox.LabelSession] != "alice" {
		t.Errorf("list: %+v, %v", all, err)
	}
	if got := docker(t, "inspect", "--format", `{{index .Config.Labels "dev.recluse.session"}}`, containerName(sb.ID())); got != "pool" {
		t.Errorf("the container's own label is %q", got)
	}
}
