package session

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// This file enforces quotas for every interface. Every call that opens a session, takes a snapshot or begins a run goes
// through the ledger. The ledger checks the bounds of the server, the tenant and the key, and counts the new use, under
// one lock. So two calls cannot both take the last free place.

// spendWindow is the time for which the cost of a run counts.
const spendWindow = 30 * 24 * time.Hour

// owner identifies the quotas that a session, a snapshot or a run counts for.
type owner struct {
	Tenant string
	Key    string // id of the API key; empty: none
	Remote bool   // requested over the network
}

// ownerOf returns the owner of what the caller of ctx creates in a tenant.
func ownerOf(ctx context.Context, tenant string) owner {
	a := ActorOf(ctx)
	return owner{Tenant: tenant, Key: a.Key, Remote: a.Remote}
}

// bound is the quota of the server, of a tenant or of a key.
type bound struct {
	title  string // for errors, such as "tenant team-a"
	name   string // of the tenant, or id of the key; empty: the server
	quota  v1.Quota
	counts func(owner) bool                   // reports whether something of that owner counts for this quota
	spend  store.SpendQuery                   // selects the spending that counts for this quota
	report func(*v1.QuotaReport, v1.QuotaUse) // sets the field of a report that is for this quota
}

// bounds are all quotas that apply to an owner. The tightest decides.
type bounds []bound

// bounds returns the quotas of the server, the tenant and the key of an owner.
func (m *Manager) bounds(ctx context.Context, o owner) (bounds, error) {
	tenant, key, err := m.store.Quotas(ctx, o.Tenant, o.Key)
	if err != nil {
		return nil, err
	}
	if o.Remote {
		tenant = tenant.Over(m.opts.TenantQuota)
	}
	out := bounds{
		{
			title:  "the server",
			quota:  m.serverQuota(o.Remote),
			counts: func(owner) bool { return true },
			report: func(r *v1.QuotaReport, u v1.QuotaUse) { r.Server = u },
		},
		{
			title:  "tenant " + o.Tenant,
			name:   o.Tenant,
			quota:  tenant,
			counts: func(x owner) bool { return x.Tenant == o.Tenant },
			spend:  store.SpendQuery{Tenant: o.Tenant},
			report: func(r *v1.QuotaReport, u v1.QuotaUse) { r.Tenant = u },
		},
	}
	if o.Key != "" {
		out = append(out, bound{
			title:  "key " + o.Key,
			name:   o.Key,
			quota:  key,
			counts: func(x owner) bool { return x.Key == o.Key },
			spend:  store.SpendQuery{Key: o.Key},
			report: func(r *v1.QuotaReport, u v1.QuotaUse) { r.Key = &u },
		})
	}
	return out, nil
}

// serverQuota returns the quota of the whole server, for a caller over the network or on the server's own socket.
func (m *Manager) serverQuota(remote bool) v1.Quota {
	if remote {
		return m.opts.Quota.Over(m.opts.RemoteQuota)
	}
	return m.opts.Quota
}

// check returns an error if used and more together exceed one of the bounds.
func (b bounds) check(used func(counts func(owner) bool) v1.Quota, more v1.Quota) error {
	for _, x := range b {
		if x.quota.IsZero() {
			continue
		}
		if err := x.quota.Check(x.title, used(x.counts), more); err != nil {
			return err
		}
	}
	return nil
}

// maxAge returns the max age of a session, or v1.NoLimit.
func (b bounds) maxAge() v1.Duration {
	least := v1.Duration(v1.NoLimit)
	for _, x := range b {
		if a := x.quota.MaxAge; a != nil && *a >= 0 && (least == v1.NoLimit || *a < least) {
			least = *a
		}
	}
	return least
}

// shortestLife is the minimum that max_age must allow for a session that is requested without an expiry.
const shortestLife = time.Second

// expires returns the time from the creation of a session to its expiry: the requested time, or max_age if the request
// has none. A requested time above max_age is an error.
func (b bounds) expires(requested v1.Duration) (v1.Duration, error) {
	unused := func(func(owner) bool) v1.Quota { return v1.Quota{} }
	if requested == 0 {
		return b.maxAge(), b.check(unused, v1.Quota{MaxAge: new(v1.Duration(shortestLife))})
	}
	return requested, b.check(unused, v1.Quota{MaxAge: &requested})
}

