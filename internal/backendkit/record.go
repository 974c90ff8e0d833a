// Package backendkit has what backends share, so that a new one writes only what is its own: how it
// starts the guest and how it reaches it.
//
//   - A sandbox's [Record] tells other programs how to take it over. A [Store] keeps records in
//     directories of this machine, one per sandbox, with a lock for whoever is attached. Backends whose
//     sandboxes are elsewhere (an engine, a service) write the record there, and what changes later into
//     [Notes]; an [Instance] tells their sandboxes from those of other servers.
//   - A [Process] is a program that must end a sandbox, or a process that holds one. A [Sweeper] ends sandboxes
//     whose program has died.
//   - A [Machine] is the common part of sandbox.Machine; [Incidents] the common part of backend.IncidentReporter.
//   - [GuestConfig] and [Tmpfs] say what the guest is told at its birth.
//   - [Proof] remembers between programs that a sandbox could be made, so that not each one tries.
//   - [RefuseInProduction], [DecodeOptions] and [Restored] judge and build specs.
package backendkit

import (
	"encoding/hex"
	"maps"
	"os"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

// Record is what another program must know of a sandbox to take it over. Backends embed it.
type Record struct {
	ID         string       `json:"id"`
	Created    time.Time    `json:"created"`
	Spec       sandbox.Spec `json:"spec"`
	Token      string       `json:"token,omitempty"` // hex
	Generation string       `json:"generation"`
	Guest      string       `json:"guest"` // hash of its program
	Owner      Process      `json:"owner"` // the program that must end it
}

// NewRecord returns the record of a new sandbox, whose id begins with prefix and belongs to this program.
func NewRecord(prefix string, spec sandbox.Spec, guest string) Record {
	r := Record{Spec: spec, Token: ids.Hex(wire.TokenSize), Guest: guest}
	return r.Copy(prefix)
}

// Copy returns the record of a copy of the sandbox: the same spec and token, but its own identity.
func (r Record) Copy(prefix string) Record {
	r.ID, r.Generation, r.Created, r.Owner = prefix+ids.Hex(6), ids.Hex(8), time.Now().UTC(), Self()
	return r
}

// token decodes the token; nil if there is none.
func (r *Record) token() []byte {
	t, err := hex.DecodeString(r.Token)
	if err != nil {
		return nil
	}
	return t
}

// Info describes the sandbox, except whether it runs.
func (r *Record) Info(backend string) sandbox.Info {
	return sandbox.Info{ID: r.ID, Backend: backend, Created: r.Created, Labels: r.Spec.Labels, Spec: r.Spec}
}

// Restored returns the spec of a sandbox that is restored from a snapshot of a sandbox with spec.
func Restored(spec sandbox.Spec, o sandbox.RestoreOptions) sandbox.Spec {
	spec = spec.WithDefaults()
	if o.Labels != nil {
		spec.Labels = maps.Clone(o.Labels)
	}
	if len(o.Env) > 0 && spec.Env == nil {
		spec.Env = map[string]string{}
	}
	maps.Copy(spec.Env, o.Env)
	return spec
}

// Process is a process of some machine, as the program that must end a sandbox. Its start tells it from later
// ones of the same pid.
type Process struct {
	Machine string `json:"machine,omitempty"` // the host's name
	PID     int    `json:"pid"`
	Start   uint64 `json:"start,omitempty"` // 0 where the system does not tell
}

// ProcessOf returns the process of this machine that has a pid now.
func ProcessOf(pid int) Process {
	p := Process{PID: pid, Start: processStart(pid)}
	p.Machine, _ = os.Hostname() // without a name two machines without one are taken for the same
	return p
}

// Self returns this program.
func Self() Process { return ProcessOf(os.Getpid()) }

// Alive reports whether a process of this machine still runs.
func (p Process) Alive() bool { return p.PID > 0 && processAlive(p.PID, p.Start) }

// Dead reports that the process has certainly ended. Of another machine's nothing is certain.
func (p Process) Dead() bool { return p.PID > 0 && p.Machine == Self().Machine && !p.Alive() }
