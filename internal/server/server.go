package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/session"
)

// The defaults of a server and its timeouts.
const (
	DefaultBody   = 32 << 20 // bytes of a JSON body
	DefaultUpload = 1 << 30  // bytes of an uploaded file or archive
	DefaultTime   = 60 * time.Second
	DefaultDrain  = 10 * time.Second
	// DefaultTerminalGrace is how long a terminal whose connection was lost can be attached again.
	DefaultTerminalGrace = 5 * time.Minute

	headerTimeout = 10 * time.Second // to read the headers of a request
	idleTimeout   = 2 * time.Minute  // for the next request on a connection
	heartbeat     = 15 * time.Second // interval of comments in an event stream without events
	maxHeader     = 64 << 10
)

// stallTimeout is how long a body or a stream may make no progress. Tests shorten it.
var stallTimeout = time.Minute

// Limits bounds what a request may use. Zero fields take their defaults.
type Limits struct {
	Body   int64         // bytes of a JSON body
	Upload int64         // bytes of an upload
	Time   time.Duration // for a request that neither runs code nor streams
	Run    time.Duration // timeout of a cell or command without one; 0: v1.DefaultTimeout, v1.NoLimit: none
	Rate   float64       // requests per second and key; 0: not limited
	Burst  int           // requests at once beyond the rate; 0: as many as Rate, at least one
}

func (l Limits) withDefaults() Limits {
	if l.Body == 0 {
		l.Body = DefaultBody
	}
	if l.Upload == 0 {
		l.Upload = DefaultUpload
	}
	if l.Time == 0 {
		l.Time = DefaultTime
	}
	if l.Run == 0 {
		l.Run = v1.DefaultTimeout
	}
	if l.Burst == 0 {
		l.Burst = max(1, int(l.Rate))
	}
	return l
}

// Options configures a Server. Only Manager and Store are required.
type Options struct {
	Manager *session.Manager
	// Store is the manager's store. The server also keeps keys, tokens, approvals and recorded answers in it. Its owner
	// closes it after the server.
	Store  store.Store
	Logger *slog.Logger
	Limits Limits
	// TLS, if not nil, is used on every listener that is not a UNIX socket.
	TLS *tls.Config
	// Drain is how long running requests may take to end once Serve has to stop.
	Drain time.Duration
	// TerminalGrace is how long a terminal continues after its connection was lost, so that its caller can attach to it
	// again; 0: DefaultTerminalGrace, negative: it ends at once.
	TerminalGrace time.Duration
	// Origins are the origins whose pages may use the API from a browser, with a key. Empty: only pages of this server.
	Origins []string
	// Hosts are the names by which callers reach the server over TCP, in addition to loopback and the addresses on
	// which it listens. Requests that name another host are refused.
	Hosts []string
	// PortsDomain is the domain of the host names of ports, PORT-SESSION.domain; empty: localhost. It may be a URL, if
	// browsers reach it with another scheme or port than the server's own.
	PortsDomain string
	// Version is reported to callers.
	Version string
	// Shutdown is called when an operator requests the end of the server; nil: such requests are refused.
	Shutdown func()
	// Runs manages runs; nil: runs are not supported. Its owner closes it.
	Runs *runs.Keeper
	// Health reports to readyz whether sandboxes can be made; nil: readyz checks only the store. It is called at most
	// every 30 seconds.
	Health func(context.Context) error
	// Space returns the space for data; nil: that of the manager's data directory.
	Space func() (s diskuse.Space, known bool)
	// PublicMetrics serves /metrics without a key.
	PublicMetrics bool
	// Approvals are the gate's questions to people; nil: no questions are asked.
	Approvals *gate.Approvals
	// Tracer creates the spans; nil: the global provider.
	Tracer trace.TracerProvider
}

// Server answers HTTP requests.
type Server struct {
	opts        Options
	manager     *session.Manager
	log         *slog.Logger
	access      *access
	rates       *rates
	idempotency *idempotency
	terminals   *terminals
	cors        cors
	hosts       hosts
	linkSecret  atomic.Pointer[string] // signs links to ports; nil: not read yet
	tcp         atomic.Pointer[string] // address of the first TCP listener; nil: none
	metrics     *metrics
	tracer      trace.Tracer
	routes      []route
	mux         *http.ServeMux
	front       http.Handler // another protocol; nil: none
	claims      func(*http.Request) bool
	started     time.Time
	documents   func() (map[string][]byte, error) // the OpenAPI document by media type, computed once
	drain       context.Context                   // ends when the server begins to stop
	stop        context.CancelFunc
	health      health
	requests    sync.WaitGroup
	large       chan struct{} // one element for each large body in memory
}

