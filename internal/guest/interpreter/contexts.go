//go:build linux

// Package interpreter runs cells in live interpreters, one for each context of a sandbox.
//
// An interpreter is a process of some kernel (package kernel) below a nanny of its own. Its state stays from cell to cell, so everything
// here is about not losing it, not lying about it, and not being held up by it: model-written code lives in that process. It may
// replace what the kernel relies on, close descriptors, fork, stop itself, ignore interrupts, die, or send frames of its own.
//
// # Turns
//
// Cells of one context run one after the other; whoever holds the interpreter's turn may talk to it. A cell that is to end before its
// turn comes never runs. Once it runs, it is interrupted, again every quarter of its grace, because code may swallow an interrupt, and
// a stopped interpreter receives none. After the grace everything below the nanny is killed and the state is lost.
//
// # Races
//
// A cell may end while its interrupt is under way: the signal must not hit the next cell. So whoever sends one holds the cell's lock and
// looks whether the cell is over, and after an interrupt the nanny is asked for a list before the turn is passed on: when it answers,
// it has sent the signal.
//
// An interpreter may die between two cells, or after it was sent a cell and before it read it. Then the cell runs on a new one, and its
// verdict says that the state was lost before. The kernel writes the number of the cell whose first line it reaches to a page of shared
// memory, so that the guest knows whose code it was that died.
//
// Output comes by three ways: frames for what the language writes, and the pipes 1 and 2 for what C code and children write. emitMu
// orders them: a pipe is read only after the frames that were sent before.
//
// # Constants
//
// Each has its reason beside it; all of them are limits for code that does not cooperate, and none is waited for otherwise.
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

// DefaultContext is the context of cells that name none.
const DefaultContext = "default"

// Config is what interpreters are started with.
type Config struct {
	Kernels    []kernel.Kernel // the first is the default
	Nannies    *nanny.Pool
	Operations *operation.Table
	Dir        string    // where they start
	State      string    // the guest's own directory, for the FIFOs of cells with input
	User       user.User // whose processes they are unless a cell demands another
	SwitchUser bool      // the guest can make processes another user's than its own
	// Env returns the environment that they start with until Adopt replaces it.
	Env func() map[string]string
	// Call makes a call to the host for a cell.
	Call func(o *operation.Operation, name string, payload []byte) ([]byte, *wire.Error)
}

// Contexts are the live interpreters of a sandbox by the names of their contexts.
type Contexts struct {
	cfg   Config
	calls callQueue

	mu       sync.Mutex
	env      map[string]string       // guarded by mu; nil: ask cfg.Env
	renewals int                     // guarded by mu; how often copies were made their own selves
	live     map[string]*interpreter // guarded by mu
	starting map[string]*start       // guarded by mu
	lost     map[string]bool         // guarded by mu; their interpreter died between cells, which no verdict has told yet
	decided  map[string]Profile      // guarded by mu; of contexts that are not as the sandbox's others, also while they have no interpreter
}

// New returns no interpreters yet.
func New(cfg Config) *Contexts {
	return &Contexts{cfg: cfg, live: map[string]*interpreter{}, starting: map[string]*start{}, lost: map[string]bool{}, decided: map[string]Profile{}}
}

// start is an interpreter that is being started.
type start struct {
	profile Profile
	done    chan struct{}
	i       *interpreter // set before done is closed
	bad     *wire.Error  // set before done is closed
}

// get returns the context's interpreter and starts it if there is none. It returns nil when gaveUp is closed first; the start continues
// then, for the next cell.
func (c *Contexts) get(name string, want Profile, gaveUp <-chan struct{}) (*interpreter, *wire.Error) {
	c.mu.Lock()
	i, s := c.live[name], c.starting[name]
	if i == nil && s == nil {
		p, bad := c.decide(name, want)
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
		return i, i.profile.refuse(name, want)
	}
	if bad := s.profile.refuse(name, want); bad != nil {
		return nil, bad
	}
	select {
	case <-s.done:
		return s.i, s.bad
	case <-gaveUp:
		return nil, nil
	}
}

// start starts an interpreter and makes it known.
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
		s.i.personalise(env, c.env) // Adopt could not know it
	}
	c.live[name] = s.i
	if p := s.profile; p.Language != c.cfg.Kernels[0].Language() || !p.User.Same(c.cfg.User) {
		c.decided[name] = p
	}
}

// Adopt sets the environment of interpreters that are started from now on. With renew, which says that this sandbox is a copy of another,
// the live ones get it too, and new seeds: two copies must not share random numbers.
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
		i.personalise(old, env)
	}
}

// Mains returns the pids of the interpreters, by their nannies' pids.
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
			Name: name, Pid: int32(i.pid), Language: i.profile.Language, Version: i.version, Busy: len(i.turn) == 0,
		})
	}
	return list
}

// Close ends a context's interpreter and the cell that runs in it.
func (c *Contexts) Close(name string) *wire.Error {
	c.mu.Lock()
	i, s := c.live[name], c.starting[name]
	c.mu.Unlock()
	if i == nil && s != nil {
		<-s.done
		i = s.i
	}
	c.mu.Lock()
	_, known := c.decided[name]
	delete(c.decided, name)
	c.mu.Unlock()
	switch {
	case i != nil:
		i.close()
	case !known:
		return wire.Errorf("not_found", "no context %q", wire.Clip(name, 80))
	}
	return nil
}

// forget drops an interpreter that is of no use any more.
func (c *Contexts) forget(i *interpreter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[i.context] == i {
		delete(c.live, i.context)
	}
}

// tellLoss reports whether the context lost its state between cells. It does so once.
func (c *Contexts) tellLoss(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := c.lost[name]
	delete(c.lost, name)
	return lost
}

// rehearsalTime bounds the cell that Warm runs.
const rehearsalTime = 5 * time.Second

// Warm starts the default context's interpreter and runs a cell that changes nothing, so that the first real one finds every page of guest
// and interpreter touched: after a restore that is what takes most of its time.
func (c *Contexts) Warm() *wire.Error {
	i, bad := c.get(DefaultContext, Profile{}, nil)
	if bad != nil {
		return bad
	}
	select {
	case <-i.turn:
	default:
		return nil // while a cell runs there is nothing to rehearse
	}
	i.freshen() // a copy is made its own self now
	seq, cells := i.seq, i.cells
	i.turn <- struct{}{}
	if cells > 0 {
		return nil
	}
	o, bad := c.cfg.Operations.Add(operation.Request{ID: "rehearsal", Kind: "cell", Context: i.context, Detach: true})
	if bad != nil {
		return nil // another rehearsal is under way
	}
	v, bad := c.Run(o, Cell{Context: i.context, Code: []byte("1 + 1\nNone"), Options: &wire.RunOptions{TimeoutNs: int64(rehearsalTime)}})
	o.EndOutput()
	if bad != nil {
		v = &wire.Verdict{Ending: wire.Ending_ENDING_START}
	}
	o.Finish(v)
	_ = c.cfg.Operations.Forget(o.ID) // no host knows of it
	select {
	case <-i.turn:
		if i.seq == seq+1 { // no other cell was faster
			i.seq, i.cells = seq, cells
		}
		i.turn <- struct{}{}
	default:
	}
	return nil
}
