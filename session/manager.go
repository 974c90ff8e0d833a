package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/audit"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// The timing of the manager.
const (
	reapEvery   = time.Second      // between checks of lifetimes
	overtime    = 5 * time.Minute  // for operations that run when the lifetime of their session ends
	saveEvery   = 5 * time.Second  // between writes of when sessions were used last
	healthEvery = 30 * time.Second // between pings of idle sandboxes
	pingWait    = 10 * time.Second // for an answer to a ping
	searchWait  = 10 * time.Second // for a backend to list what it holds
	stopWait    = 30 * time.Second // for a backend to end a sandbox, or to remove an image
	makeBase    = 5 * time.Minute  // for a sandbox to be created, with the download of its image, without its disk
	// reconnectWait is for a sandbox that did not answer to be attached again. It is longer than heldWait, so that a
	// busy sandbox is not mistaken for one that hangs.
	reconnectWait = 20 * time.Second
)

// Options configure a Manager. Only Backends is required.
type Options struct {
	// Backends are the backends to choose from. Require is what the chosen backend must offer.
	Backends []sandbox.Backend
	Require  backend.Requirements
	// DataDir holds the store and the spool of the audit log; empty: the user's data directory. Only one manager can
	// use it at a time.
	DataDir string
	// Store keeps what must outlive the manager; nil: a SQLite file in DataDir. The caller closes it after the manager.
	Store store.Store
	// Policy has the values for fields that a session's own policy leaves out.
	Policy Policy
	// Quota bounds what all sessions and runs together may use. RemoteQuota applies only to callers over the network,
	// and only to the fields that Quota leaves out. The quotas of tenants and keys are in the store.
	// TenantQuota applies to each tenant whose own quota leaves a field out, and only to callers over the network.
	Quota, RemoteQuota, TenantQuota v1.Quota
	Pool                            pool.Options
	// NoPool creates each sandbox on demand.
	NoPool bool
	// Warm has the specs of sandboxes that the pool keeps ready from the start.
	Warm []sandbox.Spec
	// Webhook is a URL to which an Alert is sent when a session is lost; empty: none.
	Webhook string
	// Gate judges code before it runs; nil: no gate. The mode of the gate is set for each session.
	Gate gate.Gate
	// Approvals has the questions to people about connections; nil: policies whose rules ask are refused.
	Approvals *gate.Approvals
	// NetworkDefault is the network policy of sessions that are opened without one, if neither their key nor their tenant
	// has a default; nil: none. Backends have the maximum of all policies.
	NetworkDefault *v1.Network
	// AuditKept is how long entries of the audit log are kept; 0: DefaultAuditKept.
	AuditKept time.Duration
	// RecordsKept is how long ended sessions and their snapshots are kept; 0: DefaultRecordsKept.
	RecordsKept time.Duration
	Logger      *slog.Logger

	// For tests; 0: the constants of these names.
	reapEvery, overtime, healthEvery, pingWait    time.Duration
	reconnectWait, searchWait, stopWait, endGrace time.Duration
	backoff                                       [RestoreAttempts]time.Duration
	journalRoom                                   int
}

// Manager opens and supervises sessions.
type Manager struct {
	opts       Options
	store      store.Store
	closeStore func() error // closes a store that the manager opened itself
	instance   string
	maker      string // identifies this manager among those of the instance
	log        *slog.Logger
	started    time.Time
	policy     Policy
	journal    *audit.Journal
	counts     counts
	ledger     ledger
	network    networkLedger
	snapshotMu sync.Mutex // held while a snapshot is counted and named; taken after the mutexes of a session
	// spendMu is held while the cost of a run is moved from the ledger to the store, or summed. It is taken before the
	// ledger's mu.
	spendMu sync.Mutex

	ctx    context.Context // ends with the manager
	cancel context.CancelFunc
	work   sync.WaitGroup // everything that runs in the background
	closed chan struct{}  // closed when the manager is detached

	// backendMu guards the fields below.
	backendMu sync.Mutex
	chosen    sandbox.Backend       // nil: not chosen yet
	fit       map[string]bool       // backends that are known to meet the requirements
	pools     map[string]*pool.Pool // by backend

	// imageMu guards the fields below.
	imageMu  sync.Mutex
	pins     map[string]int           // images in use, and how often
	removing map[string]chan struct{} // images that are being removed; closed when they are

	// mu guards the fields below.
	mu       sync.Mutex
	live     map[Key]*Session                             // sessions that hold their key
	deferred map[*Session]func(ctx context.Context) error // writes that failed; see deferWrite
	closing  bool                                         // no session is opened any more
	leaving  bool                                         // no background work is begun any more
}

