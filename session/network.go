package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// networkWait bounds how long SetNetwork waits for the guest.
const networkWait = 10 * time.Second

// networkState returns the network policy of the session.
func (s *Session) networkState() *sandbox.NetworkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.networkState()
}

func (r *record) networkState() *sandbox.NetworkState {
	return &sandbox.NetworkState{Policy: r.Spec.Network, Generation: r.NetworkChanges + 1}
}

func sameNetwork(a, b v1.Network) bool {
	return preset(a) == preset(b) && slices.Equal(a.Rules, b.Rules)
}

func preset(n v1.Network) v1.NetworkPreset { return cmp.Or(n.Preset, v1.NetworkNone) }

// networkConflict returns the error for a request that needs another policy than that of the session.
func (s *Session) networkConflict(requested, existing v1.Network) error {
	return &v1.Error{
		Code:    v1.CodeSpecConflict,
		Op:      "open session",
		Message: fmt.Sprintf("session %q already exists, and its network policy is %q, not %q", s.key.Name, existing, requested),
		Remedy:  "change it with recluse net set " + s.key.Name + ", leave the policy out, or choose another name",
	}
}

// differingSpec is differing without the network policy.
func differingSpec(requested, existing sandbox.Spec) string {
	requested.Network, existing.Network = v1.Network{}, v1.Network{}
	return differing(sameDisk(requested, existing), existing)
}

// Network returns the network policy of the session. It does not count as use.
func (s *Session) Network(ctx context.Context) (v1.SessionNetwork, error) {
	if err := s.awaitCreated(ctx); err != nil {
		return v1.SessionNetwork{}, err
	}
	if err := s.checkLive(); err != nil {
		return v1.SessionNetwork{}, err
	}
	n := s.networkState()
	out := v1.SessionNetwork{Network: n.Policy, Generation: n.Generation}
	out.Preset = preset(n.Policy)
	return out, nil
}

// SetNetwork replaces the network policy of the session, and closes connections that it does not allow. If
// n.Generation is set, the policy in force must have this generation. A hibernated session is not woken. Once
// SetNetwork has returned, the policy also survives the end of this program.
func (s *Session) SetNetwork(ctx context.Context, n v1.SessionNetwork) (v1.SessionNetwork, error) {
	err := s.setNetwork(ctx, n.Network, n.Generation)
	s.audit(ctx, Entry{Action: actionNetwork + "set", Detail: n.Network.String(), Error: errorCode(err)})
	if err != nil {
		return v1.SessionNetwork{}, err
	}
	return s.Network(ctx)
}

func (s *Session) setNetwork(ctx context.Context, n v1.Network, generation uint64) error {
	if err := s.awaitCreated(ctx); err != nil {
		return err
	}
	if err := s.acquireTurn(ctx); err != nil {
		return err
	}
	defer s.releaseTurn()
	b, err := s.backend()
	if err != nil {
		return err
	}
	if ctx, err = s.withNetwork(ctx); err != nil {
		return err
	}
	if err := sandbox.CheckPolicy(ctx, b, n); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), networkWait)
	defer cancel()
	s.mu.Lock()
	before, sb := *s.rec.networkState(), s.attachment.sandbox
	err = s.refusal(time.Now())
	if err == nil && generation != 0 && generation != before.Generation {
		err = networkChanged(generation, before.Generation)
	}
	if err == nil {
		s.rec.Spec.Network = n
		s.rec.NetworkChanges++
	}
	next := *s.rec.networkState()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	// The policy is in the store before it is in force: a program that is killed in between leaves the new one.
	if err = s.save(ctx); err == nil {
		failpoint("network.saved")
		if sb != nil {
			err = s.explain(sb, sb.SetNetwork(ctx, next.Policy, next.Generation))
		}
	}
	s.mu.Lock()
	if err != nil {
		s.rec.Spec.Network, s.rec.NetworkChanges, s.dirty = before.Policy, before.Generation-1, true
		s.mu.Unlock()
		return errors.Join(err, s.save(ctx))
	}
	attrs := map[string]string{"policy": n.String(), "generation": strconv.FormatUint(next.Generation, 10)}
	s.emit(Event{Kind: "network", Attrs: attrs}, true)
	s.mu.Unlock()
	failpoint("network.set")
	return nil
}

func networkChanged(requested, current uint64) error {
	return &v1.Error{
		Code:    v1.CodeNetworkChanged,
		Op:      "set network policy",
		Message: fmt.Sprintf("the policy has generation %d, not %d", current, requested),
		Remedy:  "look at the present policy, and set it again with its generation, or without one",
	}
}

// CheckNetwork returns what the network policy of the session decides about a destination: a name or an address, with
// or without a port, or a URL. It opens nothing, does not wake the session, and does not count as use.
func (s *Session) CheckNetwork(ctx context.Context, destination string) (v1.NetworkDecision, error) {
	if err := s.awaitCreated(ctx); err != nil {
		return v1.NetworkDecision{}, err
	}
	if err := s.checkLive(); err != nil {
		return v1.NetworkDecision{}, err
	}
	s.mu.Lock()
	sb := s.attachment.usable()
	s.mu.Unlock()
	if sb != nil {
		return sb.CheckNetwork(ctx, destination)
	}
	b, err := s.backend()
	if err != nil {
		return v1.NetworkDecision{}, err
	}
	if ctx, err = s.withNetwork(ctx); err != nil {
		return v1.NetworkDecision{}, err
	}
	n := s.networkState()
	d, err := sandbox.CheckNetwork(ctx, b, n.Policy, destination)
	d.Generation = n.Generation
	return d, err
}
