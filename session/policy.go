package session

import (
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// or fills zero fields from another policy.
func (p Policy) or(d Policy) Policy {
	p.TTL = first(p.TTL, d.TTL)
	p.Idle = first(p.Idle, d.Idle)
	p.OnIdle = first(p.OnIdle, d.OnIdle)
	p.Extensions = first(p.Extensions, d.Extensions)
	p.Extension = first(p.Extension, d.Extension)
	p.Hibernation = first(p.Hibernation, d.Hibernation)
	p.Snapshots = first(p.Snapshots, d.Snapshots)
	p.Commands = first(p.Commands, d.Commands)
	p.Output = first(p.Output, d.Output)
	return p
}

// or fills zero fields from other settings.
func (s Settings) or(d Settings) Settings {
	s.Spec = first(s.Spec, d.Spec)
	s.Backend = first(s.Backend, d.Backend)
	s.Policy = s.Policy.or(d.Policy)
	s.From = first(s.From, d.From)
	if s.Vars == nil {
		s.Vars = d.Vars
	}
	s.Gate = first(s.Gate, d.Gate)
	s.Role = first(s.Role, d.Role)
	return s
}

func first[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}

var defaultPolicy = Policy{
	TTL: DefaultTTL, Idle: DefaultIdle, OnIdle: IdleHibernate, Extensions: DefaultExtensions, Extension: DefaultExtension,
	Hibernation: DefaultHibernation, Snapshots: DefaultSnapshots, Commands: DefaultCommands, Output: DefaultOutput,
}

// check refuses a policy that makes no sense. It expects zero fields to be filled in.
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
