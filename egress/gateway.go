package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"golang.org/x/time/rate"
)

// Conn is the guest's end of a connection.
//
// Serve calls either Accept or Refuse, and then Close, which may be more than once. Close without an earlier CloseWrite
// is a reset. Close ends a Read and a Write that wait.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error // the client reads the end of the stream
	Accept() error     // the connection is established, or will be refused in words
	Refuse(*Refusal)   // the guest resets the connection, or answers the program that asked its proxy
}

// Request is what the guest asks for.
type Request struct {
	Name     string // name or address
	Port     uint16
	Explicit bool // the program waits for an answer (CONNECT, SOCKS), so that it needs no refusal in words
	Process  any  // who asks; not read here
}

// RefusalKind tells why a connection was refused or closed.
type RefusalKind string

// The kinds of refusals.
const (
	RefusedByPolicy  RefusalKind = "policy"
	RefusedByFloor   RefusalKind = "floor"       // the address is not public
	RefusedMismatch  RefusalKind = "mismatch"    // SNI or Host is not the name
	RefusedByLimit   RefusalKind = "limit"       // connections, rate or bytes
	RefusedNotFound  RefusalKind = "not_found"   // the name does not exist
	RefusedTimeout   RefusalKind = "timeout"     // of the look-up, the dial, the first bytes or an idle connection
	RefusedUnreached RefusalKind = "unreachable" // the destination refuses, or no route leads there
	RefusedChanged   RefusalKind = "changed"     // a new policy does not allow the connection
	RefusedClosing   RefusalKind = "closing"     // the gateway or its attachment ends
)

// Refusal is the error of a connection that the gateway did not open, or closed.
type Refusal struct {
	Kind     RefusalKind
	Decision Decision // of the policy, or of what else denies the connection
	Err      error    // the cause; may be nil
}

// Error implements error.
func (r *Refusal) Error() string { return r.Decision.String() }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(kind RefusalKind, reason, remedy string, err error) *Refusal {
	return &Refusal{
		Kind:     kind,
		Decision: Decision{Action: v1.NetworkDeny, Rule: string(kind), Reason: reason, Remedy: remedy},
		Err:      err,
	}
}

