package mcp

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAModelCanOnlyNarrowTheNetwork(t *testing.T) {
	d := open(t, Options{})
	spec := &sandbox.Spec{Network: v1.Network{Rules: []v1.NetworkRule{"deny secret.acme.org", "allow *.acme.org"}}}
	for name, c := range map[string]struct {
		spec          *sandbox.Spec
		network, want string // want is the policy of the session, or part of the error
		fails         bool
	}{
		"nothing requested": {spec, "", spec.Network.String(), false},
		"less":              {spec, "allow api.acme.org", "allow api.acme.org, then none", false},
		"none":              {spec, "none", "none", false},
		"more":              {spec, "allow api.acme.org, public", "preset public", true},
		"a denied name":     {spec, "allow secret.acme.org", "comes first", true},
		"without a policy":  {nil, "packages", "allows more than the operator", true},
		"an invalid rule":   {spec, "allow http://api.acme.org", "is a URL", true},
	} {
		t.Run(name, func(t *testing.T) {
			session := strings.ReplaceAll(name, " ", "-")
			o := StdioOptions{Session: session}
			o.Spec = c.spec
			s := d.overStdio(t, o, nil)
			args := map[string]any{"command": "echo hello"}
			if c.network != "" {
				args["network"] = c.network
			}
			_, res := use[any](t, s, "run_bash", args)
			got := text(res)
			if c.fails {
				if !res.IsError || !strings.Contains(got, c.want) {
					t.Errorf("%s", got)
				}
				return
			}
			if res.IsError || !strings.Contains(got, "hello") {
				t.Fatalf("%s", got)
			}
			info, err := d.Trusted.Session(session).Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Spec.Network.String(); got != c.want {
				t.Errorf("the policy is %q, want %q", got, c.want)
			}
			args["network"] = "allow other.acme.org"
			if _, res := use[any](t, s, "run_bash", args); !res.IsError || !strings.Contains(text(res), "already exists") {
				t.Errorf("another policy for the same session: %s", text(res))
			}
		})
	}
}
