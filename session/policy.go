package session

import (
	"cmp"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// or fills zero fields from another policy.
func (p Policy) or(d Policy) Policy {
	p.TTL = cmp.Or(p.TTL, d.TTL)
	p.Idle = cmp.Or(p.Idle, d.Idle)
	p.OnIdle = cmp.Or(p.OnIdle, d.OnIdle)
	p.Extensions = cmp.Or(p.Extensions, d.Extensions)
	p.Extension = cmp.Or(p.Extension, d.Extension)
	p.Hibernation = cmp.Or(p.Hibernation, d.Hibernation)
	p.Snapshots = cmp.Or(p.Snapshots, d.Snapshots)
	p.Commands = cmp.Or(p.Commands, d.Commands)
	p.Output = cmp.Or(p.Output, d.Output)
	return p
}

// or fills zero fields from other settings.
func (s Settings) or(d Settings) Settings {
	s.Spec = cmp.Or(s.Spec, d.Spec)
	s.Backend = cmp.Or(s.Backend, d.Backend)
	s.Policy = s.Policy.or(d.Policy)
	s.From = cmp.Or(s.From, d.From)
	if s.Vars == nil {
		s.Vars = d.Vars
	}
	s.Gate = cmp.Or(s.Gate, d.Gate)
	s.Role = cmp.Or(s.Role, d.Role)
	return s
}

var defaultPolicy = Policy{
	TTL: DefaultTTL, Idle: DefaultIdle, OnIdle: IdleHibernate, Extensions: DefaultExtensions, Extension: DefaultExtension,
	Hibernation: DefaultHibernation, Snapshots: DefaultSnapshots, Commands: DefaultCommands, Output: DefaultOutput,
}

// check rejects an invalid policy. Zero fields must be filled in.
func (p Policy) check() error {
	for name, d := range map[string]time.Duration{"ttl": p.TTL, "idle": p.Idle, "extension": p.Extension, "hibernation": p.Hibernation} {
		if d <= 0 && d != sandbox.NoLimit {
			return invalid("check policy", "%s of %s", name, d)
		}
	}
	switch p.OnIdle {
	case IdleHibernate, IdleEnd, IdleKeep:
	default:
		return invalid("check policy", "%q is none of hibernate, end, keep", p.OnIdle)
	}
	if p.Snapshots < 0 || p.Commands < 0 || p.Output < 0 {
		return invalid("check policy", "a negative limit")
	}
	return nil
}
