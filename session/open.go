package session

import (
	"cmp"
	"context"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// Open returns the session of a key, and creates it if there is none. Opened.New reports whether this call, or an
// earlier call for the same request, created the session. Concurrent calls create one sandbox. Once the creation has
// begun, it continues even if ctx is cancelled.
func (m *Manager) Open(ctx context.Context, key Key, o OpenOptions) (*Session, Opened, error) {
	key = withTenant(key)
	r, err := m.openRequest(o)
	if err != nil {
		return nil, Opened{}, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, Opened{}, cancelled("open session", err)
		}
		s, created, err := m.findOrBegin(ctx, key, r)
		if err != nil {
			return nil, Opened{}, err
		}
		if err := s.awaitCreated(ctx); err != nil {
			return nil, Opened{}, err
		}
		if created || s.createdBy(ctx) {
			info := s.Info()
			s.audit(ctx, Entry{Action: "open", Detail: info.Backend + " " + info.Sandbox})
			return s, Opened{Session: info, New: true}, nil
		}
		if over, _ := s.expire(m.ctx); over { // m.ctx: the manager ends it, not the caller; an error is logged
			continue // the session has expired, and its key is free
		}
		if o.New {
			return nil, Opened{}, &v1.Error{
				Code:    v1.CodeSessionExists,
				Op:      "open session",
				Message: fmt.Sprintf("session %q already exists", key.Name),
				Remedy:  "use it, end it, or choose another name",
			}
		}
		live, err := s.matches(r)
		if err != nil {
			return nil, Opened{}, err
		}
		if live {
			return s, Opened{Session: s.Info()}, nil
		}
		// The session has ended, and its key will be free in a moment.
		select {
		case <-s.freed:
		case <-ctx.Done():
		}
	}
}

// openRequest is a checked request to Open.
type openRequest struct {
	OpenOptions
	create creation
}

// creation is what a session is created with: settings whose spec and policy are complete.
type creation struct {
	Settings
	specHash string
	ownSpec  bool // the caller requested this spec
	ownIdle  bool // the caller requested this idle action
	// ownNetwork is set if the caller requested this network policy.
	ownNetwork bool
}

// openRequest checks a request. The settings of a new session are checked even if the session exists.
func (m *Manager) openRequest(o OpenOptions) (openRequest, error) {
	r := openRequest{OpenOptions: o, create: creation{Settings: orSettings(o.Settings, o.IfNew)}}
	c := &r.create
	c.ownIdle = c.Policy.OnIdle != ""
	c.Policy = orPolicy(c.Policy, m.policy)
	if err := checkPolicy(c.Policy); err != nil {
		return r, err
	}
	if o.New && o.Existing {
		return r, invalid("open session", "new and existing exclude each other")
	}
	switch c.Gate {
	case "", "off", "warn", "block":
	default:
		return r, invalid("open session", "invalid gate %.20q: use off, warn or block", c.Gate)
	}
	if err := gate.CheckRole(m.opts.Gate, c.Role); err != nil {
		return r, err
	}
	if len(c.Vars) > MaxVars {
		return r, invalid("open session", "%d variables exceed the limit of %d", len(c.Vars), MaxVars)
	}
	for name, value := range c.Vars {
		if err := checkVar(name, value); err != nil {
			return r, err
		}
	}
	if err := checkLabels(c.Labels); err != nil {
		return r, err
	}
	spec := sandbox.Spec{}
	if c.ownSpec = c.Spec != nil; c.ownSpec {
		spec = *c.Spec
		c.ownNetwork = spec.Network.IsSet()
	}
	spec, hash, err := normalSpec(spec)
	c.Spec, c.specHash = &spec, hash
	return r, err
}

