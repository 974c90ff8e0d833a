package mcptools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

// Defaults of Options.
const (
	DefaultTimeout   = 2 * time.Minute
	DefaultConnect   = 30 * time.Second
	DefaultMaxResult = 8 << 20
	// maxTools is the maximum number of tools of one server. Each takes a line of the prompt.
	maxTools = 256
)

// Options configures a Set.
type Options struct {
	Timeout   time.Duration // timeout of a call; 0: DefaultTimeout
	Connect   time.Duration // timeout to connect to a server, and to list its tools; 0: DefaultConnect
	MaxResult int64         // maximum bytes of one result; 0: DefaultMaxResult
	Version   string        // our version, which is sent to servers
	Logger    *slog.Logger
}

// Set is the MCP servers of an engine. It is safe for concurrent use.
type Set struct {
	o       Options
	servers []*server
}

// Open returns a set of servers, or an error if one is invalid. It does not start or connect to them; Tools does. The
// caller must close the set.
func Open(servers []Server, o Options) (*Set, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Connect == 0 {
		o.Connect = DefaultConnect
	}
	if o.MaxResult == 0 {
		o.MaxResult = DefaultMaxResult
	}
	if o.Version == "" {
		o.Version = "0"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	set := &Set{o: o}
	seen := map[string]bool{}
	for _, s := range servers {
		if err := s.check(); err != nil {
			return nil, err
		}
		if seen[s.Name] {
			return nil, invalidServer(s.Name, "duplicate server name")
		}
		seen[s.Name] = true
		set.servers = append(set.servers, &server{Server: s, o: o})
	}
	return set, nil
}

// Tools starts or connects to all servers if necessary, and returns their tools. If a server cannot be reached now but
// could be before, its previous tools are returned; calls of them fail.
func (s *Set) Tools(ctx context.Context) ([]rlm.Tool, error) {
	lists := make([][]*sdk.Tool, len(s.servers))
	errs := make([]error, len(s.servers))
	var wg sync.WaitGroup
	for i, srv := range s.servers {
		wg.Go(func() { lists[i], errs[i] = srv.list(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	n := uniqueNames{}
	var out []rlm.Tool
	for i, srv := range s.servers {
		for _, t := range lists[i] {
			out = append(out, srv.tool(t, n))
		}
	}
	return out, nil
}

// Close ends the programs and the connections. Calls in progress fail.
func (s *Set) Close() {
	var wg sync.WaitGroup
	for _, srv := range s.servers {
		wg.Go(srv.close)
	}
	wg.Wait()
}

// server is one server with its connection.
type server struct {
	Server
	o Options

	connecting sync.Mutex // held while a connection is made

	mu          sync.Mutex
	connection  *connection // guarded by mu; nil: not connected
	lastTools   []*sdk.Tool // guarded by mu; from the last successful request; nil: none
	closed      bool        // guarded by mu
	connections sync.WaitGroup
}

// connection is a connection to a server.
type connection struct {
	session   *sdk.ClientSession
	process   *process   // nil: the server is a URL
	transport *transport // nil: the server is a program
}

// close closes the connection, and ends the program of the server if there is one.
func (l *connection) close() {
	_ = l.session.Close() // the session is not needed any more
	if l.process != nil {
		_ = l.process.Close()
	}
	if l.transport != nil {
		l.transport.base.CloseIdleConnections()
	}
}

// connect returns the connection to the server, and makes one if there is none.
func (s *server) connect(ctx context.Context) (*connection, error) {
	if l, err := s.current(); l != nil || err != nil {
		return l, err
	}
	s.connecting.Lock()
	defer s.connecting.Unlock()
	if l, err := s.current(); l != nil || err != nil { // another call was faster
		return l, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Connect)
	defer cancel()
	l, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.close()
		return nil, s.closedError()
	}
	s.connection = l
	s.connections.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.connections.Done()
		_ = l.session.Wait() // callError returns the reason to callers
		s.drop(l)
		l.close()
	}()
	return l, nil
}

func (s *server) current() (*connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.closedError()
	}
	return s.connection, nil
}

func (s *server) closedError() error {
	return &v1.Error{Code: CodeServerLost, Op: "use MCP server " + s.Name, Message: "the set of servers is closed"}
}

// drop removes the connection, so that the next call makes a new one.
func (s *server) drop(l *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection == l {
		s.connection = nil
	}
}

// dial starts the program of the server, or connects to its URL.
func (s *server) dial(ctx context.Context) (*connection, error) {
	fail := func(remedy string, err error) error {
		return &v1.Error{
			Code:    CodeServerUnreachable,
			Op:      "connect to MCP server " + s.Name,
			Message: "the server cannot be reached",
			Remedy:  remedy,
			Retry:   true,
			Err:     err,
		}
	}
	l := &connection{}
	frame := s.o.MaxResult*2 + 1<<20 // JSON escapes and base64 make a result larger
	var t sdk.Transport
	if s.URL != "" {
		l.transport = newTransport(&s.Server, frame)
		t = &sdk.StreamableClientTransport{
			Endpoint:             s.URL,
			HTTPClient:           &http.Client{Transport: l.transport},
			DisableStandaloneSSE: true,
			MaxRetries:           2,
			MaxEventSize:         int(frame),
		}
	} else {
		p, err := startProcess(&s.Server)
		if err != nil {
			return nil, fail("install the program, or correct the command", err)
		}
		l.process = p
		t = &sdk.IOTransport{Reader: p.out, Writer: p.in, MaxLineLength: int(frame)}
	}
	c := sdk.NewClient(
		&sdk.Implementation{Name: "recluse", Version: s.o.Version},
		&sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}},
	)
	session, err := c.Connect(ctx, t, nil)
	if err == nil {
		l.session = session
		return l, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within the timeout: %w", err)
	}
	if l.transport != nil {
		l.transport.base.CloseIdleConnections()
		return nil, fail("check that the server runs, and that the URL is its endpoint for streamable HTTP",
			withoutURLs(err))
	}
	_ = l.process.Close() // waits until the program has ended
	return nil, fail("run the command in a shell: it must serve MCP over stdin and stdout",
		fmt.Errorf("%s (%w)", l.process.exitText(), err))
}

