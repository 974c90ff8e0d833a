package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// NetworkOptions are the operator's part of the network of sandboxes. The zero value has no exceptions and no maximum.
type NetworkOptions struct {
	Maximum     *v1.Network     // a policy allows nothing that Maximum denies; nil: no maximum
	Packages    string          // targets of the preset packages, see egress.Options; empty: the built-in list
	Mirrors     func() []string // returns further targets of the preset packages; nil: none
	FloorExcept []netip.Prefix  // special addresses that rules may allow
	Limits      egress.Limits
	Resolver    egress.Resolver         // nil: that of the host
	Listeners   func() []netip.AddrPort // addresses on which this program serves, never opened; nil: none
	Proxy       egress.ProxyFunc        // proxy of the host through which connections go; nil: none
}

// Notes returns what restricts the policies of sandboxes on this host, for Capabilities.
func (o NetworkOptions) Notes() []string {
	if o.Proxy == nil {
		return nil
	}
	return []string{"connections go through the proxy of this host (HTTPS_PROXY), so the addresses of names cannot be checked"}
}

func (o NetworkOptions) floor() *egress.Floor {
	return egress.NewFloor(egress.FloorOptions{Except: o.FloorExcept, Listeners: o.Listeners})
}

// Networker is implemented by machines whose guest forwards connections.
type Networker interface {
	NetworkOptions() NetworkOptions
}

// The parts of package egress that owners of sandboxes use.
type (
	// NetworkRequest is a connection that a program in a sandbox opens.
	NetworkRequest = egress.Request
	// NetworkDecision is what a policy, or a person, decides about a connection.
	NetworkDecision = egress.Decision
	// NetworkBudget bounds what several sandboxes carry together.
	NetworkBudget = egress.Budget
)

// CheckRules returns an error if a rule or the preset of a policy is invalid.
func CheckRules(n v1.Network) error {
	_, err := egress.Compile(n, egress.Options{})
	return err
}

// NetworkWithin returns an error if inner may allow something that outer does not allow.
func NetworkWithin(inner, outer v1.Network) error {
	return egress.Within(inner, outer, egress.Options{})
}

// NetworkTerms are what the owner of a sandbox, such as a session manager, sets for its network.
type NetworkTerms struct {
	Maxima []NetworkMaximum // narrow every policy, as NetworkOptions.Maximum does
	Budget NetworkBudget    // shared with other sandboxes; nil: none
	// Approve asks a person about a connection, see egress.Terms; nil: rules that ask are refused.
	Approve func(NetworkRequest, NetworkDecision) NetworkDecision
}

// NetworkMaximum is a policy beyond which no other allows anything.
type NetworkMaximum struct {
	Title  string // whose it is, in reasons: "the maximum of tenant a"
	Policy v1.Network
}

type networkTermsKey struct{}

// WithNetworkTerms returns a context for Open, Attach and Restore. The terms are in force before the sandbox can
// connect anywhere.
func WithNetworkTerms(ctx context.Context, t NetworkTerms) context.Context {
	return context.WithValue(ctx, networkTermsKey{}, t)
}

func networkTermsOf(ctx context.Context) NetworkTerms {
	t, _ := ctx.Value(networkTermsKey{}).(NetworkTerms)
	return t
}

// SetNetworkTerms replaces the terms, and closes connections that a new maximum does not allow.
func (s *Sandbox) SetNetworkTerms(t NetworkTerms) error {
	if s.network == nil {
		return nil
	}
	terms, err := t.compile(s.machine.(Networker).NetworkOptions())
	if err == nil {
		s.network.gateway.SetTerms(terms)
	}
	return err
}

// NetworkRules returns the rules in force, in order, those of the policy first; empty: the backend enforces none.
func (s *Sandbox) NetworkRules() []string {
	if s.network == nil {
		return nil
	}
	return s.network.gateway.Policy().Rules()
}

// compile returns the terms in the form that a gateway uses.
func (t NetworkTerms) compile(o NetworkOptions) (egress.Terms, error) {
	out := egress.Terms{Budget: t.Budget, Approve: t.Approve}
	for _, m := range t.Maxima {
		p, err := o.compile(m.Policy, m.Title)
		switch {
		case err != nil:
			return out, err
		case out.Maximum == nil:
			out.Maximum = p
		default:
			out.Maximum = out.Maximum.Narrow(p)
		}
	}
	return out, nil
}

