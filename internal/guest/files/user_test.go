//go:build linux

package files

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUserSwitch(t *testing.T) {
	f := switched(t)
	ctx := context.Background()
	d := dir(t)
	put(t, d+"/private", "secret")
	must(t, os.Chown(d+"/private", 0, 0))
	must(t, os.Chmod(d+"/private", 0o600))
	must(t, os.Mkdir(d+"/closed", 0o700))
	put(t, d+"/closed/inside", "secret")
	must(t, os.Mkdir(d+"/passage", 0o711))
	put(t, d+"/passage/inside", "open")

	_, err := f.readString(d, "private", 0, 0)
	wantKind(t, err, Permission)
	_, err = f.readString(d, "closed/inside", 0, 0)
	wantKind(t, err, Permission)
	wantKind(t, f.writeString(d, "private", "x", WriteOptions{}), Permission)
	wantKind(t, f.writeString(d, "private", "x", WriteOptions{Append: true}), Permission)
	wantKind(t, f.writeString(d, "closed/new", "x", WriteOptions{}), Permission)
	wantKind(t, f.writeString("/", "/etc/recluse-test", "x", WriteOptions{}), Permission)
	wantKind(t, f.Mkdir(ctx, "/", "/usr/recluse-test", MkdirOptions{}), Permission)
	wantKind(t, f.Move(ctx, "/", "/etc/passwd", d+"/stolen", MoveOptions{}), Permission)
	_, err = f.Remove(ctx, d, "closed", RemoveOptions{Recursive: true})
	wantKind(t, err, Permission)
	_, err = f.List(ctx, d, "closed", ListOptions{}, func(Info) error { return nil })
	wantKind(t, err, Permission)
	wantKind(t, f.Watch(ctx, d, "closed", WatchOptions{}, func(Event) error { return nil }), Permission)
	_, err = f.TarIn(ctx, d, "closed", tarOf(t, file("x", "x")), TarOptions{})
	wantKind(t, err, Permission)
	_, err = f.readString("/", "/proc/1/environ", 0, 0)
	wantKind(t, err, Permission)
	if got, err := f.readString("/", d+"/passage/inside", 0, 0); err != nil || got != "open" {
		t.Errorf("a directory with search permission only: %q, %v", got, err)
	}

	var archive bytes.Buffer
	stats, err := f.TarOut(ctx, d, []string{"/"}, &archive, TarOptions{})
	must(t, err)
	// Skipped are private, and the content of closed and passage.
	if stats.SkippedCount != 3 || strings.Contains(archive.String(), "secret") {
		t.Errorf("stats %+v", stats)
	}

	must(t, f.writeString(d, "mine", "x", WriteOptions{}))
	must(t, f.Mkdir(ctx, d, "dir/deep", MkdirOptions{Parents: true}))
	for _, name := range []string{"/mine", "/dir", "/dir/deep"} {
		fi, err := os.Lstat(d + name)
		must(t, err)
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != testUID || st.Gid != testGID {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	if get(t, d+"/private") != "secret" {
		t.Error("private was changed")
	}
}

func TestNoSupplementaryGroups(t *testing.T) {
	switched(t)
	d := dir(t)
	put(t, d+"/team", "team")
	must(t, os.Chown(d+"/team", 0, 4321))
	must(t, os.Chmod(d+"/team", 0o640))
	f := New(Options{UID: testUID, GID: testGID, SwitchUser: true})
	_, err := f.readString(d, "team", 0, 0)
	wantKind(t, err, Permission)
}

// foreignThreads returns the Uid lines of all threads that do not belong to root.
func foreignThreads(t *testing.T) (foreign []string) {
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	must(t, err)
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if strings.HasPrefix(line, "Uid:") && line != "Uid:\t0\t0\t0\t0" {
				foreign = append(foreign, line)
			}
		}
	}
	return foreign
}

func TestThreadThatCannotComeBackIsDiscarded(t *testing.T) {
	f := switched(t)
	var failed atomic.Int32
	resume := f.resume
	f.resume = func() error {
		failed.Add(1)
		return errors.New("refused")
	}
	d := dir(t)
	put(t, d+"/file", "x")
	for range 20 {
		if got, err := f.readString(d, "file", 0, 0); err != nil || got != "x" {
			t.Fatal(got, err)
		}
	}
	if failed.Load() != 20 {
		t.Fatal("resume was not called")
	}
	end := time.Now().Add(20 * time.Second)
	for len(foreignThreads(t)) > 1 && time.Now().Before(end) { // threads end asynchronously
		time.Sleep(time.Millisecond)
	}
	// The first thread of a process cannot end before the process; the runtime parks it.
	if left := foreignThreads(t); len(left) > 1 {
		t.Errorf("threads keep the user's ids: %q", left)
	}
	for range 100 {
		var uid int
		done := make(chan struct{})
		go func() { defer close(done); runtime.Gosched(); uid = unix.Geteuid() }()
		<-done
		if uid != 0 {
			t.Fatal("a goroutine got a thread with the user's ids")
		}
	}
	f.resume = resume
	if _, err := f.readString(d, "file", 0, 0); err != nil {
		t.Error(err)
	}
}
