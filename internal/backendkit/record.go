// Package backendkit contains what backends have in common, so that a new backend implements only its own part: how it
// starts the guest and how it reaches it.
//
//   - A [Record] holds what other programs need to take over a sandbox. A [Store] keeps records in directories of this
//     machine, one for each sandbox, with a lock for the attached program. Backends whose sandboxes are elsewhere (an
//     engine, a service) write the record there, and later changes into [Notes]. An [Instance] separates their
//     sandboxes from those of other servers.
//   - A [Process] is a program that owns a sandbox, or a process of a sandbox. A [Sweeper] ends sandboxes whose owner
//     has died.
//   - A [Machine] is the common part of sandbox.Machine, [Incidents] the common part of backend.IncidentReporter.
//   - [GuestConfig] and [TmpfsLayout] return the configuration that the guest starts with.
//   - [Proof] remembers between programs that a sandbox could be made, so that not every program makes a trial sandbox.
//   - [RefuseInProduction], [DecodeOptions] and [RestoredSpec] check and build specs.
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

// Record is everything that another program must know about a sandbox to take it over. Backends embed it.
type Record struct {
	ID         string       `json:"id"`
	Created    time.Time    `json:"created"`
	Spec       sandbox.Spec `json:"spec"`
	Token      string       `json:"token,omitempty"` // hex
	Generation string       `json:"generation"`
	Guest      string       `json:"guest"` // hash of the guest's program
	Owner      Process      `json:"owner"` // the program that must end the sandbox
}

// NewRecord returns the record of a new sandbox that this program owns. Its ID begins with prefix.
func NewRecord(prefix string, spec sandbox.Spec, guest string) Record {
	r := Record{Spec: spec, Token: ids.Hex(wire.TokenSize), Guest: guest}
	return r.Copy(prefix)
}

// Copy returns the record of a copy of the sandbox, with the same spec and token but a new ID and generation.
func (r Record) Copy(prefix string) Record {
	r.ID, r.Generation, r.Created, r.Owner = prefix+ids.Hex(6), ids.Hex(8), time.Now().UTC(), Self()
	return r
}

// token decodes the token. It returns nil if there is none.
func (r *Record) token() []byte {
	t, err := hex.DecodeString(r.Token)
	if err != nil {
		return nil
	}
	return t
}

// Info returns the description of the sandbox, except whether it runs.
func (r *Record) Info(backend string) sandbox.Info {
	return sandbox.Info{ID: r.ID, Backend: backend, Created: r.Created, Labels: r.Spec.Labels, Spec: r.Spec}
}

// RestoredSpec returns the spec of a sandbox that is restored from a snapshot of a sandbox with spec.
func RestoredSpec(spec sandbox.Spec, o sandbox.RestoreOptions) sandbox.Spec {
	spec = spec.WithDefaults()
	if o.Labels != nil {
		spec.Labels = maps.Clone(o.Labels)
	}
	if len(o.Env) > 0 && spec.Env == nil {
		spec.Env = map[string]string{}
	}
	maps.Copy(spec.Env, o.Env)
	if o.Network != nil {
		spec.Network = o.Network.Policy
	}
	return spec
}

// SnapshotSpec returns the spec of a snapshot of a sandbox with spec.
func SnapshotSpec(spec sandbox.Spec, o sandbox.SnapshotOptions) sandbox.Spec {
	if o.Network != nil {
		spec.Network = *o.Network
	}
	return spec
}

// Process identifies a process of a machine, such as the program that owns a sandbox. Its start time distinguishes it
// from later processes with the same PID.
type Process struct {
	Machine string `json:"machine,omitempty"` // hostname
	PID     int    `json:"pid"`
	Start   uint64 `json:"start,omitempty"` // 0: the system does not report it
}

// ProcessOf returns the process of this machine that has the PID now.
func ProcessOf(pid int) Process {
	p := Process{PID: pid, Start: processStart(pid)}
	p.Machine, _ = os.Hostname() // machines without a hostname are taken for the same machine
	return p
}

// Self returns the process of this program.
func Self() Process { return ProcessOf(os.Getpid()) }

// Alive reports whether the process runs. It must be a process of this machine.
func (p Process) Alive() bool { return p.PID > 0 && processAlive(p.PID, p.Start) }

// Dead reports whether the process has certainly ended. For a process of another machine it returns false.
func (p Process) Dead() bool { return p.PID > 0 && p.Machine == Self().Machine && !p.Alive() }
