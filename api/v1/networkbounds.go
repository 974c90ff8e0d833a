package v1

import "strings"

// NetworkBounds are the network policies that the operator sets for a server, a tenant or a key. It is the only
// declaration of these bounds.
type NetworkBounds struct {
	// Default is the policy of a session that is opened without one. That of the key comes before that of the tenant,
	// and that of the tenant before that of the server.
	Default *Network `json:"default,omitempty" doc:"policy of sessions that are opened without one; left out: that of the tenant, then that of the server"`
	// Max narrows every policy. Those of the key, the tenant and the server all apply.
	Max *Network `json:"max,omitempty" doc:"most that policies may allow; left out: only the maxima of the tenant and of the server apply"`
}

// IsZero reports whether no bound is set.
func (b NetworkBounds) IsZero() bool { return b.Default == nil && b.Max == nil }

// Over returns b, with unset fields taken from base.
func (b NetworkBounds) Over(base NetworkBounds) NetworkBounds {
	if b.Default == nil {
		b.Default = base.Default
	}
	if b.Max == nil {
		b.Max = base.Max
	}
	return b
}

// IsSet reports whether the policy says anything. A policy that is not set is replaced by a default.
func (n Network) IsSet() bool { return n.Preset != "" || len(n.Rules) > 0 }

// Asks reports whether a rule of the policy requires an approval.
func (n Network) Asks() bool {
	for _, r := range n.Rules {
		if action, _, _ := strings.Cut(strings.TrimSpace(string(r)), " "); action == string(NetworkAsk) {
			return true
		}
	}
	return false
}

// ParseNetwork parses a policy in one line, in the form that String returns: rules with commas between them, and a
// preset, such as "deny *.corp.example, public". It does not check rules and preset.
func ParseNetwork(text string) Network {
	var n Network
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		part = strings.TrimPrefix(part, "then ")
		switch {
		case part == "":
		case strings.Contains(part, " ") || n.Preset != "": // a second preset is an invalid rule
			n.Rules = append(n.Rules, NetworkRule(part))
		default:
			n.Preset = NetworkPreset(part)
		}
	}
	return n
}

// TenantSettings are what the operator sets for a tenant.
type TenantSettings struct {
	Quota
	Network NetworkBounds `json:"network,omitzero" doc:"default and maximum of the network policies of its sessions"`
}