// atMost returns d, or max_age if that is less. A d of zero means no expiry.
func (b bounds) atMost(d v1.Duration) (v1.Duration, error) {
	most, err := b.expires(0)
	if d == v1.NoLimit || d == 0 || most != v1.NoLimit && most < d {
		return most, err
	}
	return d, err
}

// expiryOf returns the expiry of a session, which is zero if it never expires.
func expiryOf(created time.Time, expires v1.Duration) time.Time {
	if expires == v1.NoLimit {
		return time.Time{}
	}
	return created.Add(expires.Std())
}

// ledger counts what live sessions and runs hold. No other lock is taken while its mu is held.
type ledger struct {
	// mu guards the fields below.
	mu       sync.Mutex
	sessions map[string]holding // by id
	runs     map[*RunPlace]bool
}

// holding is what a session holds.
type holding struct {
	owner
	limits     sandbox.Limits
	hibernated bool
}

func holdingOf(r *record) holding {
	return holding{r.owner(), r.Spec.Storage(true), r.State == v1.StateHibernated}
}

// amount returns how much the session counts in quotas. A hibernated session uses no memory, CPUs and processes.
func (h holding) amount() v1.Quota {
	q := sandboxAmount(h.limits)
	q.Sessions = new(1)
	if h.hibernated {
		*q.Memory, *q.CPUs, *q.Processes = 0, 0, 0
	}
	return q
}

// sandboxAmount returns how much a sandbox counts in quotas.
func sandboxAmount(l sandbox.Limits) v1.Quota {
	return v1.Quota{Disk: new(l.Disk), Memory: new(l.Memory), CPUs: new(l.CPUs), Processes: new(l.Processes)}
}

// add adds the amount of one session or run to a sum.
func add(sum *v1.Quota, one v1.Quota) {
	if one.Sessions != nil {
		*sum.Sessions += *one.Sessions
	}
	*sum.Disk += *one.Disk
	*sum.Memory += *one.Memory
	*sum.CPUs += *one.CPUs
	*sum.Processes += *one.Processes
}

// zeroSum returns a sum whose fields are all set, to zero.
func zeroSum() v1.Quota {
	return v1.Quota{
		Sessions:  new(0),
		Disk:      new(int64(0)),
		Memory:    new(int64(0)),
		CPUs:      new(0.0),
		Processes: new(0),
		Runs:      new(0),
		Spend:     new(0.0),
	}
}

// used returns the sum of what sessions and runs hold. Only those count for whose owner counts returns true.
//
// Preconditions: l.mu is held.
func (l *ledger) used(counts func(owner) bool) v1.Quota {
	sum := zeroSum()
	for _, h := range l.sessions {
		if counts(h.owner) {
			add(&sum, h.amount())
		}
	}
	for p := range l.runs {
		if counts(p.owner) {
			if !p.call {
				*sum.Runs++
			}
			*sum.Spend += p.reserved
			add(&sum, sandboxAmount(p.limits))
		}
	}
	return sum
}

// reserve counts new sessions if the bounds allow all of them. Otherwise it counts none and returns the error.
func (l *ledger) reserve(b bounds, recs ...*record) error {
	more := zeroSum()
	more.Runs, more.Spend = nil, nil
	for _, r := range recs {
		add(&more, holdingOf(r).amount())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := b.check(l.used, more); err != nil {
		return err
	}
	for _, r := range recs {
		l.set(r)
	}
	return nil
}

// put counts a session of an earlier manager, without checking the bounds.
func (l *ledger) put(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(r)
}

// set counts a session.
//
// Preconditions: l.mu is held.
func (l *ledger) set(r *record) {
	if l.sessions == nil {
		l.sessions = map[string]holding{}
	}
	l.sessions[r.ID] = holdingOf(r)
}

// change sets the limits of a counted session, which counts as awake from now on, if the bounds allow the increase.
func (l *ledger) change(b bounds, id string, limits sandbox.Limits) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.sessions[id]
	if !ok {
		return nil // the session has ended
	}
	have := h.amount()
	h.limits, h.hibernated = limits, false
	next, more := h.amount(), v1.Quota{}
	if d := *next.Memory - *have.Memory; d > 0 {
		more.Memory = &d
	}
	if d := *next.CPUs - *have.CPUs; d > 0 {
		more.CPUs = &d
	}
	if d := *next.Processes - *have.Processes; d > 0 {
		more.Processes = &d
	}
	if d := *next.Disk - *have.Disk; d > 0 {
		more.Disk = &d
	}
	if err := b.check(l.used, more); err != nil {
		return err
	}
	l.sessions[id] = h
	return nil
}

