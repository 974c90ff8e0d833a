//go:build linux

package nanny

import (
	"errors"
	"maps"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

const (
	// maxIdle is the number of nannies kept for the next commands; each costs a few MB.
	maxIdle = 2
	// Tries is the number of attempts to start a process: code in the sandbox may have killed each idle nanny.
	Tries = maxIdle + 2
	// strayRounds bounds how often CloseDead searches for processes of a dead nanny.
	strayRounds = 1000
)

// Owner is the operation whose processes a nanny runs.
type Owner interface {
	Finished() bool
	// Killed records that a process was OOM-killed.
	Killed(pid int)
}

// Pool starts nannies, keeps idle ones, and records the owner of each nanny's processes.
type Pool struct {
	self string
	cfg  Config

	mu     sync.Mutex
	idle   []*Nanny       // guarded by mu
	all    map[int]*Nanny // guarded by mu; all nannies, by pid
	owners map[int]Owner  // guarded by mu; by the nanny's pid

	// spawnMu is held for writing during the search for strays: a nanny that is started but not yet recorded would look
	// like a stray.
	spawnMu sync.RWMutex
}

// NewPool returns a pool of nannies that are started from the guest's own binary.
func NewPool(self string, cfg Config) *Pool {
	return &Pool{self: self, cfg: cfg, all: map[int]*Nanny{}, owners: map[int]Owner{}}
}

// Warm ensures that there is an idle nanny for the next command.
func (p *Pool) Warm() error {
	n, err := p.take()
	if err == nil {
		p.Put(n)
	}
	return err
}

// take returns a nanny without a tree.
func (p *Pool) take() (*Nanny, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		got := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return got, nil
	}
	p.mu.Unlock()
	p.spawnMu.RLock()
	defer p.spawnMu.RUnlock()
	n, err := Spawn(p.self, p.cfg)
	if err == nil {
		p.mu.Lock()
		p.all[n.PID()] = n
		p.mu.Unlock()
	}
	return n, err
}

// Launch starts a process under a nanny; o may be nil. With ErrLost the process may be running, and the caller must
// call CloseDead.
func (p *Pool) Launch(o Owner, s *Start, files []int) (n *Nanny, e *Event, err error) {
	for range Tries {
		if n, err = p.take(); err != nil {
			return nil, nil, err
		}
		if o != nil {
			p.Own(n, o)
		}
		if s.Mute {
			err = n.Begin(s, files)
		} else {
			e, err = n.Start(s, files)
		}
		if err == nil || errors.Is(err, ErrLost) {
			return n, e, err
		}
		p.close(n)
		if !errors.Is(err, ErrDead) {
			break
		}
	}
	return nil, nil, err
}

// close ends a nanny and everything it runs.
func (p *Pool) close(n *Nanny) {
	n.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, n.PID())
	delete(p.all, n.PID())
}

// Put returns a nanny whose tree has ended to the pool.
func (p *Pool) Put(n *Nanny) {
	p.mu.Lock()
	delete(p.owners, n.PID())
	if len(p.idle) < maxIdle {
		p.idle = append(p.idle, n)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.close(n)
}

// CloseDead closes a dead nanny and kills its tree. The kernel makes the guest the parent of that tree only when the
// exit of the nanny is complete, a while after its connection has ended: an earlier search for strays would find none.
func (p *Pool) CloseDead(n *Nanny) {
	p.close(n)
	for range strayRounds {
		if !p.killStrays() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// killStrays kills processes that became children of the guest because their nanny died, and reports whether there were
// any.
func (p *Pool) killStrays() (found bool) {
	p.spawnMu.Lock()
	defer p.spawnMu.Unlock()
	all, err := proc.List()
	if err != nil {
		return false
	}
	nannies := p.PIDs()
	for _, q := range all {
		if q.PPID != os.Getpid() || nannies[q.PID] {
			continue
		}
		found = true
		_ = unix.Kill(q.PID, syscall.SIGKILL) // it may have ended already
		var ws unix.WaitStatus
		_, _ = unix.Wait4(q.PID, &ws, unix.WNOHANG, nil)
	}
	return found
}

// Own records the owner of the processes of a nanny.
func (p *Pool) Own(n *Nanny, o Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owners[n.PID()] = o
}

// Disown removes the record of Own.
func (p *Pool) Disown(n *Nanny) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, n.PID())
}

// PIDs returns the pids of all nannies.
func (p *Pool) PIDs() map[int]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pids := map[int]bool{}
	for pid := range p.all {
		pids[pid] = true
	}
	return pids
}

// Get returns the nanny with a pid, or nil.
func (p *Pool) Get(pid int) *Nanny {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[pid]
}

// Owners returns the owner of each nanny's processes, by the pid of the nanny.
func (p *Pool) Owners() map[int]Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.owners)
}