// findOrBegin returns the session that holds a key, or begins to create one.
func (m *Manager) findOrBegin(ctx context.Context, key Key, r openRequest) (*Session, bool, error) {
	if s, err := m.find(key); s != nil || err != nil {
		return s, false, err
	}
	if err := checkKey(key); err != nil {
		return nil, false, err
	}
	if r.Existing {
		return nil, false, m.missing(ctx, key)
	}
	quotaOwner := ownerOf(ctx, key.Tenant)
	bounds, err := m.bounds(ctx, quotaOwner)
	if err != nil {
		return nil, false, err
	}
	if r.create.Policy.Expires, err = bounds.expires(r.create.Policy.Expires); err != nil {
		return nil, false, err
	}
	if !r.create.ownNetwork {
		if r.create.Spec.Network, err = m.usualNetwork(ctx, quotaOwner); err != nil {
			return nil, false, err
		}
	}
	rec := newRecord(ctx, key, r.create, quotaOwner)
	if r.create.From != "" {
		_, v, err := m.findRef(ctx, key, r.create.From)
		if err != nil {
			return nil, false, err
		}
		rec.Spec, rec.SpecHash = v.Spec, v.SpecHash // so that its limits are reserved
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return nil, false, errClosing
	}
	if s := m.live[key]; s != nil { // another call was faster
		return s, false, nil
	}
	if err := m.ledger.reserve(bounds, &rec); err != nil {
		return nil, false, err
	}
	s := m.newSession(rec)
	s.turn <- struct{}{} // create releases it
	m.live[key] = s
	actor := context.WithoutCancel(ctx) // the values of the caller's ctx, without its cancellation
	m.work.Go(func() { s.create(actor, r.create) })
	return s, true, nil
}

// find returns the session that holds a key, or nil.
func (m *Manager) find(key Key) (*Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return nil, errClosing
	}
	return m.live[key], nil
}

// matches reports whether the session is live, and returns an error if it differs from the request. Settings that the
// caller left out match. Variables and labels always match, because they only apply to a new session.
func (s *Session) matches(o openRequest) (live bool, err error) {
	s.mu.Lock()
	r := s.rec
	s.mu.Unlock()
	if !r.State.Live() {
		return false, nil
	}
	if r.State == v1.StateEnding {
		s.mu.Lock()
		defer s.mu.Unlock()
		return true, s.refusal(time.Now())
	}
	conflict := func(format string, args ...any) error {
		return &v1.Error{
			Code:    v1.CodeSpecConflict,
			Op:      "open session",
			Message: fmt.Sprintf("session %q already exists, and ", s.key.Name) + fmt.Sprintf(format, args...),
			Remedy:  "leave out the differing setting, end the session first, or choose another name",
		}
	}
	mode := func(m string) gate.Mode { return gate.EffectiveMode(s.m.opts.Gate, gate.Mode(m)) }
	// The hashes also differ if only one of the specs sets the disk, to its default.
	spec := ""
	if o.Spec != nil && o.create.specHash != r.SpecHash {
		spec = differingSpec(*o.create.Spec, r.Spec)
	}
	switch {
	case spec != "":
		return true, conflict("its spec differs in %s", spec)
	case o.Spec != nil && o.create.ownNetwork && !sameNetwork(o.create.Spec.Network, r.Spec.Network):
		return true, s.networkConflict(o.create.Spec.Network, r.Spec.Network)
	case o.Backend != "" && o.Backend != r.Backend:
		return true, conflict("its backend is %s, not %s", r.Backend, o.Backend)
	case o.From != "" && o.From != r.From:
		return true, conflict("it was not created from snapshot %q", o.From)
	case orPolicy(o.Policy, r.Policy) != r.Policy:
		return true, conflict("its policy differs in %s", differing(orPolicy(o.Policy, r.Policy), r.Policy))
	case o.Gate != "" && mode(o.Gate) != mode(r.Gate):
		return true, conflict("its gate is %s, not %s", cmp.Or(string(mode(r.Gate)), "as the server is configured"), o.Gate)
	case o.Role != "" && o.Role != r.Role:
		return true, conflict("its role is %q, not %q", r.Role, o.Role)
	}
	return true, nil
}

// forget frees the key of a session.
func (m *Manager) forget(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live[s.key] == s {
		delete(m.live, s.key)
	}
}
