package backendkit

import (
	"sync"

	"github.com/recluse-dev/recluse/sandbox"
)

// Machine is the part of a sandbox.Machine that is the same for all backends. Backends embed it and add the stream.
type Machine struct {
	record Record
	gone   chan struct{}

	mu      sync.Mutex
	over    bool  // guarded by mu; gone is closed
	stopped bool  // guarded by mu; its end is what was asked for
	cause   error // guarded by mu
}

// NewMachine returns the machine of a sandbox that runs.
func NewMachine(r Record) *Machine { return &Machine{record: r, gone: make(chan struct{})} }

// ID implements sandbox.Machine.
func (m *Machine) ID() string { return m.record.ID }

// Spec implements sandbox.Machine.
func (m *Machine) Spec() sandbox.Spec { return m.record.Spec }

// Token implements sandbox.Machine.
func (m *Machine) Token() []byte { return m.record.token() }

// Generation implements sandbox.Machine.
func (m *Machine) Generation() string { return m.record.Generation }

// Gone implements sandbox.Machine.
func (m *Machine) Gone() <-chan struct{} { return m.gone }

// MemoryKills implements sandbox.Machine for backends that do not count them.
func (m *Machine) MemoryKills() (uint64, bool) { return 0, false }

// Cause implements sandbox.Machine.
func (m *Machine) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// Stopping says that the end of the sandbox, from now on, is what was asked for: it has no cause.
func (m *Machine) Stopping() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
}

// Unexplained reports whether an end that came now would have no cause yet and would need one.
func (m *Machine) Unexplained() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.stopped && !m.over && m.cause == nil
}

// Blame sets the cause of the end that is about to come. It reports false if there is a cause already, or
// the end was asked for.
func (m *Machine) Blame(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blame(cause)
}

// blame is Blame. Preconditions: m.mu is held.
func (m *Machine) blame(cause error) bool {
	if m.stopped || m.over || m.cause != nil {
		return false
	}
	m.cause = cause
	return true
}

// End closes Gone and sets the cause if there is none. Only the first call counts; it reports true.
func (m *Machine) End(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.blame(cause)
	m.over = true
	close(m.gone)
	return true
}

// maxPending is how many incidents are kept until somebody asks for them.
const maxPending = 16

// Incidents implements backend.IncidentReporter. The zero value is ready.
type Incidents struct {
	mu      sync.Mutex             // held during a call of receive, so that the order is kept
	receive func(sandbox.Incident) // guarded by mu
	pending []sandbox.Incident     // guarded by mu
}

// OnIncident implements backend.IncidentReporter.
func (in *Incidents) OnIncident(f func(sandbox.Incident)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.receive = f
	if f == nil {
		return
	}
	for _, i := range in.pending {
		f(i)
	}
	in.pending = nil
}

// Report hands an incident on, or keeps it until somebody asks.
func (in *Incidents) Report(i sandbox.Incident) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.receive != nil {
		in.receive(i)
		return
	}
	in.pending = append(in.pending, i)
	in.pending = in.pending[max(0, len(in.pending)-maxPending):]
}
