package session

import (
	"maps"
	"sync"

	"github.com/recluse-dev/recluse/sandbox"
)

// counts counts how often sessions entered each state, and how operations ended.
type counts struct {
	// mu guards the fields below.
	mu     sync.Mutex
	states map[State]int64
	ends   map[OperationEnd]int64

	network NetworkStats
}

// OperationEnd is a kind of operation (cell, command or background) and how it ended.
type OperationEnd struct {
	Kind  string
	Ended sandbox.Ending
}

// addEnd counts an operation that has ended.
func (c *counts) addEnd(e OperationEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = map[OperationEnd]int64{}
	}
	c.ends[e]++
}

// EndedOperations returns how many operations have ended since the manager started, by kind and ending.
func (m *Manager) EndedOperations() map[OperationEnd]int64 {
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	return maps.Clone(m.counts.ends)
}

// addState counts a session that has entered a state.
func (c *counts) addState(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.states == nil {
		c.states = map[State]int64{}
	}
	c.states[s]++
}

// EnteredStates returns how often sessions have entered each state since the manager started.
func (m *Manager) EnteredStates() map[State]int64 {
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	return maps.Clone(m.counts.states)
}
