package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// A server can be killed between any two steps of a change. The table lists for each change what is left behind, and
// what recovery does with it:
//
//	create     record, no sandbox                    not created: the record is removed
//	           record and sandbox                    created: the session is ready
//	           unlabelled sandbox of the pool        a stray: ended
//	fork       copies that are being created         not created: records, sandboxes and image are removed
//	           created copies, and the image         created: all are ready, the image is removed
//	hibernate  sandbox and image                     not hibernated: the image is removed
//	           image, and record of its sandbox      hibernated
//	wake       hibernated record, and a sandbox      awake: the image is removed
//	snapshot   image without a name                  not taken: the image is removed
//	delete     image without a name                  deleted: the image is removed
//	restore    record with the old sandbox           not restored: the new sandbox is a stray
//	           record with the new sandbox           restored: the old sandbox is a stray
//	network    record with the new policy            set: the sandbox is attached with this policy
//	end        ending record                         ending: the reaper ends it
//	           ended record, and a sandbox           ended: the sandbox is a stray
//
// The backend knows which sandboxes run. The store knows what callers were promised. Sandboxes and images without the
// label of this instance are never touched.

const (
	// attachers is how many sandboxes are attached at once after a restart.
	attachers = 8
	// attachGrace is how long a session without an attached sandbox counts as busy, after the manager started or the
	// sandbox became unreachable. After that, its idle timeout and expiry apply.
	attachGrace = time.Minute
)

// inventory has the sandboxes and images of this instance in all backends.
type inventory struct {
	running    map[string][]sandbox.Info      // by session id, newest last
	images     map[string][]*sandbox.Snapshot // by session id
	strays     []sandbox.Info
	all        []*sandbox.Snapshot
	unanswered map[string]bool // backends that could not be queried
}

// takeInventory queries every backend for the sandboxes and images of this instance.
func (m *Manager) takeInventory(ctx context.Context) *inventory {
	f := &inventory{
		running:    map[string][]sandbox.Info{},
		images:     map[string][]*sandbox.Snapshot{},
		unanswered: map[string]bool{},
	}
	for _, b := range m.opts.Backends {
		list, err := askBackend(ctx, b, m.opts.searchWait, b.List)
		if err != nil {
			m.log.WarnContext(ctx, "backend could not list its sandboxes", "backend", b.Name(), "error", err)
			f.unanswered[b.Name()] = true
			continue
		}
		images, err := askBackend(ctx, b, m.opts.searchWait, b.Snapshots)
		if err != nil && !errors.Is(err, sandbox.ErrNotSupported) {
			// A session whose sandbox does not run may be hibernated, so the list of sandboxes alone is not enough.
			m.log.WarnContext(ctx, "backend could not list its snapshots", "backend", b.Name(), "error", err)
			f.unanswered[b.Name()] = true
			continue
		}
		for _, i := range list {
			if i.Labels[labelInstance] != m.instance {
				continue
			}
			id := i.Labels[labelSessionID]
			if id == "" || !i.Running {
				f.strays = append(f.strays, i)
				continue
			}
			f.running[id] = append(f.running[id], i)
		}
		for _, s := range images {
			if s.Labels[labelInstance] == m.instance {
				f.images[s.Labels[labelSessionID]] = append(f.images[s.Labels[labelSessionID]], s)
				f.all = append(f.all, s)
			}
		}
	}
	return f
}

