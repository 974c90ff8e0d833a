package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/audit"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// Timing of the manager's own work, all in one place.
const (
	reapEvery   = time.Second      // between looks at lifetimes
	saveEvery   = 5 * time.Second  // between writes of when sessions were last used
	healthEvery = 30 * time.Second // between pings of sandboxes nobody talks to
	pingWait    = 10 * time.Second // for an answer to a ping
	againWait   = 20 * time.Second // for one that did not answer to be attached again; longer than heldWait, so that one which is held is not taken for one that hangs
	searchWait  = 10 * time.Second // for a backend to tell what it holds
	stopWait    = 30 * time.Second // for a backend to end a sandbox, or to remove an image
	makeWait    = 5 * time.Minute  // for a sandbox to be made, an image to be fetched included
)

// Options makes a Manager. Only Backends is needed.
type Options struct {
	// Backends that may be used, and what the chosen one must offer.
	Backends []sandbox.Backend
	Require  backend.Requirements
	// DataDir holds the store and the audit log's spool; empty: the user's own. One manager uses it at a time.
	DataDir string
	// Store keeps what must outlive the manager. Its owner closes it after the manager. Nil: a SQLite file in DataDir.
	Store  store.Store
	Policy Policy // of sessions that do not say
	Pool   pool.Options
	// NoPool makes each sandbox on demand.
	NoPool bool
	// Warm are specs of which sandboxes are kept ready from the start.
	Warm    []sandbox.Spec
	Webhook string // told when a session is lost
	// Gate judges code before it runs; nil: nobody does. A session's own mode says how much its opinion weighs.
	Gate gate.Gate
	// AuditKept is how long entries of the audit log are kept; 0: DefaultAuditKept, sandbox.NoLimit: for ever.
	AuditKept time.Duration
	// RecordsKept is how long ended sessions are remembered, and their snapshots kept; 0: DefaultRecordsKept, sandbox.NoLimit: for ever.
	RecordsKept time.Duration
	Logger      *slog.Logger

	// For tests; 0: the constants of these names.
	reapEvery, healthEvery, pingWait, againWait, searchWait, stopWait, endGrace time.Duration
	journalRoom                                                                 int
}

// Manager opens sessions and looks after them.
type Manager struct {
	opts  Options
	store store.Store
	// closeStore closes a store that the manager has opened itself.
	closeStore func() error
	instance   string
	maker      string // this manager among those of the instance, which follow one another
	log        *slog.Logger
	started    time.Time
	policy     Policy

	ctx    context.Context // ends with the manager
	cancel context.CancelFunc
	work   sync.WaitGroup // everything that runs on behalf of sessions
	closed chan struct{}  // closed when nothing is left

	journal *audit.Journal
	counts  counts

	backendMu sync.Mutex
	chosen    sandbox.Backend       // guarded by backendMu; nil: not yet
	fit       map[string]bool       // guarded by backendMu; backends that were found to meet the requirements
	pools     map[string]*pool.Pool // guarded by backendMu

	imageMu sync.Mutex
	pins    map[string]int           // guarded by imageMu; images somebody reads right now
	going   map[string]chan struct{} // guarded by imageMu; images that are being removed, closed when that is over

	mu      sync.Mutex
	live    map[Key]*Session                             // guarded by mu; sessions that hold their key
	owed    map[*Session]func(ctx context.Context) error // guarded by mu; see owe
	closing bool                                         // guarded by mu; no session is opened any more
	leaving bool                                         // guarded by mu; no work is begun any more
}