// revert undoes change, if the session is still counted. r is the record before the change.
func (l *ledger) revert(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.sessions[r.ID]; ok {
		l.sessions[r.ID] = holdingOf(r)
	}
}

// setState records whether a session is hibernated.
func (l *ledger) setState(id string, state State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.sessions[id]; ok {
		h.hibernated = state == v1.StateHibernated
		l.sessions[id] = h
	}
}

// release stops counting a session.
func (l *ledger) release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, id)
}

// reserveLimits changes the limits that the session counts for, if its quotas allow that.
func (s *Session) reserveLimits(ctx context.Context, limits sandbox.Limits) error {
	s.mu.Lock()
	quotaOwner := s.rec.owner()
	s.mu.Unlock()
	b, err := s.m.bounds(ctx, quotaOwner)
	if err != nil {
		return err
	}
	return s.m.ledger.change(b, s.id, limits)
}

// reserveToWake counts a hibernated session as awake, if its quotas allow that.
func (s *Session) reserveToWake(ctx context.Context) error {
	s.mu.Lock()
	limits := s.rec.Spec.Storage(true)
	s.mu.Unlock()
	return s.reserveLimits(ctx, limits)
}

// RunPlace is the reservation of one run in its quotas.
type RunPlace struct {
	owner
	m      *Manager
	limits sandbox.Limits // of the run's own sandbox
	call   bool           // one model call, which does not count as a run
	id     string         // of the run; empty until it is known
	own    float64        // US dollars that the key spent on the run before it was resumed
	others float64        // US dollars that other keys spent on the run before it was resumed
	// reserved is the amount in US dollars that the key may spend and that the store does not count yet. The ledger's
	// mu guards it.
	reserved float64
	// MostUSD is the maximum cost of the run in US dollars, including what it cost before it was resumed; nil: no
	// limit.
	MostUSD *float64
}

// RunDemand describes what a run requests of its quotas. Amounts are the maximum cost of the whole run in US dollars. A
// negative amount requests everything that is left.
type RunDemand struct {
	Tenant string
	Run    string   // id of the run to resume; empty: a new run
	USD    *float64 // the amount that the caller requests, an error if less is left; nil: the caller requests none
	Usual  *float64 // the amount if the caller requests none, reduced to what is left; nil: everything that is left
	Free   bool     // the run costs the server nothing
	Call   bool     // one model call, which costs money but does not count as a run
	// Limits are the limits of the run's own sandbox, or zero if the run uses a session. Sandboxes of child runs do not
	// count.
	Limits sandbox.Limits
}

// smallestSpend is the amount in US dollars that must be left for a run whose caller requests no amount.
const smallestSpend = 0.01

