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
	"time"

	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/session"
)

// The defaults of a server and the times it keeps, all in one place.
const (
	DefaultBody   = 32 << 20 // bytes of a JSON body
	DefaultUpload = 1 << 30  // bytes of an uploaded file or archive
	DefaultTime   = 60 * time.Second
	DefaultDrain  = 10 * time.Second
	// DefaultTerminalGrace is how long a terminal whose connection broke can be attached again.
	DefaultTerminalGrace = 5 * time.Minute

	headerTimeout = 10 * time.Second // to read the headers of a request
	idleTimeout   = 2 * time.Minute  // of a connection between requests
	heartbeat     = 15 * time.Second // of an event stream with nothing to say
	maxHeader     = 64 << 10
)

// stallTimeout is how long a body or a stream may not move. Tests shorten it.
var stallTimeout = time.Minute

// Limits bounds what a request may ask of the server. Zero fields take their defaults.
type Limits struct {
	Body   int64         // bytes of a JSON body
	Upload int64         // bytes of an upload
	Time   time.Duration // for a request that neither runs code nor streams
	Run    time.Duration // for a cell or command whose request names no time; 0: v1.DefaultTimeout, v1.NoLimit: none
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

// Options makes a Server. Only Manager and Store are needed.
type Options struct {
	Manager *session.Manager
	// Store is the manager's; keys, tokens, approvals and replies are kept in it, too. Its owner closes it after the server.
	Store  store.Store
	Logger *slog.Logger
	Limits Limits
	// TLS, when not nil, is spoken on every listener that is not a UNIX socket.
	TLS *tls.Config
	// Drain is how long requests have to end once Serve is told to stop.
	Drain time.Duration
	// TerminalGrace is how long a terminal whose connection broke goes on, so that its caller can attach to it again; 0:
	// DefaultTerminalGrace, negative: it ends at once.
	TerminalGrace time.Duration
	// Origins are those whose pages may use the API from a browser, with a key; none: no pages but our own.
	Origins []string
	// Version is told to callers.
	Version string
	// Shutdown is called when an operator asks the server to end; nil: nobody can ask.
	Shutdown func()
	// Runs looks after runs of models; nil: there are none. Its owner closes it.
	Runs *runs.Keeper
	// Health tells readyz whether sandboxes can be made; nil: it looks at the store alone. It is asked every half minute at most.
	Health func(context.Context) error
	// PublicMetrics serves /metrics without a key.
	PublicMetrics bool
	// Approvals are the gate's questions to people; nil: nobody is asked.
	Approvals *gate.Approvals
	// Tracer makes the spans; nil: the global provider's.
	Tracer trace.TracerProvider
}

// Server answers HTTP requests.
type Server struct {
	opts      Options
	manager   *session.Manager
	log       *slog.Logger
	access    *access
	rates     *rates
	repeats   *repeats
	terminals *terminals
	cors      cors
	metrics   *metrics
	tracer    trace.Tracer
	routes    []route
	mux       *http.ServeMux
	started   time.Time
	documents func() (map[string][]byte, error) // OpenAPI, by media type; it does not change
	drain     context.Context                   // ends when the server begins to stop
	stop      context.CancelFunc
	health    health
	requests  sync.WaitGroup
	large     chan struct{} // one for each large body in memory
}

// New makes a server. It reads the keys once; from then on all changes of keys go through it.
func New(ctx context.Context, opts Options) (*Server, error) {
	if opts.Manager == nil || opts.Store == nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make server", Message: "a manager and its store are needed"}
	}
	if opts.Limits.Body < 0 || opts.Limits.Upload < 0 || opts.Limits.Time < 0 || opts.Limits.Rate < 0 || opts.Limits.Burst < 0 || opts.Drain < 0 {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make server", Message: "a limit is negative"}
	}
	opts.Limits = opts.Limits.withDefaults()
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
	acc, err := loadAccess(ctx, opts.Store)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, cors: origins, manager: opts.Manager, log: opts.Logger, access: acc, rates: newRates(opts.Limits), repeats: newRepeats(opts.Store),
		terminals: newTerminals(cmp.Or(opts.TerminalGrace, DefaultTerminalGrace)),
		tracer:    tracer(opts.Tracer), started: time.Now(), large: make(chan struct{}, maxLarge),
	}
	if err := s.keepApprovals(ctx); err != nil {
		return nil, err
	}
	s.drain, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.metrics = newMetrics(s.manager)
	s.routes = s.table()
	s.documents = sync.OnceValues(s.writeDocuments)
	s.mux = s.makeMux()
	return s, nil
}

// Handler gives the whole API. Whoever serves it otherwise than by Serve gets no trust for UNIX sockets.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// HaveKeys reports whether any key can be used now.
func (s *Server) HaveKeys() bool { return s.access.any() }

// Serve answers on a listener until ctx ends. Then it takes no new requests, lets those that run have Options.Drain, and returns.
// What still runs in a sandbox goes on; the manager is left to its owner. Several listeners may be served at once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if s.opts.TLS != nil && ln.Addr().Network() != "unix" {
		conf := s.opts.TLS.Clone()
		conf.NextProtos = []string{"http/1.1"} // terminals need WebSockets, which HTTP/2 does not carry here
		conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
		ln = tls.NewListener(ln, conf)
	}
	srv := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnContext: connContext,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return &v1.Error{Code: v1.CodeInternal, Op: "serve", Message: "the listener failed", Err: err}
	case <-ctx.Done():
	}
	s.stop() // streams that would go on for ever end at once
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Drain)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests were still running when the server stopped; what they started goes on", "drain", s.opts.Drain)
		err = srv.Close()
	}
	<-failed
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "stop serving", Message: "the listener could not be closed", Err: err}
	}
	return nil
}

// Wait waits until no request is left, also those over hijacked connections. Call it behind the manager's Detach or Close, which
// end what requests still wait for.
func (s *Server) Wait() { s.requests.Wait() }

func (s *Server) draining() bool { return s.drain.Err() != nil }

// serverInfo tells who answers and who it takes the caller for.
func serverInfo(c *call, _ none) (v1.Server, error) {
	return v1.Server{
		Version: c.s.opts.Version, PID: os.Getpid(), Started: c.s.started, Tenant: c.who.tenant, Scope: c.who.scope.String(), Actor: c.who.actor,
	}, nil
}

// shutdown ends the server as a signal would.
func shutdown(c *call, _ none) (none, error) {
	if c.s.opts.Shutdown == nil {
		return none{}, &v1.Error{Code: v1.CodeNotSupported, Op: "shut down", Message: "this server cannot be ended by a request"}
	}
	c.status = http.StatusAccepted
	c.after = c.s.opts.Shutdown
	return none{}, nil
}

// collect removes what nothing needs.
func collect(c *call, _ none) (session.Collected, error) { return c.s.manager.GC(c.ctx()) }
