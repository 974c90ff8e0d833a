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

// Quotas are enforced here for every interface: whatever opens a session, takes a snapshot or begins a run passes the ledger, which checks
// the bounds of the server, the tenant and the key, and counts the new use, under one lock. So two calls cannot both take the last place.

// spendWindow is how far back the money counts that runs have cost.
const spendWindow = 30 * 24 * time.Hour

// owner is whose quota something counts for.
type owner struct {
	Tenant string
	Key    string // id of the API key; empty: none
	Remote bool   // asked for over the network
}

// ownerOf returns whose quota counts for what the caller makes in a tenant.
func ownerOf(ctx context.Context, tenant string) owner {
	a := ActorOf(ctx)
	return owner{Tenant: tenant, Key: a.Key, Remote: a.Remote}
}

// bound is a quota, whose it is, and what counts for it.
type bound struct {
	whose  string
	name   string // of the tenant, or id of the key
	quota  v1.Quota
	counts func(owner) bool
	spend  store.SpendQuery                   // chooses the spending that counts
	report func(*v1.QuotaReport, v1.QuotaUse) // sets its field of a report
}

// bounds are all that apply to an owner. The tightest decides.
type bounds []bound

// bounds returns the quotas of the server, the tenant and the key of an owner.
func (m *Manager) bounds(ctx context.Context, o owner) (bounds, error) {
	tenant, key, err := m.store.Quotas(ctx, o.Tenant, o.Key)
	if err != nil {
		return nil, err
	}
	out := bounds{
		{
			whose: "the server", quota: m.serverQuota(o.Remote),
			counts: func(owner) bool { return true },
			report: func(r *v1.QuotaReport, u v1.QuotaUse) { r.Server = u },
		},
		{
			whose: "tenant " + o.Tenant, name: o.Tenant, quota: tenant,
			counts: func(x owner) bool { return x.Tenant == o.Tenant },
			spend:  store.SpendQuery{Tenant: o.Tenant},
			report: func(r *v1.QuotaReport, u v1.QuotaUse) { r.Tenant = u },
		},
	}
	if o.Key != "" {
		out = append(out, bound{
			whose: "key " + o.Key, name: o.Key, quota: key,
			counts: func(x owner) bool { return x.Key == o.Key },
			spend:  store.SpendQuery{Key: o.Key},
			report: func(r *v1.QuotaReport, u v1.QuotaUse) { r.Key = &u },
		})
	}
	return out, nil
}

// serverQuota returns the bounds of the whole server for callers over the network, or for those on its own socket.
func (m *Manager) serverQuota(remote bool) v1.Quota {
	if remote {
		return m.opts.Quota.Over(m.opts.RemoteQuota)
	}
	return m.opts.Quota
}

// check refuses more of what used returns.
func (b bounds) check(used func(counts func(owner) bool) v1.Quota, more v1.Quota) error {
	for _, x := range b {
		if x.quota.IsZero() {
			continue
		}
		if err := x.quota.Check(x.whose, used(x.counts), more); err != nil {
			return err
		}
	}
	return nil
}

// maxAge returns the oldest that a session may get.
func (b bounds) maxAge() v1.Duration {
	least := v1.Duration(v1.NoLimit)
	for _, x := range b {
		if a := x.quota.MaxAge; a != nil && *a >= 0 && (least == v1.NoLimit || *a < least) {
			least = *a
		}
	}
	return least
}

// shortestLife is what max_age must allow for a session that asks for no end.
const shortestLife = time.Second

// expires returns the time from the creation of a session to its end: what is asked for, or else as much as is allowed.
func (b bounds) expires(asked v1.Duration) (v1.Duration, error) {
	nothing := func(func(owner) bool) v1.Quota { return v1.Quota{} }
	if asked == 0 {
		return b.maxAge(), b.check(nothing, v1.Quota{MaxAge: new(v1.Duration(shortestLife))})
	}
	return asked, b.check(nothing, v1.Quota{MaxAge: &asked})
}

// atMost returns d, or as much of it as is allowed. A d of zero is no end.
func (b bounds) atMost(d v1.Duration) (v1.Duration, error) {
	most, err := b.expires(0)
	if d == v1.NoLimit || d == 0 || most != v1.NoLimit && most < d {
		return most, err
	}
	return d, err
}

// endOf returns when a session that is created now ends; zero: never.
func endOf(created time.Time, expires v1.Duration) time.Time {
	if expires == v1.NoLimit {
		return time.Time{}
	}
	return created.Add(expires.Std())
}

// ledger counts what live sessions and runs hold. Its lock is a leaf: nothing else is locked under it.
type ledger struct {
	// mu guards the fields below.
	mu       sync.Mutex
	sessions map[string]holding // by id
	runs     map[*RunPlace]bool
}

