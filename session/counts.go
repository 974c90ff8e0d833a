package session

import (
	"maps"
	"sync"
)

// counts tells how often sessions have entered each state.
type counts struct {
	mu sync.Mutex
	n  map[State]int64 // guarded by mu
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
