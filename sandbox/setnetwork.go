package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// networkOffWait bounds how long SetNetwork waits for the guest to stop forwarding. The host denies everything
	// by then.
	networkOffWait = 2 * time.Second
	// maxNetworkEvents is how many events wait for OnNetwork.
	maxNetworkEvents = 256
)

// NetworkState is a network policy and its generation, which is higher for each later policy of a sandbox.
type NetworkState struct {
	Policy     v1.Network
	Generation uint64
}

func (n *network) current() NetworkState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

// Network returns the network policy in force. Its generation is 0 if the backend does not filter connections.
func (s *Sandbox) Network() NetworkState {
	if s.network == nil {
		return NetworkState{Policy: s.Spec().Network}
	}
	return s.network.current()
}

// SetNetwork replaces the network policy and closes the connections that it does not allow. The generation must be
// higher than that of the policy in force. Programs that run see the new policy at their next connection; only
// programs that are started later have the environment variables that depend on it. After an error, the former policy
// is in force.
//
// The policy ends with this attachment: pass it in AttachOptions or RestoreOptions. Snapshot and Fork do so.
func (s *Sandbox) SetNetwork(ctx context.Context, n v1.Network, generation uint64) error {
	if err := CheckPolicy(ctx, s.backend, n); err != nil {
		return err
	}
	if s.network == nil {
		return nil // CheckPolicy accepts only what is so anyway
	}
	s.network.changing.Lock()
	defer s.network.changing.Unlock()
	before := s.network.current()
	if generation <= before.Generation {
		return &v1.Error{
			Code:    v1.CodeNetworkChanged,
			Op:      "set network policy",
			Message: fmt.Sprintf("generation %d is in force, and %d is not higher", before.Generation, generation),
		}
	}
	p, err := compile(n, s.machine.(Networker).NetworkOptions()) //nolint:forcetypeassert // otherwise there is no network
	if err != nil {
		return err
	}
	change := &wire.Network{On: !n.IsNone()}
	if before.Policy.IsNone() != n.IsNone() {
		change.Identity = identity(s.machine, n)
	}
	if change.On { // first, because only this can fail
		if err := s.switchNetwork(ctx, change, p); err != nil {
			return err
		}
	}
	s.network.gateway.SetPolicy(p, generation)
	s.network.mu.Lock()
	s.network.state = NetworkState{n, generation}
	s.network.mu.Unlock()
	if !change.On && !before.Policy.IsNone() {
		ctx, cancel := context.WithTimeout(ctx, networkOffWait)
		defer cancel()
		_ = s.switchNetwork(ctx, change, p) // a guest that still forwards only gets denials
	}
	return nil
}

// CheckNetwork returns what the network policy decides about a destination, and opens nothing. The destination is a
// name or an address, with or without a port, or a URL. Names are not resolved, so an allowed name can still lead to
// an address that is denied.
func (s *Sandbox) CheckNetwork(ctx context.Context, destination string) (v1.NetworkDecision, error) {
	if s.network == nil {
		return CheckNetwork(ctx, s.backend, s.Spec().Network, destination)
	}
	d, err := decide(s.network.gateway, destination)
	d.Generation = s.network.current().Generation
	return d, err
}

// CheckNetwork returns what a policy decides in a sandbox of a backend; see Sandbox.CheckNetwork.
func CheckNetwork(ctx context.Context, b Backend, n v1.Network, destination string) (v1.NetworkDecision, error) {
	if b.Capabilities(ctx).Egress == EgressUnfiltered {
		host, port, err := egress.ParseDestination(destination)
		return v1.NetworkDecision{
			Host:   host,
			Port:   int(port),
			Action: v1.NetworkAllow,
			Rule:   string(EgressUnfiltered),
			Reason: fmt.Sprintf("backend %s does not filter the network", b.Name()),
		}, err
	}
	o := NetworkOptions{}
	if own, ok := b.(Networker); ok {
		o = own.NetworkOptions()
	}
	return decideNetwork(n, o, networkTermsOf(ctx), destination)
}

// DecideNetwork returns what a policy decides within the operator's part; see Sandbox.CheckNetwork.
func DecideNetwork(n v1.Network, o NetworkOptions, destination string) (v1.NetworkDecision, error) {
	return decideNetwork(n, o, NetworkTerms{}, destination)
}

func decideNetwork(n v1.Network, o NetworkOptions, t NetworkTerms, destination string) (v1.NetworkDecision, error) {
	p, err := compile(n, o)
	if err != nil {
		return v1.NetworkDecision{}, err
	}
	terms, err := t.compile(o)
	if err != nil {
		return v1.NetworkDecision{}, err
	}
	g := egress.NewGateway(egress.GatewayOptions{
		Policy: p,
		Terms:  terms,
		Floor:  o.floor(),
	})
	defer g.Close()
	return decide(g, destination)
}