// recover takes over the sessions of an earlier manager. Their sandboxes are attached in the background. A call that
// comes earlier attaches the sandbox of its session itself.
func (m *Manager) recover(ctx context.Context) error {
	rows, err := m.store.FindSessions(ctx, store.SessionQuery{Live: true})
	if err != nil {
		return err
	}
	last, err := m.store.LastEvent(ctx)
	if err != nil {
		return err
	}
	names, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{})
	if err != nil {
		return err
	}
	named := map[Key]int{}
	for _, n := range names {
		named[Key{Tenant: n.Tenant, Name: n.Session}]++
	}
	f := m.takeInventory(ctx)
	var attach []*Session
	var decided []store.Session
	for _, row := range rows {
		r, err := decode(row)
		if err != nil {
			return err
		}
		s := m.newSession(*r)
		s.snapshotCount = named[s.key]
		s.events.seq = last[s.id] + seqGap
		running := f.running[s.id]
		delete(f.running, s.id)
		if !s.reconcile(f, running) {
			if err := m.store.DropSessions(ctx, s.id); err != nil {
				return err
			}
			continue
		}
		if s.dirty {
			row, err := s.rec.row()
			if err != nil {
				return err
			}
			decided = append(decided, row)
		}
		close(s.created)
		m.ledger.put(&s.rec)
		m.live[s.key] = s
		attach = append(attach, s)
	}
	// The decisions are written before anything is removed because of them.
	if err := m.store.SaveSessions(ctx, decided...); err != nil {
		return err
	}
	for _, left := range f.running { // of sessions that have ended, or were never created
		f.strays = append(f.strays, left...)
	}
	m.work.Go(func() { m.takeOver(attach) })
	m.work.Go(func() { m.clean(f) })
	return nil
}

// reconcile determines the state of a session from its record and the inventory. It returns false if the session was
// never created.
func (s *Session) reconcile(f *inventory, running []sandbox.Info) bool {
	r := &s.rec
	if r.State == v1.StateCreating && r.Copy > 0 { // Fork did not return this copy, and other copies may be missing
		f.strays = append(f.strays, running...)
		return false
	}
	known := s.m.known(r.Backend) != nil
	if f.unanswered[r.Backend] || !known {
		// The backend did not answer, so the state stays as it is. Only a session that was being created is dropped,
		// because Open did not return it.
		if known && r.State == v1.StateLost && !r.LostForGood {
			s.attachment.restore()
		} else {
			s.attachment.markUnknown()
		}
		return r.State != v1.StateCreating
	}
	chosen := -1
	for i, x := range running {
		if x.ID == r.Sandbox || chosen < 0 ||
			running[chosen].ID != r.Sandbox && x.Created.After(running[chosen].Created) {
			chosen = i
		}
	}
	for i, x := range running {
		if i != chosen {
			f.strays = append(f.strays, x)
		}
	}
	now := time.Now().UTC()
	switch {
	case chosen >= 0:
		s.dirty = r.Sandbox != running[chosen].ID
		r.Sandbox = running[chosen].ID
		switch r.State {
		case v1.StateCreating, v1.StateHibernated, v1.StateLost:
			s.dirty = true
			r.leaveHibernation(now)
			r.State, r.Reason = v1.StateReady, "found running after a restart"
		case v1.StateReady, v1.StateExecuting, v1.StatePaused, v1.StateEnding, v1.StateEnded, v1.StateExpired:
		}
	case r.State == v1.StateCreating:
		return false
	case r.State == v1.StateHibernated, r.State == v1.StateEnding:
	default:
		s.dirty = true
		if image := hibernationImage(r, f.images[r.ID]); image != nil {
			r.State, r.Reason = v1.StateHibernated, foundHibernated
			r.enterHibernation(image, now)
			return true
		}
		if r.State != v1.StateLost || !r.LostForGood {
			r.State, r.Reason = v1.StateLost, "its sandbox was gone after a restart"
			s.attachment.restore()
		}
	}
	return true
}

// foundHibernated is the reason of the state of a session that recovery found hibernated.
const foundHibernated = "found hibernated after a restart"

// hibernationImage returns the image that hibernation took of the session's sandbox, or nil.
func hibernationImage(r *record, images []*sandbox.Snapshot) *sandbox.Snapshot {
	for _, s := range images {
		if s.Labels[labelSessionID] == r.ID && s.Labels[labelKind] == kindHibernation && s.Parent == r.Sandbox {
			return s
		}
	}
	return nil
}