// CheckPolicy rejects a network policy that a backend cannot enforce. Rules that ask need a ctx with NetworkTerms.
func CheckPolicy(ctx context.Context, b Backend, n v1.Network) error {
	if n.IsNone() {
		return nil
	}
	refuse := func(why, remedy string) error {
		return &v1.Error{
			Code:    v1.CodeNotSupported,
			Op:      "start sandbox",
			Message: fmt.Sprintf("backend %s: %s, so the policy %q cannot be enforced", b.Name(), why, n),
			Remedy:  remedy,
		}
	}
	if n.Asks() && networkTermsOf(ctx).Approve == nil {
		return &v1.Error{
			Code:    v1.CodeNotSupported,
			Op:      "start sandbox",
			Message: fmt.Sprintf("the policy %q asks a person about connections, which only a session can do", n),
			Remedy:  "use a session whose server has approvals (gate.approval), or allow or deny the destinations",
		}
	}
	p, err := egress.Compile(n, egress.Options{})
	if err != nil {
		return err
	}
	switch b.Capabilities(ctx).Egress {
	case EgressAllPorts:
		return nil
	case EgressListedPorts:
		_, err := listedPorts(p)
		return err
	case EgressUnfiltered:
		if n.Preset == v1.NetworkAll && len(n.Rules) == 0 {
			return nil
		}
		return refuse("the network is not filtered",
			"use the gvisor backend, or docker without docker.network, or the policy all, which filters nothing")
	case EgressNone:
	}
	return refuse("sandboxes have no network", "use the gvisor or docker backend, or leave the network policy out")
}

// compile returns the policy of a sandbox, within the operator's maximum.
func compile(n v1.Network, o NetworkOptions) (*egress.Policy, error) {
	p, err := o.compile(n, "")
	if err != nil || o.Maximum == nil {
		return p, err
	}
	most, err := o.compile(*o.Maximum, "the operator's maximum")
	if err != nil {
		return nil, err
	}
	return p.Narrow(most), nil
}

func (o NetworkOptions) compile(n v1.Network, title string) (*egress.Policy, error) {
	e := egress.Options{Packages: o.Packages, Title: title}
	if n.Preset == v1.NetworkPackages && o.Mirrors != nil {
		e.Mirrors = o.Mirrors()
	}
	return egress.Compile(n, e)
}

// network is the network of a sandbox while this program is attached to it. It implements host.Network.
type network struct {
	gateway *egress.Gateway
	uses    networkUses
	events  networkEvents

	changing sync.Mutex // held while the policy changes; taken before mu
	mu       sync.Mutex
	state    NetworkState // guarded by mu
}

// openNetwork sets the network of a sandbox. Its policy is in force from the first connection: that of n, or of the
// spec if n is nil.
func (s *Sandbox) openNetwork(n *NetworkState, t NetworkTerms) error {
	m, ok := s.machine.(Networker)
	if !ok {
		return nil
	}
	o := m.NetworkOptions()
	out := &network{state: NetworkState{Policy: s.machine.Spec().Network, Generation: 1}}
	if n != nil {
		out.state = *n
	}
	p, err := compile(out.state.Policy, o)
	if err != nil {
		return err
	}
	terms, err := t.compile(o)
	if err != nil {
		return err
	}
	out.gateway = egress.NewGateway(egress.GatewayOptions{
		Policy:     p,
		Generation: out.state.Generation,
		Terms:      terms,
		Floor:      o.floor(),
		Limits:     o.Limits,
		Resolver:   o.Resolver,
		Proxy:      o.Proxy,
		Observe:    out.observe,
	})
	s.network = out
	return nil
}

func (s *Sandbox) closeNetwork() {
	if s.network != nil {
		s.network.gateway.Close()
	}
}

// hostNetwork returns the network for the attachment, or nil.
func (s *Sandbox) hostNetwork() host.Network {
	if s.network == nil {
		return nil
	}
	return s.network
}

// applyNetwork makes the guest forward connections, unless the policy denies all of them. If changed is set, the policy
// may differ from the one that the guest had, so a guest that still forwards is told to stop.
func (s *Sandbox) applyNetwork(ctx context.Context, changed bool) error {
	if s.network == nil {
		return nil
	}
	n := s.network.current().Policy
	if n.IsNone() && !changed {
		return nil
	}
	err := s.switchNetwork(ctx, &wire.Network{On: !n.IsNone()}, s.network.gateway.Policy())
	if n.IsNone() && v1.CodeOf(err) == v1.CodeNotSupported {
		return nil // a guest that was made without a network forwards nothing
	}
	return err
}