// AdmitRun reserves what a run requests, or returns an error if its quotas do not allow it. The caller calls Begin when
// the run has begun, and End when it has ended.
func (m *Manager) AdmitRun(ctx context.Context, d RunDemand) (*RunPlace, error) {
	p := &RunPlace{owner: ownerOf(ctx, d.Tenant), m: m, id: d.Run, limits: d.Limits, call: d.Call}
	b, err := m.bounds(ctx, p.owner)
	if err != nil {
		return nil, err
	}
	m.spendMu.Lock()
	defer m.spendMu.Unlock()
	if err := p.readSpent(ctx); err != nil {
		return nil, err
	}
	spent := make([]float64, len(b))
	for i, x := range b {
		if x.limitsSpend() {
			if spent[i], err = m.spent(ctx, x, store.Spending{Run: d.Run, Key: p.Key}); err != nil {
				return nil, err
			}
		}
	}
	most := float64(v1.NoLimit)
	if amount := cmp.Or(d.USD, d.Usual); amount != nil {
		most = *amount
	}
	requested := d.USD != nil && most >= 0
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	for i, x := range b {
		used, more := m.ledger.used(x.counts), sandboxAmount(d.Limits)
		if !d.Call {
			more.Runs = new(1)
		}
		if x.limitsSpend() && !d.Free {
			*used.Spend += spent[i]
			left := max(0, *x.quota.Spend-*used.Spend) + p.others
			more.Spend = new(smallestSpend)
			if requested {
				more.Spend = new(p.share(most))
			} else if most < 0 || left < most {
				most = left
			}
			p.MostUSD = &most
		}
		if err := x.quota.Check(x.title, used, more); err != nil {
			return nil, err
		}
	}
	if p.MostUSD != nil {
		p.reserved = p.share(most)
	}
	if m.ledger.runs == nil {
		m.ledger.runs = map[*RunPlace]bool{}
	}
	m.ledger.runs[p] = true
	return p, nil
}

func (b bound) limitsSpend() bool { return b.quota.Spend != nil && *b.quota.Spend >= 0 }

// spent returns what was spent within spendWindow and counts for a bound, in US dollars.
func (m *Manager) spent(ctx context.Context, x bound, except store.Spending) (float64, error) {
	q := x.spend
	q.Since, q.Except = time.Now().Add(-spendWindow), except
	return m.store.Spent(ctx, q)
}

// readSpent reads what was spent on a run before it was resumed.
func (p *RunPlace) readSpent(ctx context.Context) error {
	if p.id == "" {
		return nil
	}
	by, err := p.m.store.SpentOn(ctx, p.Tenant, p.id)
	for key, usd := range by {
		if key == p.Key {
			p.own = usd
		} else {
			p.others += usd
		}
	}
	return err
}

// share returns the part of the run's total cost that counts for the key of this place.
func (p *RunPlace) share(total float64) float64 { return max(0, total-p.others) }

// Begin records the id of the run. The maximum cost of the run counts as spent from now on, so that the cost is not
// lost if the server is killed.
func (p *RunPlace) Begin(ctx context.Context, id string) error {
	p.id = id
	if p.MostUSD == nil {
		return nil // End records the cost
	}
	p.m.spendMu.Lock() // so that AdmitRun finds the amount either in the store or reserved
	defer p.m.spendMu.Unlock()
	if err := p.recordSpend(ctx, max(p.own, p.share(*p.MostUSD))); err != nil {
		return err
	}
	p.m.ledger.mu.Lock()
	defer p.m.ledger.mu.Unlock()
	p.reserved = 0 // the store has the amount now
	return nil
}

// End releases the reservation. cost is the total cost of the run in US dollars. If cost is negative, the recorded cost
// stays.
func (p *RunPlace) End(ctx context.Context, cost float64) error {
	var err error
	if cost >= 0 {
		err = p.recordSpend(ctx, p.share(cost))
	}
	p.m.ledger.mu.Lock()
	defer p.m.ledger.mu.Unlock()
	delete(p.m.ledger.runs, p)
	return err
}

// recordSpend sets in the store what the key of this place has spent on the run.
func (p *RunPlace) recordSpend(ctx context.Context, usd float64) error {
	return p.m.store.SaveSpend(ctx, store.Spend{Run: p.id, Tenant: p.Tenant, Key: p.Key, Time: time.Now(), USD: usd})
}

// UsageQuery selects what Usage reports.
type UsageQuery struct {
	Tenant string
	Server bool // include the use of the whole server; false for tenants, which must not see the use of others
}

