package docker

import (
	"encoding/json"
	"fmt"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox"
)

// SpecOptions are this backend's options of a single sandbox: the value of sandbox.Spec.Options[Name].
type SpecOptions struct {
	// HostConfig is laid over what the engine is told about the sandbox, and over Options.HostConfig. What
	// it loosens nobody can promise any more, so it needs Options.UnsafeHostConfig.
	HostConfig json.RawMessage `json:"host_config,omitempty"`
	// OOMScoreAdj is the oom_score_adj of commands, from 0 to 1000. The higher, the sooner the host's kernel
	// kills them when memory is short; at 0 the guest itself is as likely to be chosen. Interpreters,
	// which have state to lose, never have more. Nil: 500.
	OOMScoreAdj *int `json:"oom_score_adj,omitempty"`
}

// Apply sets the options in a spec. The zero SpecOptions leave it as it is.
func (o SpecOptions) Apply(spec *sandbox.Spec) error {
	if len(o.HostConfig) == 0 && o.OOMScoreAdj == nil {
		return nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "check spec", Message: "the host config is not valid JSON", Err: err}
	}
	if spec.Options == nil {
		spec.Options = map[string]json.RawMessage{}
	}
	spec.Options[Name] = text
	return nil
}

// specOptions decodes and checks the options of a spec.
func specOptions(spec sandbox.Spec) (SpecOptions, error) {
	var o SpecOptions
	if err := backendkit.DecodeOptions(spec, Name, &o); err != nil {
		return o, err
	}
	if s := o.OOMScoreAdj; s != nil && (*s < 0 || *s > 1000) {
		return o, &sandbox.Error{
			Code: sandbox.CodeInvalidSpec, Op: "check spec", Message: fmt.Sprintf("oom_score_adj %d is not between 0 and 1000", *s),
		}
	}
	return o, nil
}
