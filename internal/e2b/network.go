package e2b

import (
	"net/http"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// allTraffic is the rule that E2B's SDKs write for everything.
const allTraffic = "0.0.0.0/0"

// policyOf compiles options to a policy: what is allowed beats what is denied. nil: they set nothing, and the default
// of the server applies.
func policyOf(n networkOptions, internet *bool) (*v1.Network, error) {
	if internet == nil && len(n.Allow) == 0 && len(n.Deny) == 0 {
		return nil, nil //nolint:nilnil // no options, no policy
	}
	p := &v1.Network{Preset: v1.NetworkNone}
	everything := internet != nil && *internet
	for _, to := range n.Allow {
		if to == allTraffic {
			everything = true
			continue
		}
		p.Rules = append(p.Rules, rule("allow", to, ":*"))
	}
	if slices.Contains(n.Deny, allTraffic) && !slices.Contains(n.Allow, allTraffic) {
		everything = false
	}
	for _, to := range n.Deny {
		if to != allTraffic {
			p.Rules = append(p.Rules, rule("deny", to, ""))
		}
	}
	if everything {
		p.Preset = v1.NetworkPublic
	}
	return p, nil
}

// rule returns a rule for all ports of a destination. An IPv6 address is in brackets if ports follow.
func rule(action, to, ports string) v1.NetworkRule {
	if strings.Count(to, ":") > 1 && ports != "" && !strings.HasPrefix(to, "[") {
		to = "[" + to + "]"
	}
	return v1.NetworkRule(action + " " + to + ports)
}

// networkOf returns the policy of a session as options, and whether it allows the internet.
func networkOf(i session.Info) (networkOptions, bool) {
	public := i.Labels[labelPublic] != "false"
	n := networkOptions{Public: &public}
	for _, r := range i.Spec.Network.Rules {
		action, to, _ := strings.Cut(string(r), " ")
		to = strings.Trim(strings.TrimSuffix(to, ":*"), "[]")
		if action == string(v1.NetworkAllow) {
			n.Allow = append(n.Allow, to)
		} else {
			n.Deny = append(n.Deny, to)
		}
	}
	p := i.Spec.Network.Preset
	return n, p == v1.NetworkPublic || p == v1.NetworkAll
}

// network replaces the network policy of a sandbox.
func (c *call) network(ses *session.Session) error {
	var in struct {
		Allow    []string `json:"allowOut"`
		Deny     []string `json:"denyOut"`
		Internet *bool    `json:"allow_internet_access"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	p, err := policyOf(networkOptions{Allow: in.Allow, Deny: in.Deny}, in.Internet)
	if err != nil {
		return err
	}
	if p == nil {
		return invalid("the policy is missing: set allowOut, denyOut or allow_internet_access")
	}
	if _, err := ses.SetNetwork(c.r.Context(), v1.SessionNetwork{Network: *p}); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
