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

// The defaults of Options.
const (
	DefaultTimeout   = 2 * time.Minute
	DefaultConnect   = 30 * time.Second
	DefaultMaxResult = 8 << 20
	// maxTools bounds the tools of one server: each takes a line of the prompt.
	maxTools = 256
)

// Options says how servers are used.
type Options struct {
	Timeout   time.Duration // of a call; 0: DefaultTimeout
	Connect   time.Duration // to start or reach a server and hear of its tools; 0: DefaultConnect
	MaxResult int64         // bytes of one result; 0: DefaultMaxResult
	Version   string        // of the program that asks, as servers are told
	Logger    *slog.Logger
}

// Set is the servers of an engine. It may serve many runs at once.
type Set struct {
	o       Options
	servers []*server
}

// Open checks the servers. None is started or asked before its tools are wanted. Close the set.
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
			return nil, invalid(s.Name, "there are two servers of this name")
		}
		seen[s.Name] = true
		set.servers = append(set.servers, &server{Server: s, o: o})
	}
	return set, nil
}

// Tools gives the tools of all servers, which are started or connected to if they are not. A server that has given its tools before and is not there now
// keeps them: to call one raises.
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
	n := namer{}
	var out []rlm.Tool
	for i, srv := range s.servers {
		for _, t := range lists[i] {
			out = append(out, srv.tool(t, n))
		}
	}
	return out, nil
}

// Close ends the programs and the connections. Calls that are under way fail.
func (s *Set) Close() {
	var wg sync.WaitGroup
	for _, srv := range s.servers {
		wg.Go(srv.close)
	}
	wg.Wait()
}

// server is one server, with the link to it while there is one.
type server struct {
	Server
	o Options

	linking sync.Mutex // held by the one that connects

	mu     sync.Mutex
	link   *link       // guarded by mu; nil: there is none
	known  []*sdk.Tool // guarded by mu; its tools when it was asked last
	closed bool        // guarded by mu
	links  sync.WaitGroup
}

// link is a connection to a server.
type link struct {
	session *sdk.ClientSession
	proc    *process // nil: it is an address
	web     *web     // nil: it is a program
}

// end ends the link, and what speaks at its other end if that is ours.
func (l *link) end() {
	_ = l.session.Close() // nobody needs it any more
	if l.proc != nil {
		_ = l.proc.Close()
	}
	if l.web != nil {
		l.web.base.CloseIdleConnections()
	}
}

// connected gives the link, and makes one if there is none.
func (s *server) connected(ctx context.Context) (*link, error) {
	if l, err := s.linked(); l != nil || err != nil {
		return l, err
	}
	s.linking.Lock()
	defer s.linking.Unlock()
	if l, err := s.linked(); l != nil || err != nil { // somebody else was faster
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
		l.end()
		return nil, s.gone()
	}
	s.link = l
	s.links.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.links.Done()
		_ = l.session.Wait() // why it ended is told to those who call
		s.drop(l)
		l.end()
	}()
	return l, nil
}

func (s *server) linked() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.gone()
	}
	return s.link, nil
}

func (s *server) gone() error {
	return &v1.Error{Code: CodeServerLost, Op: "use MCP server " + s.Name, Message: "it is not used any more"}
}

// drop makes the next call connect anew.
func (s *server) drop(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.link = nil
	}
}

// dial starts or reaches the server.
func (s *server) dial(ctx context.Context) (*link, error) {
	fail := func(remedy string, err error) error {
		return &v1.Error{Code: CodeServerUnreachable, Op: "connect to MCP server " + s.Name, Message: "it cannot be used", Remedy: remedy, Retry: true, Err: err}
	}
	l := &link{}
	frame := s.o.MaxResult*2 + 1<<20 // results are escaped, and data is base64
	var t sdk.Transport
	if s.URL != "" {
		l.web = newWeb(&s.Server, frame)
		t = &sdk.StreamableClientTransport{Endpoint: s.URL, HTTPClient: &http.Client{Transport: l.web}, DisableStandaloneSSE: true, MaxRetries: 2, MaxEventSize: int(frame)}
	} else {
		p, err := start(&s.Server)
		if err != nil {
			return nil, fail("install the program, or correct the command", err)
		}
		l.proc = p
		t = &sdk.IOTransport{Reader: p.out, Writer: p.in, MaxLineLength: int(frame)}
	}
	c := sdk.NewClient(&sdk.Implementation{Name: "recluse", Version: s.o.Version}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}})
	session, err := c.Connect(ctx, t, nil)
	if err == nil {
		l.session = session
		return l, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not answer in time: %w", err)
	}
	if l.web != nil {
		l.web.base.CloseIdleConnections()
		return nil, fail("is it running, and is this the address of streamable HTTP?", unaddressed(err))
	}
	_ = l.proc.Close() // it has ended, then
	return nil, fail("try the command by hand: it must speak MCP over stdin and stdout", fmt.Errorf("%s (%w)", l.proc.story(), err))
}

// list asks for the server's tools.
func (s *server) list(ctx context.Context) ([]*sdk.Tool, error) {
	tools, err := s.ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.known = tools
	case s.known == nil || ctx.Err() != nil:
		return nil, err
	default:
		s.o.Logger.Warn("an MCP server does not tell its tools; those it had are offered", "server", s.Name, "error", err)
	}
	return s.known, nil
}

func (s *server) ask(ctx context.Context) ([]*sdk.Tool, error) {
	l, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Connect)
	defer cancel()
	tools := []*sdk.Tool{}
	for t, err := range l.session.Tools(ctx, nil) {
		if err != nil {
			return nil, s.failure(ctx, l, "list the tools of "+s.Name, err)
		}
		if tools = append(tools, t); len(tools) > maxTools {
			return nil, invalid(s.Name, "it has more than %d tools", maxTools)
		}
	}
	return tools, nil
}

// codeRejected is the SDK's code of a request that did not get through to the server.
const codeRejected = -32005

// failure says why a request had no result, and gives up a link that has broken.
func (s *server) failure(ctx context.Context, l *link, op string, err error) error {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok && wire.Code != codeRejected && !errors.Is(err, sdk.ErrConnectionClosed) && ctx.Err() == nil {
		return &v1.Error{Code: CodeCallRefused, Op: op, Message: wire.Message}
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &v1.Error{Code: CodeTimeout, Op: op, Message: "there was no answer in time", Remedy: "ask for less, or raise the time-out of MCP tools", Retry: true}
		}
		return context.Cause(ctx)
	}
	s.giveUp(l)
	lost := &v1.Error{Code: CodeServerLost, Op: op, Message: "the MCP server was lost", Remedy: "the next call connects to it again", Retry: true, Err: err}
	if l.web != nil {
		lost.Err = unaddressed(err)
	}
	if l.proc != nil {
		if story := l.proc.story(); story != "" {
			lost.Err = errors.New(story)
		}
	}
	return lost
}

// giveUp ends a link that has broken, beside the caller: its other end may be slow even in that.
func (s *server) giveUp(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.link = nil
	}
	if !s.closed { // else somebody ends it already
		s.links.Go(func() { _ = l.session.Close() }) // whoever waits for its end does the rest
	}
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	l := s.link
	s.link = nil
	s.mu.Unlock()
	if l != nil {
		l.end()
	}
	s.links.Wait()
}