// New opens the store, finds what an earlier manager left running, and takes it over.
func New(ctx context.Context, opts Options) (*Manager, error) {
	if len(opts.Backends) == 0 {
		return nil, invalid("make session manager", "no backend")
	}
	if opts.DataDir == "" {
		dir, err := xdg.Data()
		if err != nil {
			return nil, err
		}
		opts.DataDir = dir
	}
	if err := xdg.Private(opts.DataDir); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "prepare data directory", Err: err}
	}
	policy := opts.Policy.or(defaultPolicy)
	if err := policy.check(); err != nil {
		return nil, err
	}
	st, closeStore := opts.Store, func() error { return nil }
	if st == nil {
		own, err := store.OpenSQLite(ctx, opts.DataDir)
		if err != nil {
			return nil, err
		}
		st, closeStore = own, own.Close
	}
	m := &Manager{
		opts: opts, store: st, closeStore: closeStore, instance: st.Instance(), maker: rand.Text(), log: opts.Logger, started: time.Now(), policy: policy,
		closed: make(chan struct{}), fit: map[string]bool{}, pools: map[string]*pool.Pool{}, pins: map[string]int{}, going: map[string]chan struct{}{},
		live: map[Key]*Session{}, owed: map[*Session]func(context.Context) error{},
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	m.opts.reapEvery, m.opts.healthEvery = first(opts.reapEvery, reapEvery), first(opts.healthEvery, healthEvery)
	m.opts.pingWait, m.opts.againWait = first(opts.pingWait, pingWait), first(opts.againWait, againWait)
	m.opts.searchWait, m.opts.stopWait = first(opts.searchWait, searchWait), first(opts.stopWait, stopWait)
	m.opts.endGrace = first(opts.endGrace, EndGrace)
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	m.journal, err = audit.Open(ctx, audit.Options{
		Store: st, Dir: opts.DataDir, Logger: m.log, Room: opts.journalRoom, Written: func() { failpoint("audit.written") },
	})
	if err != nil {
		m.cancel()
		return nil, errors.Join(err, closeStore())
	}
	if err := m.recover(ctx); err != nil {
		m.cancel()
		m.work.Wait()
		return nil, errors.Join(err, m.journal.Close(ctx), closeStore())
	}
	m.work.Go(func() { m.journal.Run(m.ctx) })
	m.work.Go(m.reap)
	m.work.Go(func() { m.checkHealth(m.opts.healthEvery) })
	m.work.Go(m.lookAgain)
	for _, spec := range opts.Warm {
		m.work.Go(func() { m.warm(spec) })
	}
	return m, nil
}

// Instance is the id by which our sandboxes are known from others'.
func (m *Manager) Instance() string { return m.instance }

// backend gives a backend by its name, or chooses one.
func (m *Manager) backend(ctx context.Context, name string) (sandbox.Backend, error) {
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	if name == "" && m.chosen != nil {
		return m.chosen, nil
	}
	if name != "" && m.fit[name] {
		return m.known(name), nil
	}
	req := m.opts.Require
	if name != "" {
		req.Order = []string{name}
	}
	if req.Logger == nil {
		req.Logger = m.log
	}
	b, _, err := backend.Select(ctx, m.opts.Backends, req)
	if err != nil {
		return nil, err
	}
	if name == "" {
		m.chosen = b
	}
	m.fit[b.Name()] = true
	return b, nil
}

// known gives the backend of a session that exists, or nil.
func (m *Manager) known(name string) sandbox.Backend {
	i := slices.IndexFunc(m.opts.Backends, func(b sandbox.Backend) bool { return b.Name() == name })
	if i < 0 {
		return nil
	}
	return m.opts.Backends[i]
}

// pool gives the pool of a backend, or nil where there is none: what it makes must be given a session's labels later.
func (m *Manager) pool(b sandbox.Backend) *pool.Pool {
	if _, ok := b.(backend.Labeler); !ok || m.opts.NoPool {
		return nil
	}
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	if m.ctx.Err() != nil {
		return nil
	}
	p := m.pools[b.Name()]
	if p == nil {
		o := m.opts.Pool
		o.Persist, o.Labels = true, map[string]string{}
		maps.Copy(o.Labels, m.opts.Pool.Labels)
		o.Labels[labelInstance], o.Labels[labelMaker] = m.instance, m.maker
		p = pool.New(b, o)
		m.pools[b.Name()] = p
	}
	return p
}

// PoolStats tells what the pools hold and have done, by backend.
func (m *Manager) PoolStats() map[string]pool.Stats {
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	out := map[string]pool.Stats{}
	for name, p := range m.pools {
		out[name] = p.Stats()
	}
	return out
}

// warm keeps sandboxes of a spec ready.
func (m *Manager) warm(spec sandbox.Spec) {
	b, err := m.backend(m.ctx, "")
	if err != nil {
		m.log.WarnContext(m.ctx, "no sandboxes are kept ready", "error", err)
		return
	}
	spec, _, err = normal(spec)
	if p := m.pool(b); p != nil && err == nil {
		spec.Persist = false // it says so for all it makes
		err = p.Warm(m.ctx, spec)
	}
	if err != nil && m.ctx.Err() == nil {
		m.log.WarnContext(m.ctx, "no sandboxes are kept ready", "error", err)
	}
}

// Get finds a live session. Looking is not use.
func (m *Manager) Get(ctx context.Context, key Key) (*Session, error) {
	key, err := key.check()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	s, closing := m.live[key], m.closing
	m.mu.Unlock()
	if closing {
		return nil, errClosing
	}
	if s != nil {
		if err := s.made(ctx); err != nil {
			return nil, err
		}
		return s, nil
	}
	return nil, m.missing(ctx, key)
}