// holding is what a session holds.
type holding struct {
	owner
	limits sandbox.Limits
	asleep bool
}

func holdingOf(r *record) holding {
	return holding{r.owner(), r.Spec.Limits, r.State == v1.StateHibernated}
}

// amount returns what it counts for.
func (h holding) amount() v1.Quota {
	q := machine(h.limits)
	q.Sessions = new(1)
	if h.asleep {
		*q.Memory, *q.CPUs, *q.Processes = 0, 0, 0
	}
	return q
}

// machine returns what a sandbox counts for.
func machine(l sandbox.Limits) v1.Quota {
	return v1.Quota{Disk: new(l.Disk), Memory: new(l.Memory), CPUs: new(l.CPUs), Processes: new(l.Processes)}
}

// add adds what one session or run holds to a sum.
func add(sum *v1.Quota, one v1.Quota) {
	if one.Sessions != nil {
		*sum.Sessions += *one.Sessions
	}
	*sum.Disk += *one.Disk
	*sum.Memory += *one.Memory
	*sum.CPUs += *one.CPUs
	*sum.Processes += *one.Processes
}

// zero returns a sum of nothing.
func zero() v1.Quota {
	return v1.Quota{Sessions: new(0), Disk: new(int64(0)), Memory: new(int64(0)), CPUs: new(0.0), Processes: new(0), Runs: new(0), Spend: new(0.0)}
}

// used sums what is held by those who count.
//
// Preconditions: l.mu is held.
func (l *ledger) used(counts func(owner) bool) v1.Quota {
	sum := zero()
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
			add(&sum, machine(p.limits))
		}
	}
	return sum
}

// reserve counts new sessions, all or none.
func (l *ledger) reserve(b bounds, recs ...*record) error {
	more := zero()
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

// put counts a session without a check: it was there before.
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

// change reserves limits for a session that is counted, awake, if the bounds allow what it has not held so far.
func (l *ledger) change(b bounds, id string, limits sandbox.Limits) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.sessions[id]
	if !ok {
		return nil // it has ended
	}
	have := h.amount()
	h.limits, h.asleep = limits, false
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

// revert undoes change for a session that is still counted.
func (l *ledger) revert(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.sessions[r.ID]; ok {
		l.sessions[r.ID] = holdingOf(r)
	}
}

// setState notes whether a session hibernates.
func (l *ledger) setState(id string, state State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.sessions[id]; ok {
		h.asleep = state == v1.StateHibernated
		l.sessions[id] = h
	}
}

// release no longer counts a session.
func (l *ledger) release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, id)
}

// hold reserves limits for the session if its quotas allow it.
func (s *Session) hold(ctx context.Context, limits sandbox.Limits) error {
	s.mu.Lock()
	whose := s.rec.owner()
	s.mu.Unlock()
	b, err := s.m.bounds(ctx, whose)
	if err != nil {
		return err
	}
	return s.m.ledger.change(b, s.id, limits)
}

// holdAwake reserves what a hibernated session needs to run.
func (s *Session) holdAwake(ctx context.Context) error {
	s.mu.Lock()
	limits := s.rec.Spec.Limits
	s.mu.Unlock()
	return s.hold(ctx, limits)
}

// RunPlace is the place of a run among those that its quotas allow.
type RunPlace struct {
	owner
	m        *Manager
	limits   sandbox.Limits // of its own sandbox
	call     bool           // it is one model call, and no run
	id       string         // of the run, once it is known
	own      float64        // US dollars that its key has spent on the run before
	others   float64        // US dollars that other keys have spent on the run before
	reserved float64        // US dollars that its key may spend and that the store does not count yet; the ledger's mu guards it
	// MostUSD is what the run may cost in all, where money is bounded; nil: it is not.
	MostUSD *float64
}

// RunDemand is what a run needs of its quotas. An amount is what the run may cost in all, in US dollars; negative: any amount, which
// becomes what is left.
type RunDemand struct {
	Tenant string
	Run    string   // id of a run that is resumed; empty: a new one
	USD    *float64 // the caller's amount: more than is left is refused; nil: the caller names none
	Usual  *float64 // the amount where the caller names none, reduced to what is left; nil: any amount
	Free   bool     // the run costs the server nothing
	Call   bool     // one model call, which is no run but costs money as well
	// Limits are those of the run's own sandbox, zero if it works in a session. Sandboxes of its children do not count.
	Limits sandbox.Limits
}

// smallestSpend is what must be left for a run whose caller names no amount, in US dollars.
const smallestSpend = 0.01

