package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

func newRecord(ctx context.Context, key Key, c creation, quotaOwner owner) record {
	now := time.Now().UTC()
	return record{
		ID:            newID(),
		Key:           key,
		State:         v1.StateCreating,
		Reason:        "its sandbox is being created",
		Spec:          *c.Spec,
		SpecHash:      c.specHash,
		Policy:        c.Policy,
		Gate:          c.Gate,
		Role:          c.Role,
		From:          c.From,
		APIKey:        quotaOwner.Key,
		Remote:        quotaOwner.Remote,
		Labels:        c.Labels,
		Created:       now,
		Used:          now,
		IdleRequested: c.ownIdle,
		Expires:       expiryOf(now, c.Policy.Expires),
		Request:       requestID(ctx),
	}
}

func newID() string {
	return "n" + ids.Hex(8)
}

// awaitCreated waits until the session is created, and returns the error if its creation failed.
func (s *Session) awaitCreated(ctx context.Context) error {
	select {
	case <-s.created:
	default:
		select {
		case <-s.created:
		case <-ctx.Done():
			return cancelled("wait for session", ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.createErr
}

// create creates the sandbox of a new session.
//
// Preconditions: the turn is held; it is released here.
func (s *Session) create(ctx context.Context, c creation) {
	ctx, cancel := s.withMakeWait(ctx)
	defer cancel()
	defer s.releaseTurn()
	if err := s.notePrevious(ctx); err != nil {
		s.finishCreation(ctx, err)
		return
	}
	var err error
	if c.From != "" {
		err = s.createFromSnapshot(ctx, c)
	} else {
		err = s.createFromSpec(ctx, c)
	}
	s.finishCreation(ctx, err)
}

// notePrevious records the previous session of the key. The first verdict then reports that the state of that
// session is gone.
func (s *Session) notePrevious(ctx context.Context) error {
	q := store.SessionQuery{Tenant: s.key.Tenant, Name: s.key.Name, Dead: true, Limit: 1}
	rows, err := s.m.store.FindSessions(ctx, q)
	if err != nil || len(rows) == 0 {
		return err
	}
	r, err := decode(rows[0])
	if err != nil {
		return nil // an unreadable record of an ended session is ignored
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Previous = &v1.PreviousSession{ID: r.ID, State: r.State, Reason: r.Reason, Ended: r.Ended}
	return nil
}

// createFromSpec creates the session's sandbox from its spec.
func (s *Session) createFromSpec(ctx context.Context, c creation) error {
	b, err := s.m.backend(ctx, c.Backend)
	if err != nil {
		return err
	}
	if err := s.register(ctx, b, c.Vars); err != nil {
		return err
	}
	sb, err := s.newSandbox(ctx, b)
	if err != nil {
		return err
	}
	failpoint("create.made")
	s.adopt(sb, false, nil)
	return nil
}

// slowestCopy is the rate, in bytes per second, at which at least a disk is expected to be copied. A sandbox with the
// default disk has 5 minutes more.
const slowestCopy = 32 << 20

// makeWait is how long a sandbox may take to be created, hibernated or restored: its disk may have to be copied.
func makeWait(l sandbox.Limits) time.Duration {
	return makeBase + time.Duration(l.Disk/slowestCopy)*time.Second
}

// makeWait is makeWait of the limits of the session.
func (s *Session) makeWait() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return makeWait(s.rec.Spec.Limits)
}

// withMakeWait returns a ctx for the creation or attachment of a sandbox. It ends after makeWait, and when the manager
// closes: a backend that stalls must not block that.
func (s *Session) withMakeWait(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, s.makeWait())
	stop := context.AfterFunc(s.m.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// createFromSnapshot creates the session's sandbox from a named snapshot.
func (s *Session) createFromSnapshot(ctx context.Context, c creation) error {
	row, v, err := s.m.findRef(ctx, s.key, c.From)
	if err != nil {
		return err
	}
	if c.ownSpec && c.specHash != v.SpecHash && differingSpec(*c.Spec, v.Spec) != "" {
		return &v1.Error{
			Code:    v1.CodeSpecConflict,
			Op:      "open session",
			Message: fmt.Sprintf("the spec of snapshot %q differs in %s", c.From, differingSpec(*c.Spec, v.Spec)),
			Remedy:  "leave out the spec",
		}
	}
	if c.Backend != "" && c.Backend != v.Image.Backend {
		return &v1.Error{
			Code:    v1.CodeSpecConflict,
			Op:      "open session",
			Message: fmt.Sprintf("snapshot %q is of backend %q, not %q", c.From, v.Image.Backend, c.Backend),
			Remedy:  "leave out the backend",
		}
	}
	defer s.m.pinImage(v.Image)()
	if c.ownNetwork {
		v.Spec.Network = c.Spec.Network
	}
	s.mu.Lock()
	s.rec.Spec, s.rec.SpecHash, s.rec.Base, s.rec.BaseName = v.Spec, v.SpecHash, row.ID, row.Name
	s.mu.Unlock()
	if err := s.reserveLimits(ctx, v.Spec.Limits); err != nil {
		return err
	}
	return s.createFromImage(ctx, v.Image, false, c.Vars)
}

// createFromImage creates the session's sandbox from a pinned image. It is copied if its original goes on.
func (s *Session) createFromImage(
	ctx context.Context, image *sandbox.Snapshot, copied bool, vars map[string]string,
) error {
	b, err := s.m.backend(ctx, image.Backend)
	if err != nil {
		return err
	}
	if ctx, err = s.withNetwork(ctx); err != nil {
		return err
	}
	if err := sandbox.CheckPolicy(ctx, b, s.networkState().Policy); err != nil {
		return err
	}
	if err := s.register(ctx, b, vars); err != nil {
		return err
	}
	s.mu.Lock()
	labels := s.m.labels(&s.rec)
	s.mu.Unlock()
	sb, err := s.restoreSandbox(ctx, b, image, sandbox.RestoreOptions{Labels: labels, Copy: copied})
	if err != nil {
		return err
	}
	s.keepAccess(sb.Spec().Volumes)
	failpoint("create.made")
	s.adopt(sb, true, nil)
	return nil
}

// register writes a session that is being created to the store, so that its sandbox is not mistaken for a stray.
func (s *Session) register(ctx context.Context, b sandbox.Backend, vars map[string]string) error {
	if err := s.countSnapshots(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	rec := s.rec
	s.mu.Unlock()
	setIdle, err := rec.idleOn(ctx, b, "set on_idle to end or keep, or leave it out, which means end here")
	if err != nil {
		return err
	}
	if rec.Policy.OnExpiry == v1.ExpiryHibernate && !canHibernate(ctx, b) {
		return backend.NotSupported(b.Name(), "hibernate: its snapshots contain no memory",
			"set on_expiry to end, or leave it out")
	}
	limits := rec.Spec.Limits
	if limits.Disk == 0 { // which default applies depends on the backend
		spec, err := sandbox.Resolve(b, rec.Spec)
		if err != nil {
			return err
		}
		limits = spec.Limits
		if err := s.reserveLimits(ctx, limits); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.rec.Backend = b.Name()
	s.rec.Spec.Limits = limits
	setIdle(&s.rec)
	s.mu.Unlock()
	failpoint("create.begun")
	if err := s.m.writeDeferred(ctx, s.key); err != nil {
		return err
	}
	if err := s.save(ctx); err != nil {
		return err
	}
	if len(vars) > 0 {
		if err := s.m.store.SetVars(ctx, s.id, vars); err != nil {
			return err
		}
	}
	failpoint("create.registered")
	return nil
}

// newSandbox returns a sandbox with the session's labels, from the pool if the pool has one.
func (s *Session) newSandbox(ctx context.Context, b sandbox.Backend) (*sandbox.Sandbox, error) {
	s.mu.Lock()
	spec, labels := s.rec.Spec, s.m.labels(&s.rec)
	s.mu.Unlock()
	terms, err := s.networkTerms(ctx)
	if err != nil {
		return nil, err
	}
	if spec.Volumes, err = s.tenantVolumes(ctx, b, spec.Volumes); err != nil {
		return nil, err
	}
	p := s.m.pool(b)
	if p == nil || len(spec.Volumes) > 0 || len(spec.Env) > 0 || spec.Hostname != "" || spec.Network.Asks() {
		spec.Labels = labels
		return s.withVolumes(ctx, spec.Volumes, func() (*sandbox.Sandbox, error) {
			return sandbox.Open(sandbox.WithNetworkTerms(ctx, terms), b, spec)
		})
	}
	spec.Persist = false // the pool sets it
	sb, err := p.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	failpoint("create.taken")
	if err := sb.SetNetworkTerms(terms); err != nil { // before any code of the session runs
		return nil, errors.Join(err, sb.Close())
	}
	if err := b.(backend.Labeler).Label(ctx, sb.ID(), labels); err != nil {
		return nil, errors.Join(err, sb.Close())
	}
	return sb, nil
}

// finishCreation publishes the session, or undoes its creation after an error.
func (s *Session) finishCreation(ctx context.Context, err error) {
	if err == nil {
		err = s.m.publish(ctx, s)
	}
	if err != nil {
		s.abortCreation(ctx, err)
		return
	}
	close(s.created)
}

// publish makes sessions ready whose sandboxes were created. All are written to the store together, before any of them
// can be used.
//
// Preconditions: the turns are held.
func (m *Manager) publish(ctx context.Context, made ...*Session) error {
	now := time.Now().UTC()
	var rows []store.Session
	for _, s := range made {
		s.saveMu.Lock()
		defer s.saveMu.Unlock()
		s.mu.Lock()
		next := s.rec
		s.mu.Unlock()
		if next.State != v1.StateCreating {
			continue // the session was ended meanwhile, and dispose waits for the turn
		}
		next.State, next.Reason, next.Used = v1.StateReady, "created", now
		row, err := next.row()
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	if err := m.store.SaveSessions(context.WithoutCancel(ctx), rows...); err != nil {
		return err
	}
	failpoint("create.saved")
	for _, s := range made {
		s.mu.Lock()
		if s.setState(v1.StateReady, "created") {
			s.rec.Used = now // the idle timeout begins now, however long the creation took
		}
		s.mu.Unlock()
	}
	return nil
}

// abortCreation undoes the creation of a session.
func (s *Session) abortCreation(ctx context.Context, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
	defer cancel()
	s.mu.Lock()
	sb := s.attachment.detach()
	s.createErr = err
	ended := !s.rec.State.Live()
	s.setState(v1.StateEnded, "it could not be created")
	s.rec.Ended = time.Now().UTC()
	s.mu.Unlock()
	s.m.ledger.release(s.id)
	if sb != nil {
		if cerr := sb.Close(); cerr != nil {
			s.m.log.WarnContext(ctx, "cannot end the sandbox of a session whose creation failed",
				"sandbox", sb.ID(), "error", cerr)
		}
	}
	if derr := s.m.store.DropSessions(ctx, s.id); derr != nil {
		s.m.log.WarnContext(ctx, "cannot yet remove the record of a session whose creation failed",
			"id", s.id, "error", derr)
		s.m.deferWrite(s, func(ctx context.Context) error { return s.m.store.DropSessions(ctx, s.id) })
	}
	s.audit(ctx, Entry{Action: "open", Error: errorCode(err)})
	if !ended {
		s.m.forget(s)
		close(s.freed)
		close(s.disposed)
	}
	close(s.created)
}
