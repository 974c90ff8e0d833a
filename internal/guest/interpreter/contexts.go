//go:build linux

// Package interpreter runs cells in live interpreters, one for each context of a sandbox.
//
// An interpreter is a process of a kernel (package kernel) below its own nanny. Its state stays from cell to cell. This
// package must not lose that state, must report every loss correctly, and must not be blocked by the interpreter:
// model-written code runs in that process. The code may replace functions that the kernel relies on, close descriptors,
// fork, stop itself, ignore interrupts, die, or send its own frames.
//
// # Turns
//
// Cells of one context run one after another. Only the holder of the interpreter's turn may communicate with it. A cell
// that is ended before its turn comes never runs. A running cell is interrupted, and again every quarter of its grace,
// because code may swallow an interrupt and a stopped interpreter receives none. After the grace, everything below the
// nanny is killed and the state is lost.
//
// # Races
//
// A cell may end while its interrupt is in transit: the signal must not hit the next cell. So the sender of a signal
// holds the lock of the cell and checks whether the cell is over. And after an interrupt, the guest requests a list
// from the nanny before it passes on the turn: when the nanny answers, it has sent the signal.
//
// An interpreter may die between two cells, or after a cell was sent to it and before it read the cell. Then the cell
// runs on a new interpreter, and its verdict reports that the state was lost before. The kernel writes the number of a
// cell to a page of shared memory when it reaches the first line of the cell, so the guest knows which cell was running
// when the interpreter died.
//
// Output comes in three ways: frames for output of the language, and the pipes 1 and 2 for output of C code and
// children. emitMu orders them: a pipe is read only after the frames that were sent before.
//
// # Constants
//
// The reason for each value is stated beside it. All of them are limits for code that does not cooperate; otherwise
// none of them causes a delay.
package interpreter

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/user"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// DefaultContext is the context of cells that do not name one.
const DefaultContext = "default"

// Config is the configuration of the interpreters.
type Config struct {
	Kernels    []kernel.Kernel // the first is the default
	Nannies    *nanny.Pool
	Operations *operation.Table
	Dir        string    // working directory of interpreters
	State      string    // the guest's state directory, for the FIFOs of cells with input
	User       user.User // runs interpreters, unless a cell requests another user
	SwitchUser bool      // the guest can run processes as another user
	// Env returns the environment of interpreters. It is used until the first Adopt.
	Env func() map[string]string
	// Call calls a function of the host for a cell.
	Call func(o *operation.Operation, name string, payload []byte) ([]byte, *wire.Error)
}

// Contexts are the live interpreters of a sandbox, by the names of their contexts.
type Contexts struct {
	cfg   Config
	calls callQueue

	mu       sync.Mutex
	env      map[string]string       // guarded by mu; nil: use cfg.Env
	renewals int                     // guarded by mu; number of calls of Adopt with renew
	live     map[string]*interpreter // guarded by mu
	starting map[string]*start       // guarded by mu
	lost     map[string]bool         // guarded by mu; contexts whose interpreter died between cells, not yet reported
	profiles map[string]Profile      // guarded by mu; of contexts with another profile than the default, live or not
}

// New returns Contexts without interpreters.
func New(cfg Config) *Contexts {
	return &Contexts{
		cfg:      cfg,
		live:     map[string]*interpreter{},
		starting: map[string]*start{},
		lost:     map[string]bool{},
		profiles: map[string]Profile{},
	}
}

// start is an interpreter that is being started.
type start struct {
	profile Profile
	done    chan struct{}
	i       *interpreter // set before done is closed
	bad     *wire.Error  // set before done is closed
}

// get returns the interpreter of a context, and starts one if there is none. It returns nil if cancelled is closed
// first; the start then continues for the next cell.
func (c *Contexts) get(name string, want Profile, cancelled <-chan struct{}) (*interpreter, *wire.Error) {
	c.mu.Lock()
	i, s := c.live[name], c.starting[name]
	if i == nil && s == nil {
		p, bad := c.profileOf(name, want)
		if bad != nil {
			c.mu.Unlock()
			return nil, bad
		}
		s = &start{profile: p, done: make(chan struct{})}
		c.starting[name] = s
		go c.start(name, s)
	}
	c.mu.Unlock()
	if i != nil {
		return i, i.profile.check(name, want)
	}
	if bad := s.profile.check(name, want); bad != nil {
		return nil, bad
	}
	select {
	case <-s.done:
		return s.i, s.bad
	case <-cancelled:
		return nil, nil
	}
}