// switchNetwork switches the forwarding of the guest on or off. It adds what the guest needs for the policy p.
func (s *Sandbox) switchNetwork(ctx context.Context, n *wire.Network, p *egress.Policy) error {
	var listErr error
	if n.On {
		n.Ports, listErr = listedPorts(p)
		n.Certificates = addedCertificates(s.machine)
	}
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Network{Network: n}})
	if e, ok := errors.AsType[*host.Error](err); ok && e.Code == string(v1.CodeNotSupported) && listErr != nil {
		return listErr
	}
	return s.explain("set up the network", err)
}

// Lookup implements host.Network.
func (n *network) Lookup(ctx context.Context, name string, o *wire.Owner) wire.Answer {
	found := n.gateway.Lookup(ctx, name)
	if !found.Decision.Allowed() || found.Failure != "" {
		n.uses.lookup(name, found, o)
		n.events.lookup(name, found, o, n.current().Generation)
	}
	switch found.Status {
	case egress.LookupExists:
		return wire.Answer_ANSWER_ALLOWED
	case egress.LookupDenied:
		return wire.Answer_ANSWER_DENIED
	case egress.LookupNotFound:
		return wire.Answer_ANSWER_NOT_FOUND
	case egress.LookupFailed:
	}
	return wire.Answer_ANSWER_FAILED
}

// Connect implements host.Network.
func (n *network) Connect(ctx context.Context, c *wire.Connect, client wire.Connection, open func() error) error {
	conn := &clientConn{Connection: client, open: open}
	err := n.gateway.Serve(ctx, egress.Request{
		Name:     c.Name,
		Port:     uint16(min(c.Port, 1<<16-1)),
		Explicit: c.Explicit,
		Process:  c.Owner,
	}, conn)
	if conn.accepted {
		return nil
	}
	if r, ok := errors.AsType[*egress.Refusal](err); ok {
		return &host.Error{Code: string(r.Kind), Message: r.Error()} // a proxy inside answers with both
	}
	if err == nil {
		err = &v1.Error{Code: v1.CodeInternal, Op: "open connection", Message: "the connection was not opened"}
	}
	return err
}

// clientConn implements egress.Conn.
type clientConn struct {
	wire.Connection
	open     func() error
	accepted bool

	mu   sync.Mutex
	shut bool // guarded by mu
}

// Accept implements egress.Conn.
func (c *clientConn) Accept() error {
	c.accepted = true
	return c.open()
}

// Refuse implements egress.Conn. Connect returns the refusal.
func (c *clientConn) Refuse(*egress.Refusal) {}

// CloseWrite implements egress.Conn.
func (c *clientConn) CloseWrite() error {
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
	return c.Connection.CloseWrite()
}

// Close implements egress.Conn.
func (c *clientConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.accepted: // the host answers with the refusal
		return nil
	case c.shut:
		return c.Connection.Close()
	}
	c.Connection.Reset()
	return nil
}

const (
	maxUses    = 64  // destinations of one operation
	maxUsers   = 256 // operations whose destinations are kept
	maxUnknown = 256 // uses whose operation is unknown
	maxClosed  = 4096
)

// observe records an event of the gateway.
func (n *network) observe(e egress.Event) {
	n.uses.observe(e)
	n.events.observe(e)
}

// networkUses remembers which destinations operations have used, for their verdicts.
type networkUses struct {
	mu      sync.Mutex
	byOp    map[string][]v1.NetworkUse // guarded by mu
	order   []string                   // guarded by mu; operations, oldest first
	unknown []unknownUse               // guarded by mu
	closed  map[uint64]bool            // guarded by mu; connections whose bytes are counted, and that may still be live
}

// unknownUse is a use whose operation is unknown.
type unknownUse struct {
	v1.NetworkUse
	at time.Time
}

// observe records an event of the gateway.
func (u *networkUses) observe(e egress.Event) {
	owner, _ := e.Request.Process.(*wire.Owner)
	use := useOf(e)
	switch e.Kind {
	case egress.EventDecided:
		use.Count = 1
	case egress.EventClosed:
		if e.Err != nil {
			use.Reason = e.Err.Error()
		}
		u.addClosed(use, owner, e.ID)
		return
	case egress.EventLookup, egress.EventConnected:
		return
	}
	u.add(use, owner)
}