// list returns the tools of the server. If the request fails, it returns those of the last successful request, if there
// was one.
func (s *server) list(ctx context.Context) ([]*sdk.Tool, error) {
	tools, err := s.requestTools(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.lastTools = tools
	case s.lastTools == nil || ctx.Err() != nil:
		return nil, err
	default:
		s.o.Logger.Warn("could not list the tools of an MCP server; using its previous tools",
			"server", s.Name, "error", err)
	}
	return s.lastTools, nil
}

func (s *server) requestTools(ctx context.Context) ([]*sdk.Tool, error) {
	l, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Connect)
	defer cancel()
	tools := []*sdk.Tool{}
	for t, err := range l.session.Tools(ctx, nil) {
		if err != nil {
			return nil, s.callError(ctx, l, "list the tools of "+s.Name, err)
		}
		if tools = append(tools, t); len(tools) > maxTools {
			return nil, invalidServer(s.Name, "the server has more than %d tools", maxTools)
		}
	}
	return tools, nil
}

// codeRejected is the SDK's code for a request that did not reach the server.
const codeRejected = -32005

// callError returns the error to report for a request that failed with err. It discards a broken connection.
func (s *server) callError(ctx context.Context, l *connection, op string, err error) error {
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if ok && wire.Code != codeRejected && !errors.Is(err, sdk.ErrConnectionClosed) && ctx.Err() == nil {
		return &v1.Error{Code: CodeCallRefused, Op: op, Message: wire.Message}
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &v1.Error{
				Code:    CodeTimeout,
				Op:      op,
				Message: "no answer within the timeout",
				Remedy:  "request less, or raise the timeout of MCP tools",
				Retry:   true,
			}
		}
		return context.Cause(ctx)
	}
	s.discard(l)
	lost := &v1.Error{
		Code:    CodeServerLost,
		Op:      op,
		Message: "the MCP server was lost",
		Remedy:  "call again: the next call makes a new connection",
		Retry:   true,
		Err:     err,
	}
	if l.transport != nil {
		lost.Err = withoutURLs(err)
	}
	if l.process != nil {
		if story := l.process.exitText(); story != "" {
			lost.Err = errors.New(story)
		}
	}
	return lost
}

// discard closes a broken connection in the background, because the server may be slow even then.
func (s *server) discard(l *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection == l {
		s.connection = nil
	}
	if !s.closed { // otherwise close closes the connection
		s.connections.Go(func() { _ = l.session.Close() }) // the goroutine of connect does the rest
	}
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	l := s.connection
	s.connection = nil
	s.mu.Unlock()
	if l != nil {
		l.close()
	}
	s.connections.Wait()
}
