package session

import (
	"maps"
	"sync"

	"github.com/recluse-dev/recluse/sandbox"
)

// counts tells how often sessions have entered each state, and what ended cells and commands.
type counts struct {
	mu   sync.Mutex
	n    map[State]int64 // guarded by mu
	ends map[Ends]int64  // guarded by mu
}

// Ends is a kind of operation, cell, command or background, and what ended those that are counted.
type Ends struct {
	Kind  string
	Ended sandbox.Ending
}

func (c *counts) end(e Ends) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = map[Ends]int64{}
	}
	c.ends[e]++
}

// Ended tells how many cells and commands have ended since the manager was made, whoever asked for them, by what ended them.
func (m *Manager) Ended() map[Ends]int64 {
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	return maps.Clone(m.counts.ends)
}

func (c *counts) add(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[State]int64{}
	}
	c.n[s]++
}

// Entered tells how often sessions have entered each state since the manager was made: how many hibernated, were lost, expired.
func (m *Manager) Entered() map[State]int64 {
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	return maps.Clone(m.counts.n)
}