// failed returns the refusal for a destination that cannot be reached.
func failed(h host, port uint16, err error) *Refusal {
	target := hostPort(h, port)
	var timeout net.Error
	switch {
	case isNotFound(err):
		return refuse(RefusedNotFound, target+": the name does not exist", "", err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return refuse(RefusedTimeout, target+" does not answer", "", err)
	case errors.Is(err, context.Canceled):
		return refuse(RefusedClosing, target+": the connection was cancelled", "", err)
	}
	return refuse(RefusedUnreached, fmt.Sprintf("%s cannot be reached: %v", target, err), "", err)
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of events of a gateway. Each connection has EventDecided and EventClosed, and between them EventConnected
// if the destination was reached.
const (
	EventLookup    EventKind = "lookup"
	EventDecided   EventKind = "decided"
	EventConnected EventKind = "connected"
	EventClosed    EventKind = "closed"
)

// Event reports what a gateway did.
type Event struct {
	Kind       EventKind
	ID         uint64 // of the connection; zero: EventLookup
	Generation uint64 // of the policy that decided
	Time       time.Time
	Request    Request // Name is normalized if it is valid
	Decision   Decision
	Lookup     LookupStatus   // of EventLookup
	Address    netip.AddrPort // that was dialled; invalid: none, or a proxy of the host resolves the name
	Up, Down   int64          // bytes from and to the sandbox
	Err        error          // why the connection ended; a *Refusal if the gateway ended it; nil: both ends closed it
}

// Limits bound what one gateway carries. Zero: the default.
type Limits struct {
	Connections int     // at once, denied ones included (default 1024)
	Rate        float64 // new connections per second, with bursts of twice as many (default 200)
	Bytes       int64   // in both directions over the whole life (default: not limited)
}

const (
	defaultConnections = 1024
	defaultRate        = 200
	defaultIdle        = 15 * time.Minute
	defaultFirstBytes  = 15 * time.Second
)

// While more than largeSockets connections are open, new ones get socket buffers of a fixed size: the kernel would let
// those of a connection that was fast, and is not read any more, grow to several megabytes.
const (
	largeSockets = 32
	socketBuffer = 64 << 10
)

// Budget bounds what several gateways carry together. Its methods must not block.
type Budget interface {
	// Open counts a connection that the policy allows. After an error, nothing is counted.
	Open() error
	// Close undoes Open.
	Close()
	// Count counts bytes of a connection. An error ends the connection.
	Count(bytes int) error
}

// Terms are what the operator sets for a gateway, apart from its policy.
type Terms struct {
	Maximum *Policy // narrows every policy; nil: no maximum
	Budget  Budget  // nil: none
	// Approve asks a person about a connection, without waiting for the answer. It returns d with the action allow if
	// the connection is approved, deny if it was refused, and else ask. Nil: no connection can be approved.
	Approve func(r Request, d Decision) Decision
}

// GatewayOptions configure a Gateway.
type GatewayOptions struct {
	Policy     *Policy // nil: deny everything
	Generation uint64
	Terms      Terms
	Resolver   Resolver // nil: that of the host
	Floor      *Floor   // nil: without exceptions
	Proxy      ProxyFunc
	Limits     Limits
	Idle       time.Duration // until a connection without traffic is closed (default 15 min)
	FirstBytes time.Duration // in which the client sends what names its destination, on 80 and 443 (default 15 s)
	Observe    func(Event)   // must not block; called from several goroutines
}

// Gateway opens the connections of one attachment. It is safe for concurrent use.
type Gateway struct {
	options GatewayOptions
	floor   *Floor
	names   *names
	limiter *rate.Limiter
	connect func(context.Context, []netip.AddrPort) (upstream, netip.AddrPort, error) // dialAny, except in tests
	life    context.Context
	end     context.CancelFunc
	bytes   atomic.Int64
	buffers buffers
	serving sync.WaitGroup

	mu         sync.Mutex
	own        *Policy // without the maximum
	terms      Terms
	policy     *Policy // own, narrowed by the maximum
	generation uint64
	lastID     uint64
	conns      map[uint64]*connection
	closed     bool
}

// connection is one call of Serve.
type connection struct {
	g          *Gateway
	id         uint64
	generation uint64
	request    Request
	host       host
	client     Conn
	cancel     context.CancelCauseFunc
	ctx        context.Context
	decision   Decision
	up, down   atomic.Int64
	lastUse    atomic.Int64 // nanoseconds since started
	started    time.Time

	budget   Budget         // in which it is counted; nil: none
	approved bool           // guarded by g.mu; a person has approved the connection
	addr     netip.AddrPort // guarded by g.mu
}

// NewGateway returns a gateway. Close it.
func NewGateway(o GatewayOptions) *Gateway {
	o.Limits.Connections = cmp.Or(o.Limits.Connections, defaultConnections)
	o.Limits.Rate = cmp.Or(o.Limits.Rate, defaultRate)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	o.FirstBytes = cmp.Or(o.FirstBytes, defaultFirstBytes)
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	g := &Gateway{
		options:    o,
		floor:      o.Floor,
		names:      &names{resolver: o.Resolver, cache: map[string]*lookup{}},
		limiter:    rate.NewLimiter(rate.Limit(o.Limits.Rate), max(1, int(2*o.Limits.Rate))),
		connect:    dialAny,
		own:        o.Policy,
		terms:      o.Terms,
		generation: o.Generation,
		conns:      map[uint64]*connection{},
	}
	g.apply()
	if g.floor == nil {
		g.floor = NewFloor(FloorOptions{})
	}
	g.life, g.end = context.WithCancel(context.Background())
	return g
}

// Policy returns the policy in force.
func (g *Gateway) Policy() *Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// SetPolicy replaces the policy and closes connections that it does not allow. It returns false and changes nothing if
// a policy of the same or a later generation is in force.
func (g *Gateway) SetPolicy(p *Policy, generation uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if generation <= g.generation {
		return false
	}
	g.own, g.generation = p, generation
	g.apply()
	return true
}

// SetTerms replaces the terms, and closes connections that the new maximum does not allow. Open connections still count
// for the earlier budget.
func (g *Gateway) SetTerms(t Terms) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.terms = t
	g.apply()
}

// apply puts policy and maximum in force. Preconditions: g.mu is locked, or g is new.
func (g *Gateway) apply() {
	g.policy = g.own
	if g.terms.Maximum != nil {
		g.policy = g.own.Narrow(g.terms.Maximum)
	}
	for _, c := range g.conns {
		if c.decision.Allowed() {
			c.recheck(g.policy)
		}
	}
}

// permits reports whether d allows a connection, which a person may have approved.
func permits(d Decision, approved bool) bool {
	return d.Allowed() || approved && d.Action == v1.NetworkAsk
}

// recheck closes the connection if p does not allow it. Preconditions: g.mu is locked.
func (c *connection) recheck(p *Policy) {
	for _, a := range []netip.Addr{c.addr.Addr(), embeddedOf(c.addr.Addr())} {
		if d := p.decide(c.host, a, c.request.Port); !permits(d, c.approved) {
			c.cancel(&Refusal{Kind: RefusedChanged, Decision: d})
			return
		}
	}
}

func embeddedOf(a netip.Addr) netip.Addr {
	if !a.IsValid() {
		return a
	}
	return embedded(a)
}

// Connections returns the number of open connections.
func (g *Gateway) Connections() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// Close closes all connections and waits for them.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	for _, c := range g.conns {
		c.cancel(errClosing)
	}
	g.mu.Unlock()
	g.end()
	g.serving.Wait()
	g.names.group.Wait()
}