// Usage returns the quotas that apply to the caller in a tenant, and how much of each is in use.
func (m *Manager) Usage(ctx context.Context, q UsageQuery) (v1.QuotaReport, error) {
	var out v1.QuotaReport
	b, err := m.bounds(ctx, ownerOf(ctx, q.Tenant))
	if err != nil {
		return out, err
	}
	for _, x := range b {
		use := v1.QuotaUse{Name: x.name, Bounds: x.quota}
		if x.name != "" || q.Server {
			used, err := m.use(ctx, x)
			if err != nil {
				return out, err
			}
			use.Used = &used
		}
		x.report(&out, use)
	}
	return out, nil
}

// use returns everything that counts for one bound.
func (m *Manager) use(ctx context.Context, x bound) (v1.Quota, error) {
	used, err := m.usedAndSpent(ctx, x)
	if err != nil {
		return used, err
	}
	snaps, err := m.snapshotsUsed(ctx)
	if err != nil {
		return used, err
	}
	s := snaps(x.counts)
	used.Snapshots, used.SnapshotBytes = s.Snapshots, s.SnapshotBytes
	all, err := m.allVolumes(ctx, "")
	if err != nil {
		return used, err
	}
	v := volumesUsed(all)(x.counts)
	used.Volumes, used.VolumeBytes = v.Volumes, v.VolumeBytes
	connections, bytes, err := m.networkUsed(ctx, x)
	used.Connections, used.NetworkBytes = &connections, &bytes
	return used, err
}

// usedAndSpent returns what sessions and runs hold, and what runs have cost, for one bound.
func (m *Manager) usedAndSpent(ctx context.Context, x bound) (v1.Quota, error) {
	m.spendMu.Lock() // so that an amount is either reserved or in the store
	defer m.spendMu.Unlock()
	m.ledger.mu.Lock()
	used := m.ledger.used(x.counts)
	m.ledger.mu.Unlock()
	spent, err := m.spent(ctx, x, store.Spending{})
	*used.Spend += spent
	return used, err
}

// snapshotsUsed reads the named snapshots from the store. It returns a function that sums those whose owner counts.
func (m *Manager) snapshotsUsed(ctx context.Context) (func(counts func(owner) bool) v1.Quota, error) {
	rows, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{})
	if err != nil {
		return nil, err
	}
	owners := make([]owner, len(rows))
	for i, row := range rows {
		v, err := decodeSnapshot(row)
		if err != nil {
			return nil, err
		}
		owners[i] = owner{Tenant: row.Tenant, Key: v.APIKey}
	}
	return func(counts func(owner) bool) v1.Quota {
		n, size := 0, int64(0)
		for i, row := range rows {
			if counts(owners[i]) {
				n, size = n+1, size+row.Size
			}
		}
		return v1.Quota{Snapshots: &n, SnapshotBytes: &size}
	}, nil
}

// checkSnapshot returns an error if the owner's quotas do not allow another snapshot of this size. If add is not nil,
// checkSnapshot calls it after the check. No other snapshot is checked between the check and the end of add.
func (m *Manager) checkSnapshot(ctx context.Context, quotaOwner owner, size int64, add func() error) error {
	b, err := m.bounds(ctx, quotaOwner)
	if err != nil {
		return err
	}
	limited := false
	for _, x := range b {
		limited = limited || x.quota.Snapshots != nil || x.quota.SnapshotBytes != nil
	}
	if limited {
		m.snapshotMu.Lock()
		defer m.snapshotMu.Unlock()
		used, err := m.snapshotsUsed(ctx)
		if err != nil {
			return err
		}
		if err := b.check(used, v1.Quota{Snapshots: new(1), SnapshotBytes: &size}); err != nil {
			return err
		}
	}
	if add == nil {
		return nil
	}
	return add()
}

// extendable returns an error if max_age does not allow to extend a session. granted is the time from its creation to
// its expiry, and more is the extension.
func (b bounds) extendable(granted, more time.Duration) error {
	used := v1.Quota{MaxAge: new(v1.Duration(granted))}
	err := b.check(func(func(owner) bool) v1.Quota { return used }, v1.Quota{MaxAge: new(v1.Duration(more))})
	if err != nil {
		return fmt.Errorf("extend session: %w", err)
	}
	return nil
}