// New opens the store, takes over the sessions of an earlier manager, and returns the manager. The caller ends it with
// Detach or Close.
func New(ctx context.Context, opts Options) (*Manager, error) {
	if len(opts.Backends) == 0 {
		return nil, invalid("create session manager", "no backend is configured")
	}
	if opts.DataDir == "" {
		dir, err := xdg.Data()
		if err != nil {
			return nil, err
		}
		opts.DataDir = dir
	}
	if err := xdg.Private(opts.DataDir); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "prepare data directory", Err: err}
	}
	for _, q := range []v1.Quota{opts.RemoteQuota, opts.TenantQuota} {
		if q.Connections != nil || q.ConnectionRate != nil || q.NetworkBytes != nil {
			return nil, invalid("create session manager", "RemoteQuota and TenantQuota cannot bound the network: set Quota")
		}
	}
	policy := orPolicy(opts.Policy, defaultPolicy)
	if err := checkPolicy(policy); err != nil {
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
		opts:       opts,
		store:      st,
		closeStore: closeStore,
		instance:   st.Instance(),
		maker:      ids.Hex(16),
		log:        opts.Logger,
		started:    time.Now(),
		policy:     policy,
		closed:     make(chan struct{}),
		fit:        map[string]bool{},
		pools:      map[string]*pool.Pool{},
		pins:       map[string]int{},
		removing:   map[string]chan struct{}{},
		live:       map[Key]*Session{},
		deferred:   map[*Session]func(context.Context) error{},
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	m.opts.backoff = cmp.Or(opts.backoff, backoff)
	m.opts.reapEvery, m.opts.healthEvery = cmp.Or(opts.reapEvery, reapEvery), cmp.Or(opts.healthEvery, healthEvery)
	m.opts.overtime = cmp.Or(opts.overtime, overtime)
	m.opts.pingWait, m.opts.reconnectWait = cmp.Or(opts.pingWait, pingWait), cmp.Or(opts.reconnectWait, reconnectWait)
	m.opts.searchWait, m.opts.stopWait = cmp.Or(opts.searchWait, searchWait), cmp.Or(opts.stopWait, stopWait)
	m.opts.endGrace = cmp.Or(opts.endGrace, EndGrace)
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	m.journal, err = audit.Open(ctx, audit.Options{
		Store:    st,
		Dir:      opts.DataDir,
		Logger:   m.log,
		Capacity: opts.journalRoom,
		Written:  func() { failpoint("audit.written") },
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
	m.work.Go(m.collectLate)
	for _, spec := range opts.Warm {
		m.work.Go(func() { m.warm(spec) })
	}
	return m, nil
}

// begin runs f in the background. It returns false without running f if the manager is leaving.
func (m *Manager) begin(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaving {
		return false
	}
	m.work.Go(f)
	return true
}

// Detach closes the manager and its connections to all sandboxes, without ending a session. The next manager takes the
// sessions over.
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
	for _, s := range m.sessions() {
		s.network.flush() // while the audit log is open
	}
	errs = append(errs,
		m.saveNetworkBytes(ctx), m.writeDeferred(ctx, Key{}), m.journal.Close(ctx), m.closeStore())
	return errors.Join(errs...)
}

// Close ends every session, and then closes the manager.
func (m *Manager) Close() error {
	ctx := context.Background()
	m.mu.Lock()
	m.closing = true // a session that is opened after this would outlive the manager
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
			case <-m.ctx.Done(): // another goroutine detaches the manager, and the next one finds what is left
			}
		})
	}
	wg.Wait()
	errs = append(errs, m.Detach(ctx))
	return errors.Join(errs...)
}