// addClosed records what a connection has used that may still be live.
func (u *networkUses) addClosed(use v1.NetworkUse, o *wire.Owner, id uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed == nil || len(u.closed) >= maxClosed {
		u.closed = map[uint64]bool{} // no verdict has been asked for since, so none counts them twice
	}
	u.closed[id] = true
	u.addLocked(use, o)
}

// useOf returns the destination of an event, and its bytes.
func useOf(e egress.Event) v1.NetworkUse {
	return v1.NetworkUse{
		Host:     e.Request.Name,
		Port:     int(e.Request.Port),
		Action:   e.Decision.Action,
		Rule:     e.Decision.Rule,
		Approval: e.Decision.Approval,
		Sent:     e.Up,
		Received: e.Down,
	}
}

// lookup records a look-up of a name that is not allowed, or has no address.
func (u *networkUses) lookup(name string, r egress.LookupResult, o *wire.Owner) {
	d := r.Decision
	u.add(v1.NetworkUse{Host: name, Action: d.Action, Rule: d.Rule, Reason: cmp.Or(r.Failure, d.String()), Count: 1}, o)
}

func (u *networkUses) add(use v1.NetworkUse, o *wire.Owner) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.addLocked(use, o)
}

// addLocked records a use.
//
// Preconditions: mu is held.
func (u *networkUses) addLocked(use v1.NetworkUse, o *wire.Owner) {
	op := o.GetOp()
	if op == "" {
		if len(u.unknown) >= maxUnknown {
			u.unknown = slices.Delete(u.unknown, 0, 1)
		}
		use.Unattributed = true
		u.unknown = append(u.unknown, unknownUse{use, time.Now()})
		return
	}
	if u.byOp == nil {
		u.byOp = map[string][]v1.NetworkUse{}
	}
	list, known := u.byOp[op]
	if !known {
		if len(u.order) >= maxUsers {
			delete(u.byOp, u.order[0])
			u.order = slices.Delete(u.order, 0, 1)
		}
		u.order = append(u.order, op)
	}
	u.byOp[op] = merge(list, use)
}

// merge adds a use to the entry of the same destination.
func merge(list []v1.NetworkUse, use v1.NetworkUse) []v1.NetworkUse {
	for i := range list {
		l := &list[i]
		if l.Host != use.Host || l.Port != use.Port || l.Unattributed != use.Unattributed {
			continue
		}
		l.Count += use.Count
		l.Sent += use.Sent
		l.Received += use.Received
		l.Action, l.Rule, l.Approval = use.Action, use.Rule, use.Approval
		if use.Reason != "" {
			l.Reason = use.Reason
		}
		return list
	}
	if len(list) >= maxUses {
		return list
	}
	return append(list, use)
}

// of returns the destinations that an operation used, with the bytes of connections that are still open. A look-up of a
// name is left out if a connection to it is listed.
func (n *network) of(v *Verdict) []v1.NetworkUse {
	live := n.gateway.Live()
	u := &n.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	list := slices.Clone(u.byOp[v.ID])
	maps.DeleteFunc(u.closed, func(id uint64, _ bool) bool {
		return !slices.ContainsFunc(live, func(e egress.Event) bool { return e.ID == id })
	})
	for _, e := range live {
		if u.closed[e.ID] {
			continue
		}
		if owner, _ := e.Request.Process.(*wire.Owner); owner.GetOp() == v.ID {
			list = merge(list, useOf(e))
		}
	}
	end := v.Started.Add(v.Wall)
	for _, k := range u.unknown {
		if !k.at.Before(v.Started) && !k.at.After(end) {
			list = merge(list, k.NetworkUse)
		}
	}
	return slices.DeleteFunc(list, func(l v1.NetworkUse) bool {
		return l.Port == 0 && slices.ContainsFunc(list, func(o v1.NetworkUse) bool { return o.Port != 0 && o.Host == l.Host })
	})
}

// withNetwork adds the destinations of an operation to its verdict.
func (s *Sandbox) withNetwork(v *Verdict) *Verdict {
	if s.network != nil {
		v.Network = s.network.of(v)
	}
	return v
}