// findHibernation looks for the hibernation image of a session whose sandbox is gone, if the backend did not answer
// when the manager started. It reports whether it found the image; the session is then hibernated.
//
// Preconditions: the turn is held.
func (s *Session) findHibernation(ctx context.Context, b sandbox.Backend) (bool, error) {
	s.mu.Lock()
	unknown := s.attachment.isUnknown()
	s.mu.Unlock()
	if !unknown {
		return false, nil
	}
	images, err := askBackend(ctx, b, s.m.opts.searchWait, b.Snapshots)
	if err != nil && !errors.Is(err, sandbox.ErrNotSupported) {
		return false, err
	}
	s.mu.Lock()
	s.attachment.markKnown()
	image := hibernationImage(&s.rec, images)
	if image == nil || image.Labels[labelInstance] != s.m.instance ||
		!s.setState(v1.StateHibernated, foundHibernated) {
		s.mu.Unlock()
		return false, nil
	}
	s.rec.enterHibernation(image, time.Now().UTC())
	s.mu.Unlock()
	return true, s.save(ctx)
}

// takeOver attaches the sandboxes of ready sessions, and restores lost sessions.
func (m *Manager) takeOver(all []*Session) {
	slots := make(chan struct{}, attachers)
	for _, s := range all {
		select {
		case slots <- struct{}{}:
		case <-m.ctx.Done():
			return
		}
		m.work.Go(func() {
			defer func() { <-slots }()
			s.resumeAfterRestart()
		})
	}
}

// resumeAfterRestart attaches the sandbox of a ready session, or restores a lost session.
func (s *Session) resumeAfterRestart() {
	s.mu.Lock()
	state, restoring, id := s.rec.State, s.attachment.isRestoring(), s.rec.Sandbox
	s.mu.Unlock()
	ctx := s.m.ctx
	switch {
	case restoring:
		if b, err := s.backend(); err == nil {
			s.restoreLost(b, id)
		}
	case state == v1.StateReady:
		if err := s.ensureAttached(ctx); err != nil && ctx.Err() == nil {
			s.m.log.WarnContext(ctx, "session could not be attached after a restart",
				"session", s.key.String(), "sandbox", id, "error", err)
		}
	}
}

// clean ends strays and removes images that nothing needs. The inventory was taken before this manager created any
// sandbox or image.
func (m *Manager) clean(f *inventory) {
	unanswered := map[string]bool{} // backends that stall; collectLate retries
	for _, i := range f.strays {
		if !unanswered[i.Backend] {
			unanswered[i.Backend] = v1.CodeOf(m.endStray(m.ctx, i)) == v1.CodeBackendMissing
		}
	}
	for _, image := range f.all {
		if m.ctx.Err() != nil {
			return
		}
		if !m.imageInUse(image) && !unanswered[image.Backend] {
			_, err := m.removeImage(m.ctx, image)
			unanswered[image.Backend] = v1.CodeOf(err) == v1.CodeBackendMissing
		}
	}
}

// endStray ends a sandbox that belongs to no session.
func (m *Manager) endStray(ctx context.Context, i sandbox.Info) error {
	b := m.known(i.Backend)
	if b == nil {
		return &v1.Error{
			Code:    v1.CodeNoBackend,
			Op:      "end stray sandbox",
			Message: fmt.Sprintf("backend %q is not configured", i.Backend),
		}
	}
	if ctx.Err() != nil {
		return cancelled("end stray sandbox", ctx.Err())
	}
	stop := func(ctx context.Context) error { return b.Stop(ctx, i.ID) }
	if err := callBackend(ctx, b, m.opts.stopWait, stop); err != nil {
		m.log.WarnContext(ctx, "stray sandbox could not be ended", "sandbox", i.ID, "error", err)
		return err
	}
	m.log.InfoContext(ctx, "stray sandbox ended", "sandbox", i.ID, "session", i.Labels[labelSession])
	return nil
}
