package backendkit

import (
	"sync"

	"github.com/recluse-dev/recluse/sandbox"
)

// maxPending is how many incidents are kept until somebody asks for them.
const maxPending = 16

// Incidents implements backend.Witness. The zero value is ready.
type Incidents struct {
	mu      sync.Mutex             // held during a call of receive, so that the order is kept
	receive func(sandbox.Incident) // guarded by mu
	pending []sandbox.Incident     // guarded by mu
}

// OnIncident implements backend.Witness.
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