// New returns a server. It reads the keys once; from then on all changes of keys must go through the server.
func New(ctx context.Context, opts Options) (*Server, error) {
	if opts.Manager == nil || opts.Store == nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make server", Message: "manager or store is missing"}
	}
	l := opts.Limits
	if l.Body < 0 || l.Upload < 0 || l.Time < 0 || l.Rate < 0 || l.Burst < 0 || opts.Drain < 0 {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make server", Message: "a limit is negative"}
	}
	opts.Limits = opts.Limits.withDefaults()
	if opts.Space == nil {
		opts.Space = opts.Manager.Space
	}
	if opts.Drain == 0 {
		opts.Drain = DefaultDrain
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	origins, err := newCORS(opts.Origins)
	if err != nil {
		return nil, err
	}
	names, err := newHosts(opts.Hosts, opts.PortsDomain)
	if err != nil {
		return nil, err
	}
	acc, err := loadAccess(ctx, opts.Store)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts:        opts,
		cors:        origins,
		hosts:       names,
		manager:     opts.Manager,
		log:         opts.Logger,
		access:      acc,
		rates:       newRates(opts.Limits),
		idempotency: newIdempotency(opts.Store),
		terminals:   newTerminals(cmp.Or(opts.TerminalGrace, DefaultTerminalGrace)),
		tracer:      tracer(opts.Tracer),
		started:     time.Now(),
		large:       make(chan struct{}, maxLarge),
	}
	if err := s.storeApprovals(ctx); err != nil {
		return nil, err
	}
	s.drain, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.metrics = newMetrics(s.manager, opts.Space)
	s.routes = s.table()
	s.documents = sync.OnceValues(s.writeDocuments)
	s.mux = s.makeMux()
	return s, nil
}

// Handler returns the handler of the whole API. Only Serve trusts callers on UNIX sockets; with any other HTTP server
// they need a key.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// HaveKeys reports whether a valid key exists.
func (s *Server) HaveKeys() bool { return s.access.any() }

// Serve answers requests on a listener until ctx ends. Then it accepts no new requests, waits up to Options.Drain for
// running ones, and returns. Operations in sandboxes continue, and the manager stays open. Several listeners may be
// served at once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	s.noteListener(ln)
	if s.opts.TLS != nil && ln.Addr().Network() != "unix" {
		conf := s.opts.TLS.Clone()
		// Terminals need WebSockets, which this server does not support over HTTP/2.
		conf.NextProtos = []string{"http/1.1"}
		conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
		ln = tls.NewListener(ln, conf)
	}
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       connContext,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if s.front != nil { // clients of other protocols use HTTP/2, also without TLS
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return &v1.Error{Code: v1.CodeInternal, Op: "serve", Message: "the listener failed", Err: err}
	case <-ctx.Done():
	}
	s.stop() // ends streams that would otherwise never end
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Drain)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("closing connections of requests that did not end in time; operations in sandboxes continue",
			"drain", s.opts.Drain)
		err = srv.Close()
	}
	<-failed
	if err != nil {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "stop serving",
			Message: "the listener could not be closed",
			Err:     err,
		}
	}
	return nil
}

// Wait waits until all requests have ended, including those over hijacked connections. Call it after the manager's
// Detach or Close, which end the operations that requests still wait for.
func (s *Server) Wait() { s.requests.Wait() }

func (s *Server) draining() bool { return s.drain.Err() != nil }

// serverInfo describes the server and the caller as the server has identified it.
func serverInfo(c *call, _ none) (v1.Server, error) {
	return v1.Server{
		Version: c.s.opts.Version,
		PID:     os.Getpid(),
		Started: c.s.started,
		Tenant:  c.who.tenant,
		Scope:   c.who.scope.String(),
		Actor:   c.who.actor,
	}, nil
}

// shutdown stops the server like a signal does.
func shutdown(c *call, _ none) (none, error) {
	if c.s.opts.Shutdown == nil {
		return none{}, &v1.Error{
			Code:    v1.CodeNotSupported,
			Op:      "shut down",
			Message: "this server does not accept shutdown requests",
		}
	}
	c.status = http.StatusAccepted
	c.after = c.s.opts.Shutdown
	return none{}, nil
}

// collect removes ended sessions, snapshots and sandboxes that are no longer needed.
func collect(c *call, _ none) (session.Collected, error) { return c.s.manager.GC(c.ctx()) }

// diskReport returns what takes space on the disk.
func diskReport(c *call, _ none) (v1.DiskReport, error) { return c.s.manager.DiskReport(c.ctx()) }