var errClosing = refuse(RefusedClosing, "the network of the sandbox is closing", "", nil)

func (g *Gateway) observe(e Event) {
	if g.options.Observe != nil {
		e.Time = time.Now()
		g.options.Observe(e)
	}
}

// Decide decides about a connection by the policy, and about a literal address also by the floor. It opens nothing.
func (g *Gateway) Decide(hostname string, port uint16) Decision {
	p := g.Policy()
	d := p.Decide(hostname, port)
	if h, err := parseHost(hostname); err == nil && h.literal() && port != 0 {
		if refusal := g.checkAddress(p, h, h.addr, port, false); refusal != nil {
			return refusal.Decision
		}
	}
	return d
}

// Serve decides about a connection and carries it until it ends. It always closes client. The error is nil if both ends
// closed the connection; a *Refusal if the gateway refused or ended it.
func (g *Gateway) Serve(ctx context.Context, r Request, client Conn) error {
	defer client.Close()
	c, refusal := g.open(ctx, r, client)
	defer g.forget(c)
	if refusal != nil {
		refusal = c.approve(refusal)
	}
	if refusal == nil && c.host.literal() {
		if refusal = g.checkAddress(g.Policy(), c.host, c.host.addr, r.Port, c.isApproved()); refusal != nil {
			c.deny(refusal)
		}
	}
	if refusal == nil {
		refusal = c.countOpen()
	}
	if refusal != nil {
		c.observe(EventDecided, refusal)
		c.sayNo(refusal)
		c.observe(EventClosed, refusal)
		return refusal
	}
	c.observe(EventDecided, nil)
	err := c.carry()
	c.observe(EventClosed, err)
	return err
}

// approve asks a person about a connection that needs an approval. It returns nil if the connection is approved, and
// other refusals as they are.
func (c *connection) approve(refusal *Refusal) *Refusal {
	d := refusal.Decision
	if d.Action != v1.NetworkAsk {
		return refusal
	}
	c.g.mu.Lock()
	ask := c.g.terms.Approve
	c.g.mu.Unlock()
	if ask == nil {
		d.Remedy = "no person can approve connections of this sandbox; use a session, or allow or deny the destination"
	} else {
		d = ask(c.request, d)
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.decision = d
	if d.Allowed() { // meanwhile the policy may have changed
		c.approved = true
		now := c.g.policy.decide(c.host, netip.Addr{}, c.request.Port)
		if permits(now, true) {
			return nil
		}
		c.decision = now
	}
	return &Refusal{Kind: RefusedByPolicy, Decision: c.decision}
}

func (c *connection) isApproved() bool {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	return c.approved
}

// countOpen counts the connection in the budget.
func (c *connection) countOpen() *Refusal {
	c.g.mu.Lock()
	budget := c.g.terms.Budget
	c.g.mu.Unlock()
	if budget == nil {
		return nil
	}
	if err := budget.Open(); err != nil {
		refusal := overBudget(err)
		c.deny(refusal)
		return refusal
	}
	c.budget = budget
	return nil
}

// overBudget returns the refusal for an error of a budget.
func overBudget(err error) *Refusal {
	reason, remedy := err.Error(), ""
	if e, ok := errors.AsType[*v1.Error](err); ok {
		reason, remedy = e.Message, e.Remedy
	}
	return refuse(RefusedByLimit, reason, remedy, err)
}

// deny stores that something other than the policy denies the connection.
func (c *connection) deny(refusal *Refusal) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.decision = refusal.Decision
}

