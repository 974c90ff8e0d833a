package session

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// This file bounds the network of sandboxes by what the operator has set for their server, tenant and key: the policy
// of sessions without one, the maximum of all policies, and the quotas of connections. It also asks people about
// connections.

// usualNetwork returns the policy of a session that is opened without one.
func (m *Manager) usualNetwork(ctx context.Context, o owner) (v1.Network, error) {
	tenant, key, err := m.store.NetworkBounds(ctx, o.Tenant, o.Key)
	if usual := cmp.Or(key.Default, tenant.Default, m.opts.NetworkDefault); usual != nil {
		return *usual, err
	}
	return v1.Network{}, err
}

// networkMaxima returns what the operator has set for the tenant and the key. The backends know the maximum of the
// server.
func (m *Manager) networkMaxima(ctx context.Context, o owner) (out []sandbox.NetworkMaximum, err error) {
	tenant, key, err := m.store.NetworkBounds(ctx, o.Tenant, o.Key)
	if tenant.Max != nil {
		out = append(out, sandbox.NetworkMaximum{Title: "the maximum of tenant " + o.Tenant, Policy: *tenant.Max})
	}
	if key.Max != nil {
		out = append(out, sandbox.NetworkMaximum{Title: "the maximum of key " + o.Key, Policy: *key.Max})
	}
	return out, err
}

// networkTerms returns the terms of a sandbox. approve asks people about connections.
func (m *Manager) networkTerms(
	ctx context.Context, o owner, approve func(sandbox.NetworkRequest, sandbox.NetworkDecision) sandbox.NetworkDecision,
) (sandbox.NetworkTerms, error) {
	maxima, err := m.networkMaxima(ctx, o)
	if err != nil {
		return sandbox.NetworkTerms{}, err
	}
	share, err := m.network.share(ctx, m, o)
	if err != nil {
		return sandbox.NetworkTerms{}, err
	}
	t := sandbox.NetworkTerms{Maxima: maxima, Budget: share}
	if m.opts.Approvals != nil {
		t.Approve = approve
	}
	return t, nil
}

// networkTerms returns the terms of the session's sandbox.
func (s *Session) networkTerms(ctx context.Context) (sandbox.NetworkTerms, error) {
	s.mu.Lock()
	o := s.rec.owner()
	s.mu.Unlock()
	return s.m.networkTerms(ctx, o, func(r sandbox.NetworkRequest, d sandbox.NetworkDecision) sandbox.NetworkDecision {
		d, asked := s.m.approve(gate.Connection{Tenant: s.key.Tenant, Session: s.key.Name, SessionID: s.id}, r, d)
		if asked {
			s.mu.Lock()
			s.emit(Event{Kind: "gate", Reason: d.Reason, Attrs: map[string]string{
				"action": string(v1.GateAsk), "approval": d.Approval, "connect": destination(r),
			}}, true)
			s.mu.Unlock()
		}
		return d
	})
}

// withNetwork returns a ctx in which the session's sandbox is opened, attached or restored.
func (s *Session) withNetwork(ctx context.Context) (context.Context, error) {
	t, err := s.networkTerms(ctx)
	return sandbox.WithNetworkTerms(ctx, t), err
}

// NetworkTerms returns the terms of a sandbox that belongs to no session, such as that of a run. name is shown to
// people that are asked about a connection. A grant is for the sandboxes of one call of NetworkTerms.
func (m *Manager) NetworkTerms(ctx context.Context, tenant string, name func() string) (sandbox.NetworkTerms, error) {
	id := newID()
	approve := func(r sandbox.NetworkRequest, d sandbox.NetworkDecision) sandbox.NetworkDecision {
		d, _ = m.approve(gate.Connection{Tenant: tenant, Session: name(), SessionID: id}, r, d)
		return d
	}
	return m.networkTerms(ctx, ownerOf(ctx, tenant), approve)
}

func destination(r sandbox.NetworkRequest) string {
	return net.JoinHostPort(r.Name, strconv.Itoa(int(r.Port)))
}

