package backendkit

import (
	"encoding/hex"
	"maps"
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
