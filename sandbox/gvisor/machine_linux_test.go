//go:build linux

package gvisor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAnEarlierMemoryKillIsNotTheCauseOfALaterEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		before time.Duration // time between the first kill and the end
		again  bool          // another kill at the end
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
			m.killsMu.Lock()
			if m.kills != nil {
				m.kills.close()
			}
			m.kills = &killCounter{files: []*os.File{counter}}
			m.killsMu.Unlock()
			if n, ok := m.MemoryKills(); !ok || n != 1 {
				t.Fatal(n, ok)
			}
			m.killsMu.Lock()
			m.seenAt = m.seenAt.Add(-c.before)
			m.killsMu.Unlock()
			if c.again {
				count("2")
			}
			if err := m.process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-m.Gone()
			if cause := m.Cause(); cause == nil || strings.Contains(cause.Error(), "OOM-killed") != c.want {
				t.Errorf("%v", cause)
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
		if err := b.sandboxes.Save(sb.ID(), r); err != nil {
			t.Fatal(err)
		}
	}
	// A program is attached that has not written its record yet.
	owner(1)
	sweep := func() {
		t.Helper()
		if err := b.sandboxes.Sweep(t.Context(), b.Stop); err != nil {
			t.Error(err)
		}
	}
	sweep()
	if v := cell(t, sb, "1+1"); v.Result.Text() != "2" {
		t.Fatal(v)
	}
	// Another program has taken the sandbox over and detached again.
	owner(^uint64(0))
	sb.Detach()
	sweep()
	if _, err := b.load(sb.ID()); err != nil {
		t.Fatal(err)
	}
	owner(1)
	sweep()
	_, err := b.load(sb.ID())
	wantCode(t, err, v1.CodeNotFound)
}