// approve decides about a connection that needs an approval, and reports whether it has asked a person. d is the
// decision of the policy.
func (m *Manager) approve(
	c gate.Connection, r sandbox.NetworkRequest, d sandbox.NetworkDecision,
) (_ sandbox.NetworkDecision, asked bool) {
	c.To = v1.ApprovalConnect{Host: r.Name, Port: int(r.Port), Rule: d.Rule}
	c.Reason = d.Reason
	a, asked, err := m.opts.Approvals.Connect(c)
	switch {
	case err != nil:
		d.Reason, d.Remedy = fmt.Sprintf("%s needs an approval, and no person can be asked: %v", destination(r), err), ""
	case a.State == v1.ApprovalGranted:
		d.Action, d.Remedy = v1.NetworkAllow, ""
		d.Reason = fmt.Sprintf("%s has approved %s", a.By, destination(r))
	case a.State == v1.ApprovalRefused:
		d.Action, d.Remedy = v1.NetworkDeny, "ask the person"
		d.Reason = fmt.Sprintf("%s has refused %s", a.By, destination(r))
		if a.Note != "" {
			d.Reason += ": " + a.Note
		}
	default:
		d.Approval, d.Remedy = a.ID, "try again when a person has granted approval "+a.ID
	}
	return d, asked
}