// open counts and decides about a connection.
func (g *Gateway) open(ctx context.Context, r Request, client Conn) (*connection, *Refusal) {
	h, err := parseHost(r.Name)
	if err == nil {
		r.Name = h.String()
	} else {
		r.Name = printable(r.Name)
	}
	c := &connection{g: g, request: r, host: h, client: client, started: time.Now()}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serving.Add(1)
	g.lastID++
	c.id, c.generation = g.lastID, g.generation
	if refusal := g.overLimit(); refusal != nil {
		c.decision = refusal.Decision
		return c, refusal
	}
	g.conns[c.id] = c
	switch {
	case err != nil:
		c.decision = badName(err)
	case r.Port == 0:
		c.decision = badName(errors.New("port 0"))
	default:
		c.decision = g.policy.decide(h, netip.Addr{}, r.Port)
		if h.literal() && !c.decision.Allowed() { // if the floor denies it too, no policy would allow it
			if refusal := g.checkAddress(g.policy, h, h.addr, r.Port, false); refusal != nil {
				c.decision = refusal.Decision
				return c, refusal
			}
		}
	}
	if !c.decision.Allowed() {
		return c, &Refusal{Kind: RefusedByPolicy, Decision: c.decision}
	}
	return c, nil
}

// overLimit returns why no connection can be opened now. Preconditions: g.mu is locked.
func (g *Gateway) overLimit() *Refusal {
	switch limits := g.options.Limits; {
	case g.closed:
		return errClosing
	case len(g.conns) >= limits.Connections:
		return refuse(RefusedByLimit, fmt.Sprintf("%d connections are open, which is the limit", len(g.conns)),
			"close connections, or raise the limit", nil)
	case limits.Bytes > 0 && g.bytes.Load() >= limits.Bytes:
		return errBytes
	case !g.limiter.Allow():
		return refuse(RefusedByLimit, fmt.Sprintf("the limit of %g new connections per second is reached", limits.Rate),
			"try again later, or raise the limit", nil)
	}
	return nil
}

var errBytes = refuse(RefusedByLimit, "the limit of bytes is reached", "raise the limit", nil)

func (g *Gateway) forget(c *connection) {
	c.cancel(nil)
	if c.budget != nil {
		c.budget.Close()
	}
	g.mu.Lock()
	delete(g.conns, c.id)
	g.mu.Unlock()
	g.serving.Done()
}

func (c *connection) observe(kind EventKind, err error) {
	e := Event{
		Kind:       kind,
		ID:         c.id,
		Generation: c.generation,
		Request:    c.request,
		Up:         c.up.Load(),
		Down:       c.down.Load(),
		Err:        err,
	}
	c.g.mu.Lock()
	e.Decision, e.Address = c.decision, c.addr
	c.g.mu.Unlock()
	c.g.observe(e)
}

// connect dials the destination, and stores its address for later policies.
func (c *connection) connect() (upstream, *Refusal) {
	g := c.g
	p := g.Policy()
	up, addr, refusal := g.dial(c.ctx, p, c.host, c.request.Port, c.isApproved())
	if refusal != nil && refusal.Decision.Action == v1.NetworkAsk { // a rule about an address of the name
		if refusal = c.approve(refusal); refusal == nil {
			up, addr, refusal = g.dial(c.ctx, p, c.host, c.request.Port, true)
		}
	}
	if refusal != nil {
		if cause, ok := errors.AsType[*Refusal](context.Cause(c.ctx)); ok {
			refusal = cause
		}
		return nil, refusal
	}
	g.mu.Lock()
	if tcp, ok := up.(*net.TCPConn); ok && len(g.conns) > largeSockets {
		_ = tcp.SetReadBuffer(socketBuffer)  // fails only if the connection is closed
		_ = tcp.SetWriteBuffer(socketBuffer) // as above
	}
	c.addr = addr
	if g.policy != p { // SetPolicy did not know the address
		c.recheck(g.policy)
	}
	g.mu.Unlock()
	return up, nil
}

// carry connects to the destination and copies in both directions.
func (c *connection) carry() error {
	up, refusal := c.connect()
	if refusal != nil {
		if refusal.Kind == RefusedByFloor || refusal.Kind == RefusedByPolicy {
			c.deny(refusal)
		}
		c.sayNo(refusal)
		return refusal
	}
	defer up.Close()
	if cause := c.cause(); cause != nil {
		c.client.Refuse(cause)
		return cause
	}
	c.observe(EventConnected, nil)
	if err := c.client.Accept(); err != nil {
		return err
	}
	return c.splice(up)
}
