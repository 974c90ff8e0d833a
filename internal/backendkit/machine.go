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
	stopped bool  // guarded by mu; the end was requested, so it needs no cause
	cause   error // guarded by mu
}

// NewMachine returns the machine of a running sandbox.
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

// MemoryKills implements sandbox.Machine for backends that do not count OOM kills.
func (m *Machine) MemoryKills() (uint64, bool) { return 0, false }

// Cause implements sandbox.Machine.
func (m *Machine) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// Stopping records that the end of the sandbox was requested. An end after this call has no cause.
func (m *Machine) Stopping() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
}

// NeedsCause reports whether an end at this moment would need a cause: it was not requested, and no cause is set.
func (m *Machine) NeedsCause() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.stopped && !m.over && m.cause == nil
}

// SetCause sets the cause of an end that is about to happen. It returns false if there is already a cause, or if the
// end was requested.
func (m *Machine) SetCause(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.setCause(cause)
}

// setCause is SetCause.
//
// Preconditions: m.mu is held.
func (m *Machine) setCause(cause error) bool {
	if m.stopped || m.over || m.cause != nil {
		return false
	}
	m.cause = cause
	return true
}

// End closes Gone, and sets the cause if there is none. Only the first call has an effect, and returns true.
func (m *Machine) End(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.setCause(cause)
	m.over = true
	close(m.gone)
	return true
}

// maxPending is the number of incidents that are kept until a receiver is set.
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

// Report passes an incident to the receiver, or keeps it until there is one.
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
