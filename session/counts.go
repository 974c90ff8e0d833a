package session

import (
	"maps"
	"sync"

	"github.com/recluse-dev/recluse/sandbox"
)

// counts counts how often sessions entered each state, and how operations ended.
type counts struct {
	// mu guards the fields below.
	mu   sync.Mutex
	n    map[State]int64
	ends map[Ends]int64
}

// Ends is a kind of operation (cell, command or background) and how it ended.
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

// Ended returns how many operations have ended since the manager started, by kind and ending.
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

// Entered returns how often sessions have entered each state since the manager started.
func (m *Manager) Entered() map[State]int64 {
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	return maps.Clone(m.counts.n)
}
