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
	// maxIdle is how many nannies are kept for the next commands; each costs a few MB.
	maxIdle = 2
	// Tries is how often a start is tried: each idle nanny may have been killed by code in the sandbox.
	Tries = maxIdle + 2
	// strayRounds bounds how often Bury looks for processes of a nanny that has died.
	strayRounds = 1000
)

// Owner is the operation whose processes a nanny runs.
type Owner interface {
	Finished() bool
	// Killed records that a process was killed for memory.
	Killed(pid int)
}

// Pool starts nannies, keeps idle ones, and knows whose processes each runs.
type Pool struct {
	self string
	cfg  Config

	mu     sync.Mutex
	idle   []*Nanny      // guarded by mu
	all    map[int]bool  // guarded by mu; their pids
	owners map[int]Owner // guarded by mu; by the nanny's pid

	// spawnMu is held for writing while strays are looked for: a nanny that has been started and not yet recorded would look like one.
	spawnMu sync.RWMutex
}

// NewPool returns a pool of nannies that are started from the guest's own binary.
func NewPool(self string, cfg Config) *Pool {
	return &Pool{self: self, cfg: cfg, all: map[int]bool{}, owners: map[int]Owner{}}
}

// Warm makes sure that the next command finds an idle nanny.
func (p *Pool) Warm() error {
	n, err := p.take()
	if err == nil {
		p.Give(n)
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
		p.all[n.PID()] = true
		p.mu.Unlock()
	}
	return n, err
}

// Launch starts a process under a nanny; o may be nil. With ErrLost the process may run, and the nanny is the caller's to Bury.
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

// close ends a nanny, with whatever it runs.
func (p *Pool) close(n *Nanny) {
	n.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, n.PID())
	delete(p.all, n.PID())
}

// Give takes back a nanny whose tree has ended.
func (p *Pool) Give(n *Nanny) {
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

// Bury closes a nanny that has died, and kills its tree. The kernel hands that tree to the guest only when it has done with the nanny,
// a while after its connection has ended: looking for strays earlier would find none.
func (p *Pool) Bury(n *Nanny) {
	p.close(n)
	for range strayRounds {
		if !p.endStrays() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// endStrays kills what was handed to the guest because its nanny died, and reports whether there was anything.
func (p *Pool) endStrays() (found bool) {
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
		_ = unix.Kill(q.PID, syscall.SIGKILL) // gone is what we want
		var ws unix.WaitStatus
		_, _ = unix.Wait4(q.PID, &ws, unix.WNOHANG, nil)
	}
	return found
}

// Own records whose processes a nanny runs.
func (p *Pool) Own(n *Nanny, o Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owners[n.PID()] = o
}

// Disown is the opposite of Own.
func (p *Pool) Disown(n *Nanny) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, n.PID())
}

// PIDs returns the pids of all nannies.
func (p *Pool) PIDs() map[int]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.all)
}

// Owners returns whose processes each nanny runs, by the nanny's pid.
func (p *Pool) Owners() map[int]Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.owners)
}