// missing says why a key has no session.
func (m *Manager) missing(ctx context.Context, key Key) error {
	rows, err := m.store.FindSessions(ctx, store.SessionQuery{Tenant: key.Tenant, Name: key.Name, Limit: 1})
	if err != nil {
		return err
	}
	if len(rows) > 0 && rows[0].State == string(Expired) {
		r, err := decode(rows[0])
		if err != nil {
			return err
		}
		return expired(key, r.Reason)
	}
	return notFound(key)
}

// ListOptions chooses sessions.
type ListOptions struct {
	Tenant string  // "*": all; empty: DefaultTenant
	States []State // empty: all that are live
	Limit  int     // 0: all
}

// List gives sessions in the order of their names, the oldest first among those of one name.
func (m *Manager) List(ctx context.Context, o ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		all, err := m.list(ctx, o)
		if err != nil {
			yield(Info{}, err)
			return
		}
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (m *Manager) list(ctx context.Context, o ListOptions) ([]Info, error) {
	if o.Tenant == "" {
		o.Tenant = DefaultTenant
	}
	wanted := func(i *Info) bool {
		return (o.Tenant == "*" || i.Key.Tenant == o.Tenant) &&
			(len(o.States) == 0 && i.State.Live() || slices.Contains(o.States, i.State))
	}
	var out []Info
	for _, s := range m.sessions() {
		if i := s.Info(); wanted(&i) {
			out = append(out, i)
		}
	}
	if slices.ContainsFunc(o.States, func(s State) bool { return !s.Live() }) {
		q := store.SessionQuery{Dead: true}
		if o.Tenant != "*" {
			q.Tenant = o.Tenant
		}
		rows, err := m.store.FindSessions(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			r, err := decode(row)
			if err != nil {
				return nil, err
			}
			if i := r.info(); wanted(&i) {
				out = append(out, i)
			}
		}
	}
	slices.SortFunc(out, func(a, b Info) int {
		return cmp.Or(
			cmp.Compare(a.Key.Tenant, b.Key.Tenant), cmp.Compare(a.Key.Name, b.Key.Name), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	if o.Limit > 0 && len(out) > o.Limit {
		out = out[:o.Limit]
	}
	return out, nil
}

// sessions gives those that hold their key.
func (m *Manager) sessions() []*Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.live))
}

// begin counts a piece of work, unless the manager is leaving.
func (m *Manager) begin(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaving {
		return false
	}
	m.work.Go(f)
	return true
}

// Detach gives up everything without ending a session: the next manager finds them.
func (m *Manager) Detach(ctx context.Context) error {
	m.mu.Lock()
	already := m.leaving
	m.closing, m.leaving = true, true
	m.mu.Unlock()
	if already {
		select {
		case <-m.closed:
			return nil
		case <-ctx.Done():
			return cancelled("detach", ctx.Err())
		}
	}
	defer close(m.closed)
	m.cancel()
	m.work.Wait()
	m.backendMu.Lock()
	pools := slices.Collect(maps.Values(m.pools))
	m.backendMu.Unlock()
	var wg sync.WaitGroup
	for _, p := range pools {
		wg.Go(p.Close)
	}
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, s := range m.sessions() {
		s.mu.Lock()
		sb, dirty := s.attachment.detach(), s.dirty
		s.mu.Unlock()
		if sb != nil {
			wg.Go(sb.Detach)
		}
		if dirty {
			errs = append(errs, s.save(ctx))
		}
	}
	wg.Wait()
	errs = append(errs, m.settle(ctx, Key{}), m.journal.Close(ctx), m.closeStore())
	return errors.Join(errs...)
}

// Close ends every session and the manager.
func (m *Manager) Close() error {
	ctx := context.Background()
	m.mu.Lock()
	m.closing = true // one that is opened from here on would outlive it
	m.mu.Unlock()
	var errs []error
	var wg sync.WaitGroup
	for _, s := range m.sessions() {
		wg.Go(func() {
			if err := s.End(ctx, "the session manager was closed"); err != nil {
				m.log.WarnContext(ctx, "session could not be ended", "session", s.key.String(), "error", err)
			}
			select {
			case <-s.disposed:
			case <-m.ctx.Done(): // somebody else closes it, and the next manager finds what is left
			}
		})
	}
	wg.Wait()
	errs = append(errs, m.Detach(ctx))
	return errors.Join(errs...)
}

// decode reads a record of the store.
func decode(row store.Session) (*record, error) {
	r := &record{}
	if err := unmarshal(row.Data, r); err != nil {
		return nil, &sandbox.Error{Code: CodeStoreCorrupt, Op: "read session", Message: fmt.Sprintf("the record of session %s cannot be read", row.ID), Err: err}
	}
	return r, nil
}