// NetworkChanged puts changed bounds and quotas of a tenant in force in its live sessions.
func (m *Manager) NetworkChanged(ctx context.Context, tenant string) error {
	if _, err := m.network.share(ctx, m, owner{Tenant: tenant}); err != nil { // reads the quotas
		return err
	}
	for _, s := range m.sessions() {
		if s.key.Tenant != tenant {
			continue
		}
		s.mu.Lock()
		sb := s.attachment.sandbox
		s.mu.Unlock()
		if sb == nil {
			continue // the next attachment reads them
		}
		t, err := s.networkTerms(ctx)
		if err == nil {
			err = sb.SetNetworkTerms(t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// networkLedger counts the connections of all sandboxes. Bytes are counted in memory and moved to the store by save.
type networkLedger struct {
	// mu guards the maps, and the fields of quotas as noted there.
	mu      sync.Mutex
	quotas  map[string]*networkQuota // by title
	unsaved map[owner]*atomic.Int64  // bytes that the store does not have, by tenant and key

	saveMu sync.Mutex // held while bytes are moved to the store
}

// networkQuota is how much of one quota is in use: of the server, of a tenant or of a key.
type networkQuota struct {
	bound
	connections int           // guarded by the ledger's mu
	limiter     *rate.Limiter // guarded by the ledger's mu; nil: no limit
	most        atomic.Int64  // bytes within spendWindow; v1.NoLimit: no limit
	saved       atomic.Int64  // bytes within spendWindow that the store has
	unsaved     atomic.Int64
}

// networkShare is the budget of one sandbox. It implements sandbox.NetworkBudget.
type networkShare struct {
	ledger  *networkLedger
	quotas  []*networkQuota
	unsaved *atomic.Int64
}

// share returns the budget of a sandbox of an owner, whose quotas it reads.
func (l *networkLedger) share(ctx context.Context, m *Manager, o owner) (*networkShare, error) {
	b, err := m.bounds(ctx, owner{Tenant: o.Tenant, Key: o.Key}) // Manager.New rejects RemoteQuota for the network
	if err != nil {
		return nil, err
	}
	out := &networkShare{ledger: l}
	isNew := false
	l.mu.Lock()
	if l.quotas == nil {
		l.quotas, l.unsaved = map[string]*networkQuota{}, map[owner]*atomic.Int64{}
	}
	for _, x := range b {
		q := l.quotas[x.title]
		if q == nil {
			q, isNew = &networkQuota{}, true
			l.quotas[x.title] = q
			for who, n := range l.unsaved { // counted for the other quotas
				if x.counts(who) {
					q.unsaved.Add(n.Load())
				}
			}
		}
		q.set(x)
		out.quotas = append(out.quotas, q)
	}
	who := owner{Tenant: o.Tenant, Key: o.Key}
	if l.unsaved[who] == nil {
		l.unsaved[who] = &atomic.Int64{}
	}
	out.unsaved = l.unsaved[who]
	l.mu.Unlock()
	if isNew {
		err = l.read(ctx, m.store)
	}
	return out, err
}

// set replaces the bounds.
//
// Preconditions: the ledger's mu is held.
func (q *networkQuota) set(b bound) {
	q.bound = b
	most := int64(v1.NoLimit)
	if n := b.quota.NetworkBytes; n != nil {
		most = *n
	}
	q.most.Store(most)
	perSecond := b.quota.ConnectionRate
	switch {
	case perSecond == nil || *perSecond < 0:
		q.limiter = nil
	case q.limiter == nil || q.limiter.Limit() != rate.Limit(*perSecond):
		q.limiter = rate.NewLimiter(rate.Limit(*perSecond), int(math.Ceil(2**perSecond)))
	}
}

// Open implements sandbox.NetworkBudget.
func (s *networkShare) Open() error {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	for _, q := range s.quotas {
		used := v1.Quota{Connections: &q.connections, NetworkBytes: new(q.bytes())}
		if err := q.quota.Check(q.title, used, v1.Quota{Connections: new(1), NetworkBytes: new(int64(1))}); err != nil {
			return err
		}
	}
	for _, q := range s.quotas {
		if q.limiter != nil && !q.limiter.Allow() {
			return &v1.Error{
				Code:    v1.CodeQuotaExceeded,
				Op:      "check quota",
				Message: fmt.Sprintf("quota of %s, network_rate: limit %g per second, 0 left, 1 requested", q.title, q.limiter.Limit()),
				Remedy:  "try again later, or ask the operator for a larger quota",
				Retry:   true,
			}
		}
	}
	for _, q := range s.quotas {
		q.connections++
	}
	return nil
}

// Close implements sandbox.NetworkBudget.
func (s *networkShare) Close() {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	for _, q := range s.quotas {
		q.connections--
	}
}

// Count implements sandbox.NetworkBudget.
func (s *networkShare) Count(n int) error {
	s.unsaved.Add(int64(n))
	var over *networkQuota
	for _, q := range s.quotas {
		q.unsaved.Add(int64(n))
		if most := q.most.Load(); most >= 0 && q.bytes() > most {
			over = q
		}
	}
	if over == nil {
		return nil
	}
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	return over.quota.Check(over.title, v1.Quota{NetworkBytes: new(over.bytes())}, v1.Quota{NetworkBytes: new(int64(n))})
}

// bytes returns the bytes within spendWindow.
func (q *networkQuota) bytes() int64 { return q.saved.Load() + q.unsaved.Load() }

// saveNetworkBytes moves the counted bytes to the store.
func (m *Manager) saveNetworkBytes(ctx context.Context) error {
	l := &m.network
	l.saveMu.Lock()
	defer l.saveMu.Unlock()
	var add []store.NetworkBytes
	l.mu.Lock()
	for who, n := range l.unsaved {
		if bytes := n.Load(); bytes > 0 {
			add = append(add, store.NetworkBytes{Tenant: who.Tenant, Key: who.Key, Bytes: bytes})
		}
	}
	l.mu.Unlock()
	if len(add) == 0 {
		return nil
	}
	if err := m.store.AddNetworkBytes(ctx, time.Now(), add...); err != nil {
		return err
	}
	l.mu.Lock()
	for _, b := range add {
		who := owner{Tenant: b.Tenant, Key: b.Key}
		l.unsaved[who].Add(-b.Bytes)
		for _, q := range l.quotas {
			if q.counts(who) {
				q.saved.Add(b.Bytes) // before the next line, so that bytes never decreases
				q.unsaved.Add(-b.Bytes)
			}
		}
	}
	l.mu.Unlock()
	return l.readLocked(ctx, m.store)
}

// read reads from the store how many bytes count for each quota.
func (l *networkLedger) read(ctx context.Context, s store.Store) error {
	l.saveMu.Lock()
	defer l.saveMu.Unlock()
	return l.readLocked(ctx, s)
}

// readLocked is read.
//
// Preconditions: saveMu is held, so that no bytes are moved meanwhile.
func (l *networkLedger) readLocked(ctx context.Context, s store.Store) error {
	rows, err := s.NetworkBytes(ctx, time.Now().Add(-spendWindow))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.quotas {
		sum := int64(0)
		for _, r := range rows {
			if q.counts(owner{Tenant: r.Tenant, Key: r.Key}) {
				sum += r.Bytes
			}
		}
		q.saved.Store(sum)
	}
	return nil
}

// networkUsed returns the connections and bytes that count for a bound.
func (m *Manager) networkUsed(ctx context.Context, x bound) (connections int, bytes int64, err error) {
	l := &m.network
	l.saveMu.Lock()
	defer l.saveMu.Unlock()
	rows, err := m.store.NetworkBytes(ctx, time.Now().Add(-spendWindow))
	for _, r := range rows {
		if x.counts(owner{Tenant: r.Tenant, Key: r.Key}) {
			bytes += r.Bytes
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for who, n := range l.unsaved {
		if x.counts(who) {
			bytes += n.Load()
		}
	}
	if q := l.quotas[x.title]; q != nil {
		connections = q.connections
	}
	return connections, bytes, err
}