func decide(g *egress.Gateway, destination string) (v1.NetworkDecision, error) {
	host, port, err := egress.ParseDestination(destination)
	if err != nil {
		return v1.NetworkDecision{}, err
	}
	d := g.Decide(host, port)
	return v1.NetworkDecision{
		Host:   host,
		Port:   int(port),
		Action: d.Action,
		Rule:   d.Rule,
		Reason: d.Reason,
		Remedy: d.Remedy,
	}, nil
}

// OnNetwork sets the function that gets the network events of the sandbox, and passes those since the attachment to it.
// It is called from several goroutines, and delays the connection of the event.
func (s *Sandbox) OnNetwork(f func(v1.NetworkEvent)) {
	if s.network != nil {
		s.network.events.follow(f)
	}
}

// networkEvents converts the events of a gateway.
type networkEvents struct {
	mu        sync.Mutex
	handler   func(v1.NetworkEvent) // guarded by mu
	waiting   []v1.NetworkEvent     // guarded by mu; without a handler, the latest events
	connected map[uint64]bool       // guarded by mu; allowed connections: whether the destination was reached
}

func (n *networkEvents) follow(f func(v1.NetworkEvent)) {
	n.mu.Lock()
	waiting := n.waiting
	n.handler, n.waiting = f, nil
	n.mu.Unlock()
	for _, e := range waiting {
		f(e)
	}
}

func (n *networkEvents) send(e v1.NetworkEvent) {
	n.mu.Lock()
	f := n.handler
	if f == nil {
		if len(n.waiting) >= maxNetworkEvents {
			n.waiting = slices.Delete(n.waiting, 0, 1)
		}
		n.waiting = append(n.waiting, e)
	}
	n.mu.Unlock()
	if f != nil {
		f(e)
	}
}

// denied reports a look-up of a name that is not allowed.
func (n *networkEvents) denied(name string, d egress.Decision, o *wire.Owner, generation uint64) {
	e := eventOf(v1.NetworkEventLookup, egress.Event{
		Time:       time.Now(),
		Generation: generation,
		Request:    egress.Request{Name: name, Process: o},
		Decision:   d,
	})
	e.Reason = d.String()
	n.send(e)
}

// observe converts an event of the gateway.
func (n *networkEvents) observe(e egress.Event) {
	switch e.Kind {
	case egress.EventLookup:
	case egress.EventDecided:
		if !e.Decision.Allowed() {
			out := eventOf(v1.NetworkEventDenied, e)
			out.Reason = e.Decision.String()
			n.send(out)
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.connected == nil {
			n.connected = map[uint64]bool{}
		}
		n.connected[e.ID] = false
	case egress.EventConnected:
		n.mu.Lock()
		n.connected[e.ID] = true
		n.mu.Unlock()
		n.send(eventOf(v1.NetworkEventOpened, e))
	case egress.EventClosed:
		n.closed(e)
	}
}

// closed reports the end of a connection that was allowed at first.
func (n *networkEvents) closed(e egress.Event) {
	n.mu.Lock()
	connected, allowed := n.connected[e.ID]
	delete(n.connected, e.ID)
	n.mu.Unlock()
	if !allowed {
		return
	}
	kind := v1.NetworkEventFailed
	if connected {
		kind = v1.NetworkEventClosed
	}
	r, refused := errors.AsType[*egress.Refusal](e.Err)
	if refused {
		switch r.Kind {
		case egress.RefusedByPolicy, egress.RefusedByFloor, egress.RefusedMismatch, egress.RefusedByLimit,
			egress.RefusedChanged:
			e.Decision = r.Decision
			if !connected {
				kind = v1.NetworkEventDenied
			}
		case egress.RefusedNotFound, egress.RefusedTimeout, egress.RefusedUnreached, egress.RefusedClosing:
		}
	}
	out := eventOf(kind, e)
	if e.Err != nil {
		out.Reason = e.Err.Error()
	}
	n.send(out)
}

func eventOf(kind v1.NetworkEventKind, e egress.Event) v1.NetworkEvent {
	o, _ := e.Request.Process.(*wire.Owner)
	out := v1.NetworkEvent{
		Time:       e.Time.UTC(),
		Kind:       kind,
		Connection: e.ID,
		Host:       e.Request.Name,
		Port:       int(e.Request.Port),
		Action:     e.Decision.Action,
		Rule:       e.Decision.Rule,
		Generation: e.Generation,
		Op:         o.GetOp(),
		Count:      1,
		Sent:       e.Up,
		Received:   e.Down,
	}
	if program, _, _ := strings.Cut(o.GetCommand(), " "); program != "" {
		out.Program = path.Base(program)
	}
	if e.Address.IsValid() {
		out.Address = e.Address.String()
	}
	return out
}
