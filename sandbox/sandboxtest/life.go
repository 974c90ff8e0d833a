package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

var life = []feature{
	{"a flood of 50 MB leaves this program small", onBackend, flood},
	connections,
	{"the guest describes the inside", onBackend | overHTTP, func(t *testing.T, s *suite) {
		g, err := s.open(t).Guest(t.Context())
		noError(t, err)
		if g.Kernel == "" || g.Home == "" || g.CPUs <= 0 || g.Memory <= 0 || g.Uptime <= 0 || s.caps.Bash != (g.Shell != "") || s.caps.Python != (g.Python != "") {
			t.Errorf("%+v", g)
		}
	}},
	{"sandboxes are listed with their labels", onBackend, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": the session manager sets the labels of a session's sandbox")
		b := s.backend(t)
		spec := s.opts.Spec
		spec.Labels = map[string]string{"who": "me"}
		sb := s.mustOpen(t, b, spec).(*sandbox.Sandbox)
		find := func() *sandbox.Info {
			all, err := b.List(t.Context())
			noError(t, err)
			i := slices.IndexFunc(all, func(i sandbox.Info) bool { return i.ID == sb.ID() })
			if i < 0 {
				return nil
			}
			return &all[i]
		}
		i := find()
		if i == nil || !i.Running || i.Labels["who"] != "me" || i.Backend != b.Name() || time.Since(i.Created) > time.Minute {
			t.Errorf("listed as %+v", i)
		}
		noError(t, sb.Close())
		if i := find(); i != nil {
			t.Errorf("still listed: %+v", i)
		}
		noError(t, sb.Close())
		noError(t, b.Stop(t.Context(), sb.ID()))
		_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
		fails(t, "a command after Close", err, v1.CodeSandboxLost)
	}},
	{"closing ends what runs, at once", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": a session ends with SIGTERM first, and takes longer")
		sb := s.library(t)
		var out recorder
		command := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "trap '' TERM; echo ready; while :; do sleep 0.1; done", RunOptions: sandbox.RunOptions{Stdout: &out}})
		out.await(t, "ready")
		began := time.Now()
		noError(t, sb.Close())
		if took := time.Since(began); took > maxWait {
			t.Errorf("it took %s", took)
		}
		fails(t, "the command", await(t, "the end of the command", command).err, v1.CodeSandboxLost)
	}},
	{"a start that is given up leaves nothing", onBackend, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": a session that is being created stays for the next caller")
		b := s.backend(t)
		before, err := b.List(t.Context())
		noError(t, err)
		_, err = sandbox.Open(cancelledContext(), b, s.opts.Spec)
		if err == nil {
			t.Fatal("no error for a cancelled ctx")
		}
		for d := time.Millisecond; d < 50*time.Millisecond; d *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			if sb, err := sandbox.Open(ctx, b, s.opts.Spec); err == nil {
				noError(t, sb.Close())
			} else if !errors.Is(err, sandbox.ErrCancelled) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cancelled after %s: %v", d, err)
			}
			cancel()
		}
		after, err := b.List(t.Context())
		noError(t, err)
		same(t, "sandboxes", len(after), len(before))
	}},
	{"a bad spec is refused before anything is made", onBackend | overHTTP, func(t *testing.T, s *suite) {
		b := s.backend(t)
		for name, change := range map[string]func(*sandbox.Spec){
			"no memory":         func(x *sandbox.Spec) { x.Limits.Memory = -1 },
			"too little memory": func(x *sandbox.Spec) { x.Limits.Memory = 1 << 20 },
			"no CPU":            func(x *sandbox.Spec) { x.Limits.CPUs = -1 },
			"one process":       func(x *sandbox.Spec) { x.Limits.Processes = 1 },
			"a relative dir":    func(x *sandbox.Spec) { x.Dir = "here" },
			"a bad variable":    func(x *sandbox.Spec) { x.Env = map[string]string{"A=B": "x"} },
		} {
			spec := s.opts.Spec
			change(&spec)
			_, err := s.openMachine(t.Context(), b, spec)
			fails(t, name, err, v1.CodeInvalidSpec)
		}
	}},
	{"what the backend cannot do it refuses by name", onBackend, func(t *testing.T, s *suite) {
		b := s.backend(t)
		refused := func(what string, can bool, change func(*sandbox.Spec)) {
			t.Helper()
			if can {
				return
			}
			spec := s.opts.Spec
			change(&spec)
			sb, err := s.openMachine(t.Context(), b, spec)
			if err == nil {
				_ = sb.Close()
			}
			fails(t, what, err, v1.CodeNotSupported)
		}
		refused("an image", s.caps.Images, func(x *sandbox.Spec) { x.Image = "docker.io/library/alpine" })
		refused("a mount", s.caps.Mounts, func(x *sandbox.Spec) {
			x.Mounts = []sandbox.Mount{{Host: "/opt", Path: "/mnt/opt"}}
		})
	}},
	{"many sandboxes live at once and leave nothing behind", onBackend | overHTTP, func(t *testing.T, s *suite) {
		b := s.backend(t)
		n := s.opts.Many
		all := make([]Owned, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				sb, err := s.openMachine(t.Context(), b, s.opts.Spec)
				if err != nil {
					errs[i] = err
					return
				}
				all[i] = sb
				t.Cleanup(func() { _ = sb.Close() }) // in case the test fails before it closes the sandbox
				v, err := sb.Run(t.Context(), sandbox.Command{Shell: fmt.Sprintf("echo %d > mine; setsid sleep 1000 >/dev/null 2>&1 & echo started", i)})
				if err == nil && v.Stdout.String() != "started\n" {
					err = fmt.Errorf("%s: %s", v, v.Stdout)
				}
				errs[i] = err
			})
		}
		wg.Wait()
		noError(t, errors.Join(errs...))
		ids := make([]string, n)
		for i, sb := range all {
			ids[i] = sb.ID()
			wg.Go(func() {
				v, err := sb.Run(t.Context(), sandbox.Command{Shell: "cat mine"})
				if err == nil && strings.TrimSpace(v.Stdout.String()) != fmt.Sprint(i) {
					err = fmt.Errorf("sandbox %d has the file of another: %s", i, v.Stdout)
				}
				errs[i] = err
			})
		}
		wg.Wait()
		noError(t, errors.Join(errs...))
		same(t, "different ids", len(slices.Compact(slices.Sorted(slices.Values(ids)))), n)
		for i, sb := range all {
			wg.Go(func() { errs[i] = sb.Close() })
		}
		wg.Wait()
		noError(t, errors.Join(errs...))
		if s.opts.Leftovers != nil {
			if left := s.opts.Leftovers(t, ids); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		}
		listed := func() bool {
			list, err := b.List(t.Context())
			noError(t, err)
			return slices.ContainsFunc(list, func(i sandbox.Info) bool { return slices.Contains(ids, i.ID) })
		}
		if s.opts.Open != nil {
			// A session ends at once, and its sandbox a little later.
			testneed.Await(t, "none of them is listed", func() bool { return !listed() })
		} else if listed() {
			t.Error("some closed sandboxes are still listed")
		}
	}},
}