// AdmitRun takes the place of a run. The caller calls Begin once it has begun, and End when it is over.
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
	asked := d.USD != nil && most >= 0
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	for i, x := range b {
		used, more := m.ledger.used(x.counts), machine(d.Limits)
		if !d.Call {
			more.Runs = new(1)
		}
		if x.limitsSpend() && !d.Free {
			*used.Spend += spent[i]
			left := max(0, *x.quota.Spend-*used.Spend) + p.others
			more.Spend = new(smallestSpend)
			if asked {
				more.Spend = new(p.share(most))
			} else if most < 0 || left < most {
				most = left
			}
			p.MostUSD = &most
		}
		if err := x.quota.Check(x.whose, used, more); err != nil {
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

// spent returns what was spent within the window and counts for a bound.
func (m *Manager) spent(ctx context.Context, x bound, except store.Spending) (float64, error) {
	q := x.spend
	q.Since, q.Except = time.Now().Add(-spendWindow), except
	return m.store.Spent(ctx, q)
}

// readSpent reads what has been spent on a run that is resumed.
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

// share returns what counts for the key of this place if the run costs so much in all.
func (p *RunPlace) share(total float64) float64 { return max(0, total-p.others) }

// Begin notes the id of the run. What it may cost counts as spent from now on, so that a server that is killed forgets nothing.
func (p *RunPlace) Begin(ctx context.Context, id string) error {
	p.id = id
	if p.MostUSD == nil {
		return nil // its cost is noted at its end
	}
	p.m.spendMu.Lock() // AdmitRun finds the amount either in the store or reserved
	defer p.m.spendMu.Unlock()
	if err := p.note(ctx, max(p.own, p.share(*p.MostUSD))); err != nil {
		return err
	}
	p.m.ledger.mu.Lock()
	defer p.m.ledger.mu.Unlock()
	p.reserved = 0 // the store counts it
	return nil
}

// End gives the place back. Cost is what the run has cost in all, in US dollars; negative: what is noted stays.
func (p *RunPlace) End(ctx context.Context, cost float64) error {
	var err error
	if cost >= 0 {
		err = p.note(ctx, p.share(cost))
	}
	p.m.ledger.mu.Lock()
	defer p.m.ledger.mu.Unlock()
	delete(p.m.ledger.runs, p)
	return err
}

// note replaces what the key of this place has spent on the run.
func (p *RunPlace) note(ctx context.Context, usd float64) error {
	return p.m.store.SaveSpend(ctx, store.Spend{Run: p.id, Tenant: p.Tenant, Key: p.Key, Time: time.Now(), USD: usd})
}

// UsageQuery chooses what Usage reports.
type UsageQuery struct {
	Tenant string
	Server bool // also how much the whole server uses, which tenants do not see of each other
}

// Usage returns what bounds the caller in a tenant, and how much of it is in use.
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

// use returns all that is in use of one bound.
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
	return used, nil
}

// usedAndSpent returns what sessions and runs hold, and what runs have cost.
func (m *Manager) usedAndSpent(ctx context.Context, x bound) (v1.Quota, error) {
	m.spendMu.Lock() // an amount is either reserved or in the store
	defer m.spendMu.Unlock()
	m.ledger.mu.Lock()
	used := m.ledger.used(x.counts)
	m.ledger.mu.Unlock()
	spent, err := m.spent(ctx, x, store.Spending{})
	*used.Spend += spent
	return used, err
}

// snapshotsUsed counts the named snapshots of the store.
func (m *Manager) snapshotsUsed(ctx context.Context) (func(counts func(owner) bool) v1.Quota, error) {
	rows, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{})
	if err != nil {
		return nil, err
	}
	whose := make([]owner, len(rows))
	for i, row := range rows {
		v, err := decodeSnapshot(row)
		if err != nil {
			return nil, err
		}
		whose[i] = owner{Tenant: row.Tenant, Key: v.APIKey}
	}
	return func(counts func(owner) bool) v1.Quota {
		n, size := 0, int64(0)
		for i, row := range rows {
			if counts(whose[i]) {
				n, size = n+1, size+row.Size
			}
		}
		return v1.Quota{Snapshots: &n, SnapshotBytes: &size}
	}, nil
}

// checkSnapshot refuses a snapshot of so many bytes that the caller's quotas do not allow. With add, it calls add before anybody else is
// checked.
func (m *Manager) checkSnapshot(ctx context.Context, whose owner, size int64, add func() error) error {
	b, err := m.bounds(ctx, whose)
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

// extendable checks an extension against max_age. A session was granted some time since its creation, and gets more.
func (b bounds) extendable(granted, more time.Duration) error {
	used := v1.Quota{MaxAge: new(v1.Duration(granted))}
	err := b.check(func(func(owner) bool) v1.Quota { return used }, v1.Quota{MaxAge: new(v1.Duration(more))})
	if err != nil {
		return fmt.Errorf("extend session: %w", err)
	}
	return nil
}
