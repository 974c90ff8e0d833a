package session

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// tinyDisk returns a directory on its own small file system. The log of the store never gets so large that the store
// would reuse its space, so that every write needs new space.
func tinyDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m,mode=700"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no file system can be mounted here: %v", err)
		}
		t.Skipf("NOT TESTED: a full disk needs a file system of its own: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all space on the disk of the store. It also takes the space of writes that the store has rolled back,
// because the next write could use it. The journal is paused meanwhile, because its writes would free space.
func (k *bench) fill() {
	k.t.Helper()
	defer k.m.journal.Pause()()
	f, err := os.OpenFile(filepath.Join(k.dir, "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		k.t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		k.t.Fatal(err)
	}
	for i := int64(1); ; i++ {
		switch err := k.m.store.Append(k.t.Context(), store.Batch{Events: []store.Event{{Session: "filler", Seq: i, Data: []byte("{}")}}}); {
		case v1.CodeOf(err) == v1.CodeDiskFull:
			return
		case err != nil:
			k.t.Fatal(err)
		}
	}
}

// free frees the space that fill took.
func (k *bench) free() {
	k.t.Helper()
	if err := os.Remove(filepath.Join(k.dir, "filler")); err != nil {
		k.t.Fatal(err)
	}
}

// fullBench is a bench whose store is on a disk that a test can fill.
func fullBench(t *testing.T) *bench {
	t.Helper()
	dir := tinyDisk(t)
	return newBenchIn(t, dir, quick())
}

func TestAFullDiskHarmsNothing(t *testing.T) {
	k := fullBench(t)
	ctx := WithActor(t.Context(), Actor{Name: "ann"})
	s, _, err := k.m.Open(ctx, Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Expires: v1.Duration(time.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "x = 1")
	save(t, s, "one")
	before := s.Info()
	k.fill()

	_, _, err = k.m.Open(ctx, Key{Name: "new"}, OpenOptions{})
	wantCode(t, "a new session", err, v1.CodeDiskFull)
	_, err = k.m.Get(ctx, Key{Name: "new"})
	wantCode(t, "what is left of it", err, v1.CodeSessionNotFound)
	_, err = s.Save(ctx, "two")
	wantCode(t, "a snapshot", err, v1.CodeDiskFull)
	_, err = s.Fork(ctx, 2, nil)
	if sleeps(k.b) {
		wantCode(t, "forks", err, v1.CodeDiskFull)
	} else {
		wantCode(t, "forks", err, v1.CodeNotSupported)
	}
	wantCode(t, "a variable", s.SetVar(ctx, "v", "1"), v1.CodeDiskFull)
	_, err = s.Extend(ctx, 0)
	wantCode(t, "an extension", err, v1.CodeDiskFull)
	wantCode(t, "a restore", s.Restore(ctx, "one"), v1.CodeDiskFull)
	wantCode(t, "a pause", s.Pause(ctx), v1.CodeDiskFull)

	// Calls that need no disk space still work, and rejected calls have left nothing.
	v, err := s.Cell(ctx, sandbox.Cell{Code: "x = x + 1; x"})
	if err != nil || v.Result.Text() != "2" {
		t.Errorf("a cell: %v, %v", v, err)
	}
	if n := k.sandboxes(); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	if n := k.images(); n != 1 {
		t.Errorf("%d images", n)
	}
	if i := s.Info(); i.State != v1.StateReady || !i.Expires.Equal(*before.Expires) || i.Snapshots != 1 || i.Sandbox != before.Sandbox {
		t.Errorf("the session was %+v and is %+v", before, i)
	}

	k.free()
	want(t, "x", py(t, s, "x"), "2")
	want(t, "a new session", py(t, k.open("new"), "1"), "1")
	save(t, s, "two")
	if err := s.SetVar(ctx, "v", "1"); err != nil {
		t.Error(err)
	}
	var cells []string
	for e, err := range k.m.Audit(ctx, AuditOptions{Tenant: DefaultTenant, Session: "work", Actor: "ann", Action: "cell"}) {
		if err != nil {
			t.Fatal(err)
		}
		cells = append(cells, e.Detail)
	}
	want(t, "what ran on a full disk, in the audit log", strings.Join(cells, ";"), "x = x + 1; x")
	k.restart()
	want(t, "x after a restart", py(t, k.get("work"), "x"), "2")
	if err := k.m.DeleteSnapshot(ctx, Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestEndingOnAFullDiskFreesTheKey(t *testing.T) {
	for _, restart := range []bool{false, true} {
		name := map[bool]string{false: "the same server", true: "the next server"}[restart]
		t.Run(name, func(t *testing.T) {
			k := fullBench(t)
			s := k.open("work")
			py(t, s, "x = 1")
			k.fill()
			if err := s.End(t.Context(), ""); err != nil {
				t.Errorf("the session has ended, but the error is %v", err)
			}
			<-s.disposed
			if n := k.sandboxes(); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
			_, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{})
			wantCode(t, "a new one of its name", err, v1.CodeDiskFull)
			k.free()
			if restart {
				k.restart()
			}
			v, err := k.open("work").Cell(t.Context(), sandbox.Cell{Code: "'x' in globals()"})
			if err != nil || v.Result.Text() != "False" {
				t.Errorf("a new session with its name: %v, %v", v, err)
			}
		})
	}
}

func TestADiskThatFillsWhileASessionIsMade(t *testing.T) {
	var armed atomic.Bool
	var full atomic.Pointer[bench]
	onFailpoint(t, func(name string) {
		if name == "create.made" && armed.CompareAndSwap(true, false) {
			full.Load().fill()
		}
	})
	k := fullBench(t)
	full.Store(k)
	armed.Store(true)
	_, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{})
	wantCode(t, "a session", err, v1.CodeDiskFull)
	if n := k.sandboxes(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
	k.free()
	want(t, "a cell of the next one", py(t, k.open("work"), "1"), "1")
	k.restart()
	want(t, "a cell after a restart", py(t, k.get("work"), "1"), "1")
}

func TestAManagerDoesNotStartOnAFullDisk(t *testing.T) {
	k := fullBench(t)
	py(t, k.open("work"), "x = 1")
	if err := k.m.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(k.dir, "filler")
	if err := os.WriteFile(taken, make([]byte, 3<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	m, err := New(t.Context(), k.opts)
	if err == nil {
		_ = m.Detach(t.Context())
	}
	wantCode(t, "a manager", err, v1.CodeDiskFull)
	k.free()
	k.start()
	want(t, "x", py(t, k.get("work"), "x"), "1")
}

func TestNoCodeRunsThatTheAuditLogCannotHold(t *testing.T) {
	dir := tinyDisk(t)
	o := quick()
	o.journalRoom = 20
	k := newBenchIn(t, dir, o)
	s := k.open("work")
	py(t, s, "n = 0")
	k.fill()
	ran := 0
	for ; ran < 100; ran++ {
		if _, err := s.Cell(t.Context(), sandbox.Cell{Code: "n += 1"}); err != nil {
			wantCode(t, "a cell", err, v1.CodeDiskFull)
			break
		}
	}
	if ran == 0 || ran == 100 {
		t.Errorf("%d cells ran", ran)
	}
	k.free()
	await(t, "code runs again", func() bool {
		_, err := s.Cell(t.Context(), sandbox.Cell{Code: "pass"})
		return err == nil
	})
	noted := 0
	for e, err := range k.m.Audit(t.Context(), AuditOptions{Action: "cell"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Detail == "n += 1" && e.Error == "" {
			noted++
		}
	}
	if got := py(t, s, "n"); got != strconv.Itoa(ran) || noted != ran {
		t.Errorf("%d cells were answered, %s ran, %d are in the audit log", ran, got, noted)
	}
}