var snapshots = []feature{
	{"a snapshot holds what the capabilities say, or is refused", onBackend | overHTTP, func(t *testing.T, s *suite) {
		b := s.backend(t)
		if s.opts.Open != nil {
			s.testCopy(t)
			return
		}
		sb := s.mustOpen(t, b, s.opts.Spec).(*sandbox.Sandbox)
		if s.caps.Snapshots == sandbox.SnapshotsNone {
			_, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
			fails(t, "snapshot", err, v1.CodeNotSupported)
			_, err = sb.Fork(t.Context(), 2)
			fails(t, "fork", err, v1.CodeNotSupported)
			_, err = sandbox.Restore(t.Context(), b, &sandbox.Snapshot{ID: "x"}, sandbox.RestoreOptions{})
			fails(t, "restore", err, v1.CodeNotSupported)
			noError(t, b.DeleteSnapshot(t.Context(), "x"))
			succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
			return
		}
		shell(t, sb, "echo from before > file")
		if s.caps.Python && s.caps.Snapshots == sandbox.SnapshotsMemory {
			okCell(t, sb, "import random\nx = [1, 2, 3]")
		}
		snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Labels: map[string]string{"n": "1"}})
		noError(t, err)
		t.Cleanup(func() { noError(t, b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID)) })
		if snap.ID == "" || (snap.Size > 0) == s.opts.SizeUnknown || snap.Parent != sb.ID() || snap.Labels["n"] != "1" || snap.Backend != b.Name() {
			t.Errorf("%+v", snap)
		}
		all, err := b.Snapshots(t.Context())
		noError(t, err)
		same(t, "listed", slices.ContainsFunc(all, func(x *sandbox.Snapshot) bool { return x.ID == snap.ID }), true)
		shell(t, sb, "echo changed > file") // the original continues
		restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{Env: map[string]string{"NEW": "yes"}})
		noError(t, err)
		t.Cleanup(func() { noError(t, restored.Close()) })
		same(t, "file", shell(t, restored, "cat file; echo $NEW"), "from before\nyes\n")
		if restored.ID() == sb.ID() {
			t.Error("the copy has the id of its original")
		}
		if s.caps.Snapshots != sandbox.SnapshotsMemory || !s.caps.Python {
			return
		}
		same(t, "variables", okCell(t, restored, "x").Result.Text(), "[1, 2, 3]")
		before := time.Now()
		now := okCell(t, restored, "import time; time.time()").Result.Text()
		var seconds float64
		_, err = fmt.Sscan(now, &seconds)
		noError(t, err)
		if d := time.Unix(int64(seconds), 0).Sub(before); d < -5*time.Second || d > time.Since(before)+5*time.Second {
			t.Errorf("the clock of the restored sandbox differs by %s", d)
		}
	}},
	{"forks are alive, alike and independent", onBackend | overHTTP, func(t *testing.T, s *suite) {
		if s.caps.Snapshots != sandbox.SnapshotsMemory || !s.caps.Python {
			t.Skip("not supported here, which another feature tests")
		}
		sb := s.open(t)
		okCell(t, sb, "import random, os\nx = list(range(1000))")
		op, err := sb.Start(t.Context(), sandbox.Command{Shell: "while :; do sleep 0.05; [ -e go ] && break; done; echo through"})
		noError(t, err)
		forks := forks(t, sb, 3)
		same(t, "copies", len(forks), 3)
		seen := map[string]bool{}
		for i, f := range append(forks, sb) {
			same(t, "variables", okCell(t, f, "sum(x)").Result.Text(), "499500")
			okCell(t, f, fmt.Sprintf("x.append(%d)", i))
			for _, code := range []string{"random.random()", "os.urandom(8)", "__import__('uuid').uuid4()"} {
				r := okCell(t, f, code).Result.Text()
				if seen[r] {
					t.Errorf("%s returned %s twice", code, r)
				}
				seen[r] = true
			}
		}
		for i, f := range append(forks, sb) {
			same(t, "its own variables", okCell(t, f, "x[-1]").Result.Text(), fmt.Sprint(i))
			same(t, "its length", okCell(t, f, "len(x)").Result.Text(), "1001")
			shell(t, f, "touch go")
			v, err := f.Follow(t.Context(), op, sandbox.FollowOptions{})
			noError(t, err)
			same(t, "a running command", v.Stdout.String(), "through\n")
		}
	}},
}

// testCopy tests a snapshot of a machine that is not made with the library.
func (s *suite) testCopy(t *testing.T) {
	t.Helper()
	sb := s.open(t)
	shell(t, sb, "echo from before > file")
	restore, forget, err := sb.(Copier).Save(t.Context())
	if s.caps.Snapshots == sandbox.SnapshotsNone {
		fails(t, "snapshot", err, v1.CodeNotSupported)
		return
	}
	noError(t, err)
	t.Cleanup(func() { noError(t, forget(context.WithoutCancel(t.Context()))) })
	shell(t, sb, "echo changed > file")
	restored, err := restore(t.Context())
	noError(t, err)
	closeAtEnd(t, restored)
	same(t, "its file", shell(t, restored, "cat file"), "from before\n")
	same(t, "the original's file", shell(t, sb, "cat file"), "changed\n")
}
