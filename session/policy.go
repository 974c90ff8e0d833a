package session

import (
	"cmp"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// orPolicy returns p with its zero fields taken from d.
func orPolicy(p, d Policy) Policy {
	p.Idle = cmp.Or(p.Idle, d.Idle)
	p.OnIdle = cmp.Or(p.OnIdle, d.OnIdle)
	p.Expires = cmp.Or(p.Expires, d.Expires)
	p.OnExpiry = cmp.Or(p.OnExpiry, d.OnExpiry)
	p.Hibernation = cmp.Or(p.Hibernation, d.Hibernation)
	p.Snapshots = cmp.Or(p.Snapshots, d.Snapshots)
	p.Commands = cmp.Or(p.Commands, d.Commands)
	p.Output = cmp.Or(p.Output, d.Output)
	return p
}

// orSettings returns s with its zero fields taken from d.
func orSettings(s, d Settings) Settings {
	s.Spec = cmp.Or(s.Spec, d.Spec)
	s.Backend = cmp.Or(s.Backend, d.Backend)
	s.Policy = orPolicy(s.Policy, d.Policy)
	s.From = cmp.Or(s.From, d.From)
	if s.Vars == nil {
		s.Vars = d.Vars
	}
	if s.Labels == nil {
		s.Labels = d.Labels
	}
	s.Gate = cmp.Or(s.Gate, d.Gate)
	s.Role = cmp.Or(s.Role, d.Role)
	return s
}

var defaultPolicy = Policy{
	Idle:        v1.Duration(DefaultIdle),
	OnIdle:      v1.IdleHibernate,
	OnExpiry:    v1.ExpiryEnd,
	Hibernation: v1.Duration(DefaultHibernation),
	Snapshots:   DefaultSnapshots,
	Commands:    DefaultCommands,
	Output:      DefaultOutput,
}

// checkPolicy rejects an invalid policy. Zero fields must be filled in.
func checkPolicy(p Policy) error {
	for name, d := range map[string]v1.Duration{"idle": p.Idle, "expires": p.Expires, "hibernation": p.Hibernation} {
		if d <= 0 && d != v1.NoLimit && !(name == "expires" && d == 0) { // the expiry is decided at creation
			return invalid("check policy", "invalid duration %s of %s", d, name)
		}
	}
	switch p.OnIdle {
	case v1.IdleHibernate, v1.IdleEnd, v1.IdleKeep:
	default:
		return invalid("check policy", "invalid on_idle %q: use hibernate, end or keep", p.OnIdle)
	}
	if p.OnExpiry != v1.ExpiryEnd && p.OnExpiry != v1.ExpiryHibernate {
		return invalid("check policy", "invalid on_expiry %q: use end or hibernate", p.OnExpiry)
	}
	if p.Snapshots < 0 || p.Commands < 0 || p.Output < 0 {
		return invalid("check policy", "negative limit of snapshots, commands or output")
	}
	return nil
}
