//go:build linux

package gvisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAnEarlierMemoryKillIsNotTheCauseOfALaterEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		before time.Duration // how long ago the first kill was seen
		again  bool          // another one at the end
		want   bool
	}{
		{name: "long before", before: time.Hour},
		{name: "long before, and another now", before: time.Hour, again: true, want: true},
		{name: "seen a moment ago by a command that began", want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := testBackend(t)
			sb := open(t, b, sandbox.Spec{})
			counter, err := os.Create(filepath.Join(t.TempDir(), "events"))
			if err != nil {
				t.Fatal(err)
			}
			count := func(s string) {
				if _, err := counter.WriteAt([]byte("oom_kill "+s+"\n"), 0); err != nil {
					t.Fatal(err)
				}
			}
			count("1")
			b.mu.Lock()
			m := b.machines[sb.ID()]
			b.mu.Unlock()
			m.mu.Lock() // watch reads it under the same lock
			if m.kills != nil {
				m.kills.close()
			}
			m.kills = &killCounter{files: []*os.File{counter}}
			m.mu.Unlock()
			if n, ok := m.MemoryKills(); !ok || n != 1 {
				t.Fatal(n, ok)
			}
			m.killsMu.Lock()
			m.seenAt = m.seenAt.Add(-c.before)
			m.killsMu.Unlock()
			if c.again {
				count("2")
			}
			if err := syscall.Kill(m.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-m.Gone()
			if cause := m.Cause(); cause == nil || strings.Contains(cause.Error(), "for memory") != c.want {
				t.Errorf("%v", cause)
			}
		})
	}
}

func TestHowAProcessEndedIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   syscall.WaitStatus
	}{
		"an exit status": {"exit 7", 7 << 8},
		"a signal":       {"kill -9 $$", 9},
	} {
		t.Run(name, func(t *testing.T) {
			// A zombie of our own: nobody reaps it before we do.
			cmd := exec.Command("/bin/sh", "-c", "read -r go; "+c.script)
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			if status, ok := zombieExit(fd, pid); ok {
				t.Errorf("while it runs: %d", status)
			}
			if _, err := in.Write([]byte("go\n")); err != nil {
				t.Fatal(err)
			}
			if err := waitPidfd(t.Context(), fd, answerWait); err != nil {
				t.Fatal(err)
			}
			if status, ok := exitOf(fd, pid); !ok || syscall.WaitStatus(status) != c.want {
				t.Errorf("before it is reaped: %d %t, want %d", status, ok, c.want)
			}
			_ = cmd.Wait() // it failed, as it was told to
			status, ok := exitOf(fd, pid)
			if ok && syscall.WaitStatus(status) != c.want || !ok && !endUntold(t) {
				t.Errorf("after it was reaped: %d %t, want %d", status, ok, c.want)
			}
			if status, ok := zombieExit(fd, os.Getpid()); ok {
				t.Errorf("of another process: %d", status)
			}
		})
	}
}

func TestAnAdoptedSandboxIsNoOrphan(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.NoTemplates = true
	sb := open(t, b, sandbox.Spec{})
	owner := func(change uint64) {
		r, err := b.load(sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		r.Owner.Start += change
		if err := statefile.Write(filepath.Join(b.sandboxDir(sb.ID()), recordFile), r); err != nil {
			t.Fatal(err)
		}
	}
	// Somebody is attached who has not signed the record yet.
	owner(1)
	b.sweepOrphans(t.Context())
	if v := cell(t, sb, "1+1"); v.Result.Text() != "2" {
		t.Fatal(v)
	}
	// It was adopted, and let go again, after the sweep had read the record.
	owner(^uint64(0))
	sb.Detach()
	b.endOrphan(t.Context(), sb.ID())
	if _, err := b.load(sb.ID()); err != nil {
		t.Fatal(err)
	}
	owner(1)
	b.sweepOrphans(t.Context())
	_, err := b.load(sb.ID())
	wantCode(t, err, sandbox.CodeNotFound)
}
