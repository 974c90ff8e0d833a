//go:build linux

package nanny

import (
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/testbin"
)

func pool(t *testing.T) *Pool {
	t.Helper()
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	p := NewPool(guest.Path, Config{UID: -1})
	t.Cleanup(func() {
		for len(p.idle) > 0 {
			n, err := p.take()
			if err != nil {
				t.Fatal(err)
			}
			p.close(n)
		}
		if len(p.PIDs()) > 0 || len(p.Owners()) > 0 {
			t.Errorf("left: %v, of %v", p.PIDs(), p.Owners())
		}
	})
	return p
}

// launch runs a script and returns its nanny and its pid.
func (p *Pool) launch(t *testing.T, o Owner, script string) (*Nanny, int) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	n, e, err := p.Launch(o, &Start{
		Path: []byte("/bin/sh"), Argv: [][]byte{[]byte("sh"), []byte("-c"), []byte(script)}, Env: [][]byte{[]byte("PATH=/usr/bin:/bin")}, Dir: []byte("/"),
	}, []int{fd, fd, fd})
	if err != nil || e.PID == 0 {
		t.Fatalf("%+v %v", e, err)
	}
	return n, e.PID
}

type operation struct{}

func (*operation) Finished() bool { return false }
func (*operation) Killed(int)     {}

func TestANannyReturnsToThePool(t *testing.T) {
	p := pool(t)
	o := &operation{}
	n, _ := p.launch(t, o, "exit 0")
	if !p.PIDs()[n.PID()] || p.Owners()[n.PID()] != o {
		t.Errorf("%v, %v", p.PIDs(), p.Owners())
	}
	next(t, n)
	p.Put(n)
	if len(p.Owners()) != 0 {
		t.Error("an idle nanny has an owner")
	}
	again, _ := p.launch(t, nil, "exit 0")
	if again != n {
		t.Error("another nanny was started")
	}
	next(t, again)
	p.Put(again)
	var some []*Nanny
	for range maxIdle + 2 {
		n, err := p.take()
		if err != nil {
			t.Fatal(err)
		}
		some = append(some, n)
	}
	for _, n := range some {
		p.Put(n)
	}
	if len(p.idle) != maxIdle || len(p.PIDs()) != maxIdle {
		t.Errorf("%d are idle of %d", len(p.idle), len(p.PIDs()))
	}
}

func TestADeadIdleNannyIsReplaced(t *testing.T) {
	p := pool(t)
	if err := p.Warm(); err != nil {
		t.Fatal(err)
	}
	dead := p.idle[0]
	_ = syscall.Kill(dead.PID(), syscall.SIGKILL)
	<-dead.done
	n, _ := p.launch(t, nil, "exit 0")
	if n == dead || p.PIDs()[dead.PID()] {
		t.Error("the dead nanny is still in the pool")
	}
	next(t, n)
	p.Put(n)
}

// The processes of a dead nanny become children of the guest, which is a subreaper.
func TestBuryKillsWhatADeadNannyRan(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	p := pool(t)
	other, _ := p.launch(t, nil, "exit 0")
	n, pid := p.launch(t, nil, "setsid sleep 1000 & sleep 1000")
	var all []proc.Process
	for end := time.Now().Add(20 * time.Second); len(all) < 3; time.Sleep(time.Millisecond) {
		var err error
		if all, err = proc.Descendants(n.PID()); err != nil || time.Now().After(end) {
			t.Fatalf("%v %v", all, err)
		}
	}
	_ = syscall.Kill(n.PID(), syscall.SIGKILL)
	p.CloseDead(n)
	for _, q := range all {
		if now, ok := proc.Get(q.PID); ok && now.Start == q.Start && !now.Zombie {
			t.Errorf("process %d, started by %d, is alive", q.PID, pid)
		}
	}
	if q, ok := proc.Get(other.PID()); !ok || q.Zombie {
		t.Error("another nanny was killed as a stray")
	}
	next(t, other)
	p.Put(other)
}