// start starts an interpreter and stores it in live.
func (c *Contexts) start(name string, s *start) {
	defer close(s.done)
	c.mu.Lock()
	if c.env == nil {
		c.env = c.cfg.Env()
	}
	env, renewals := c.env, c.renewals
	c.mu.Unlock()
	s.i, s.bad = c.launch(name, s.profile, env)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.starting, name)
	if s.i == nil {
		return
	}
	if c.renewals != renewals {
		s.i.scheduleRenewal(env, c.env) // Adopt ran while it was starting
	}
	c.live[name] = s.i
	if p := s.profile; p.Language != c.cfg.Kernels[0].Language() || !p.User.Same(c.cfg.User) {
		c.profiles[name] = p
	}
}

// Adopt sets the environment of interpreters that are started from now on. renew means that this sandbox is a copy of
// another one. Then live interpreters also get the environment, and new seeds: two copies must not share random
// numbers.
func (c *Contexts) Adopt(env map[string]string, renew bool) {
	c.mu.Lock()
	old := c.env
	c.env = env
	var live []*interpreter
	if renew {
		c.renewals++
		live = slices.Collect(maps.Values(c.live))
	}
	c.mu.Unlock()
	for _, i := range live {
		i.scheduleRenewal(old, env)
	}
}

// Mains returns the pids of the interpreters, by the pids of their nannies.
func (c *Contexts) Mains() map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[int]int, len(c.live))
	for _, i := range c.live {
		m[i.nanny.PID()] = i.pid
	}
	return m
}

// List describes the live interpreters.
func (c *Contexts) List() *wire.ContextList {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &wire.ContextList{}
	for name, i := range c.live {
		list.Contexts = append(list.Contexts, &wire.ContextInfo{
			Name:     name,
			Pid:      int32(i.pid),
			Language: i.profile.Language,
			Version:  i.version,
			Busy:     len(i.turn) == 0,
		})
	}
	return list
}

// Close ends the interpreter of a context and the cell that runs in it.
func (c *Contexts) Close(name string) *wire.Error {
	c.mu.Lock()
	i, s := c.live[name], c.starting[name]
	c.mu.Unlock()
	if i == nil && s != nil {
		<-s.done
		i = s.i
	}
	c.mu.Lock()
	_, known := c.profiles[name]
	delete(c.profiles, name)
	c.mu.Unlock()
	switch {
	case i != nil:
		i.close()
	case !known:
		return wire.Errorf("not_found", "context %q not found", wire.Clip(name, 80))
	}
	return nil
}

// forget removes an interpreter from live.
func (c *Contexts) forget(i *interpreter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[i.context] == i {
		delete(c.live, i.context)
	}
}

// takeLoss reports whether the context lost its state between cells, and clears the record, so that each loss is
// reported once.
func (c *Contexts) takeLoss(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := c.lost[name]
	delete(c.lost, name)
	return lost
}

const (
	// warmUpTime bounds a cell that Warm runs.
	warmUpTime = 5 * time.Second
	// rehearsals is how many cells Warm runs. In an emulated machine, code is translated when it runs first, and the
	// first cells do not run all of it.
	rehearsals = 3
	// rehearsal shows a value in another way than as a result, which would remain as _.
	rehearsal = "__import__('recluse').display(1 + 1)\nNone"
)

// Warm starts the interpreter of the default context and runs cells that change nothing, so that all memory pages
// that a cell needs are loaded before the first real one: after a restore, loading them takes most of its time. It
// returns the verdict of such a cell, or nil if none was needed.
func (c *Contexts) Warm() (*wire.Verdict, *wire.Error) {
	i, bad := c.get(DefaultContext, Profile{}, nil)
	if bad != nil {
		return nil, bad
	}
	select {
	case <-i.turn:
	default:
		return nil, nil // a cell is running, so the pages are loaded
	}
	i.renewIfDue()
	seq, cells := i.seq, i.cells
	i.turn <- struct{}{}
	if cells > 0 {
		return nil, nil
	}
	var v *wire.Verdict
	for range rehearsals {
		o, bad := c.cfg.Operations.Add(operation.Request{ID: "rehearsal", Kind: "cell", Context: i.context, Detach: true})
		if bad != nil {
			return nil, nil // another Warm is running
		}
		v, bad = c.Run(o, Cell{
			Context: i.context,
			Code:    []byte(rehearsal),
			Options: &wire.RunOptions{TimeoutNs: int64(warmUpTime)},
		})
		o.EndOutput()
		if bad != nil {
			v = &wire.Verdict{Ending: wire.Ending_ENDING_START}
		}
		o.Finish(v)
		_ = c.cfg.Operations.Forget(o.ID) // hosts do not know it
		if !i.rehearsed(seq, cells) {
			break
		}
	}
	return v, nil
}

// rehearsed makes the interpreter forget the cell after seq, which Warm has run. It reports false if another cell has
// run, or runs.
func (i *interpreter) rehearsed(seq uint32, cells int64) bool {
	select {
	case <-i.turn:
		defer func() { i.turn <- struct{}{} }()
		if i.seq != seq+1 {
			return false
		}
		i.seq, i.cells = seq, cells
		return true
	default:
		return false
	}
}
