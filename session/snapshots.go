package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// An image is what a backend has written to disk. Named snapshots and hibernated sessions need images; several may need the same one. An
// image goes when nobody needs it any more. Who needs it is counted in the store each time, so that no counter can drift.

// saved is what the store keeps about a named snapshot beside its columns.
type saved struct {
	Image    *sandbox.Snapshot `json:"image"`
	Spec     sandbox.Spec      `json:"spec"`
	SpecHash string            `json:"spec_hash"`
	Request  string            `json:"request,omitempty"` // as a session's
}

// imageOf gives the image of a named snapshot.
func imageOf(row store.Snapshot) (*sandbox.Snapshot, error) {
	v, err := savedOf(row)
	return v.Image, err
}

func savedOf(row store.Snapshot) (v saved, err error) {
	if err := unmarshal(row.Data, &v); err != nil || v.Image == nil {
		return v, &sandbox.Error{Code: CodeStoreCorrupt, Op: "read snapshot", Message: fmt.Sprintf("the record of snapshot %s cannot be read", row.ID), Err: err}
	}
	return v, nil
}

// describe gives a snapshot as callers see it.
func describe(row store.Snapshot) (Snapshot, error) {
	v, err := savedOf(row)
	return Snapshot{
		ID: row.ID, Session: row.Session, Name: row.Name, Parent: row.Parent, Size: row.Size, Memory: row.Memory, Created: row.Created, Spec: v.Spec,
	}, err
}

// Snapshots lists the snapshots of a session, also of one that has ended and kept them; name "": of the whole tenant.
func (m *Manager) Snapshots(ctx context.Context, key Key) ([]Snapshot, error) {
	if key.Tenant == "" {
		key.Tenant = DefaultTenant
	}
	if key.Name != "" {
		if _, err := key.check(); err != nil {
			return nil, err
		}
	}
	rows, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: key.Tenant, Session: key.Name})
	if err != nil {
		return nil, err
	}
	out := make([]Snapshot, 0, len(rows))
	for _, row := range rows {
		snap, err := describe(row)
		if err != nil {
			return nil, err
		}
		out = append(out, snap)
	}
	return out, nil
}

// findSnapshot gives one snapshot by its names.
func (m *Manager) findSnapshot(ctx context.Context, tenant, session, name string) (store.Snapshot, error) {
	rows, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: tenant, Session: session, Name: name})
	if err == nil && len(rows) == 0 {
		err = &sandbox.Error{Code: CodeSnapshotName, Op: "find snapshot", Message: fmt.Sprintf("no snapshot %s@%s", session, name), Remedy: "list snapshots"}
	}
	if err != nil {
		return store.Snapshot{}, err
	}
	return rows[0], nil
}

// DeleteSnapshot removes a snapshot; its data goes when nothing needs it any more. Name "*": all of the session.
func (m *Manager) DeleteSnapshot(ctx context.Context, key Key, name string) error {
	key, err := key.check()
	if err != nil {
		return err
	}
	var rows []store.Snapshot
	if name == "*" {
		rows, err = m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: key.Tenant, Session: key.Name})
	} else {
		var row store.Snapshot
		if err := checkName("snapshot", name); err != nil {
			return err
		}
		row, err = m.findSnapshot(ctx, key.Tenant, key.Name, name)
		rows = []store.Snapshot{row}
	}
	if err != nil {
		return err
	}
	err = m.dropSnapshots(ctx, rows)
	m.audit(ctx, Entry{Tenant: key.Tenant, Session: key.Name, Action: "snapshot.delete", Detail: name, Error: errorCode(err)})
	return err
}

// dropSnapshots removes snapshots and the images that nobody needs then.
func (m *Manager) dropSnapshots(ctx context.Context, rows []store.Snapshot) error {
	ids := make([]string, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	if err := m.store.DropSnapshots(ctx, ids...); err != nil {
		return err
	}
	failpoint("delete.forgotten")
	var errs []error
	for _, row := range rows {
		m.recountSnapshots(ctx, Key{Tenant: row.Tenant, Name: row.Session})
		image, err := imageOf(row)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m.dropImage(context.WithoutCancel(ctx), image)
	}
	return errors.Join(errs...)
}

// recountSnapshots tells a live session how many it has.
func (m *Manager) recountSnapshots(ctx context.Context, key Key) {
	m.mu.Lock()
	s := m.live[key]
	m.mu.Unlock()
	if s == nil {
		return
	}
	_ = s.recount(ctx) // the next change tries again
}

// recount asks the store how many snapshots the session has. One asks after the other, so that the last answer is the latest.
func (s *Session) recount(ctx context.Context) error {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	rows, err := s.m.store.FindSnapshots(context.WithoutCancel(ctx), store.SnapshotQuery{Tenant: s.key.Tenant, Session: s.key.Name})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named = len(rows)
	return nil
}

// lockImage takes imageMu once nobody is removing an image: a backend may take long for that, and whoever needs another one does not wait.
func (m *Manager) lockImage(ref string) {
	for {
		m.imageMu.Lock()
		going := m.going[ref]
		if going == nil {
			return
		}
		m.imageMu.Unlock()
		<-going
	}
}

// hold keeps an image from being removed until release is called.
func (m *Manager) hold(image *sandbox.Snapshot) (release func()) {
	ref := imageRef(image)
	m.lockImage(ref)
	defer m.imageMu.Unlock()
	m.pins[ref]++
	return func() {
		m.imageMu.Lock()
		m.pins[ref]--
		last := m.pins[ref] == 0
		if last {
			delete(m.pins, ref)
		}
		m.imageMu.Unlock()
		if last {
			m.dropImage(context.WithoutCancel(m.ctx), image)
		}
	}
}

// dropImage removes an image unless somebody needs it. What cannot be removed now is removed by the next GC.
func (m *Manager) dropImage(ctx context.Context, image *sandbox.Snapshot) {
	_, _ = m.removeImage(ctx, image) // it is logged
}

// removeImage is dropImage for whoever wants to know whether the image is gone, and else why not; an image that somebody needs is no error.
func (m *Manager) removeImage(ctx context.Context, image *sandbox.Snapshot) (gone bool, err error) {
	ref, b := imageRef(image), m.known(image.Backend)
	if b == nil {
		return false, nil
	}
	removed, needed, err := m.condemn(ctx, ref)
	if needed {
		return false, nil
	}
	if err == nil {
		err = told(ctx, b, m.opts.stopWait, func(ctx context.Context) error { return b.DeleteSnapshot(ctx, image.ID) })
		removed()
	}
	if err != nil {
		m.log.WarnContext(ctx, "image of a snapshot is left for the next collection", "image", ref, "error", err)
	}
	return err == nil, err
}

// condemn lets nobody take an image any more until removed is called, unless somebody needs it.
func (m *Manager) condemn(ctx context.Context, ref string) (removed func(), needed bool, err error) {
	m.lockImage(ref)
	defer m.imageMu.Unlock()
	if m.pins[ref] > 0 {
		return nil, true, nil // whoever holds it looks again
	}
	if n, err := m.store.ImageUses(ctx, ref); err != nil || n > 0 {
		return nil, err == nil, err
	}
	over := make(chan struct{})
	m.going[ref] = over
	return func() {
		m.imageMu.Lock()
		defer m.imageMu.Unlock()
		delete(m.going, ref)
		close(over)
	}, false, nil
}

// Save takes a named snapshot. The session goes on meanwhile; one that is hibernated sleeps on, and its image gets the name.
func (s *Session) Save(ctx context.Context, name string) (Snapshot, error) {
	snap, err := s.saveAs(ctx, name)
	s.audit(ctx, Entry{Action: "snapshot", Detail: name, Error: errorCode(err)})
	return snap, err
}

func (s *Session) saveAs(ctx context.Context, name string) (Snapshot, error) {
	if err := checkName("snapshot", name); err != nil {
		return Snapshot{}, err
	}
	if err := s.made(ctx); err != nil {
		return Snapshot{}, err
	}
	if err := s.count(true, false); err != nil {
		return Snapshot{}, err
	}
	defer s.uncount(true, 0)
	// One at a time, so that the limit holds and a name is given once.
	s.namingMu.Lock()
	defer s.namingMu.Unlock()
	if snap, found, err := s.savedBy(ctx, name); found || err != nil {
		return snap, err
	}
	if err := s.mayName(ctx, name); err != nil {
		return Snapshot{}, err
	}
	image, release, err := s.image(ctx, kindSnapshot)
	if err != nil {
		return Snapshot{}, err
	}
	defer release()
	failpoint("snapshot.written")
	s.mu.Lock()
	row := store.Snapshot{
		ID: "p" + newID(), Tenant: s.key.Tenant, Session: s.key.Name, SessionID: s.id, Name: name, Parent: s.rec.BaseName, Image: imageRef(image), Size: image.Size,
		Memory: true, Created: image.Created,
	}
	v := saved{Image: image, Spec: s.rec.Spec, SpecHash: s.rec.SpecHash, Request: request(ctx)}
	s.mu.Unlock()
	if row.Data, err = json.Marshal(v); err != nil {
		return Snapshot{}, fmt.Errorf("encode snapshot: %w", err)
	}
	if b := s.m.known(image.Backend); b != nil {
		row.Memory = b.Capabilities(ctx).Snapshots == sandbox.SnapshotsMemory
	}
	if err := s.name(context.WithoutCancel(ctx), row); err != nil {
		return Snapshot{}, err
	}
	failpoint("snapshot.named")
	_ = s.recount(ctx) // the next change tries again
	s.mu.Lock()
	s.emit(Event{Kind: "snapshot", Reason: "saved", Attrs: map[string]string{"name": name}}, true)
	s.mu.Unlock()
	return describe(row)
}

// name gives an image its name, and notes that the session goes back to it, in one: a session whose server is killed has done both or neither.
func (s *Session) name(ctx context.Context, row store.Snapshot) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	based := func(r *record) { r.Base, r.BaseName = row.ID, row.Name }
	own, err := s.imagined(based)
	if err != nil {
		return err
	}
	with := []store.Session{own}
	if !own.Live {
		with = nil // it has ended meanwhile, and goes nowhere
	}
	if err := s.m.store.AddSnapshot(ctx, row, with...); err != nil {
		if errors.Is(err, store.ErrExists) {
			err = snapshotExists(row.Name)
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	based(&s.rec)
	return nil
}

func snapshotExists(name string) error {
	return &sandbox.Error{Code: CodeSnapshotExists, Op: "save snapshot", Message: fmt.Sprintf("there is a snapshot %q already", name), Remedy: "delete it first, or choose another name"}
}

// mayName says why the session can have no snapshot of this name, or nil.
func (s *Session) mayName(ctx context.Context, name string) error {
	rows, err := s.m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: s.key.Tenant, Session: s.key.Name})
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Name == name {
			return snapshotExists(name)
		}
	}
	s.mu.Lock()
	limit := s.rec.Policy.Snapshots
	s.mu.Unlock()
	if len(rows) >= limit {
		return &sandbox.Error{Code: CodeLimit, Op: "save snapshot", Message: fmt.Sprintf("the session has its %d snapshots already", limit), Remedy: "delete one"}
	}
	return nil
}

// image gives an image of the session as it is now, held until release is called: that which it sleeps in, or a new one.
func (s *Session) image(ctx context.Context, kind string) (image *sandbox.Snapshot, release func(), err error) {
	for {
		if err := s.take(ctx); err != nil {
			return nil, nil, err
		}
		s.mu.Lock()
		sb, asleep := s.attachment.sandbox, s.rec.Hibernation
		labels := s.m.imageLabels(&s.rec, kind)
		if s.rec.State != Hibernated {
			asleep = nil
		}
		err := s.refusal(time.Now())
		s.mu.Unlock()
		switch {
		case err != nil:
		case asleep != nil:
			release = s.m.hold(asleep)
			s.give()
			return asleep, release, nil
		case sb != nil && alive(sb):
			image, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{Labels: labels})
			if err == nil {
				release = s.m.hold(image)
			}
			s.give()
			return image, release, s.explain(sb, err)
		}
		s.give()
		if err != nil {
			return nil, nil, err
		}
		if _, err := s.ready(ctx); err != nil { // attaches it
			return nil, nil, err
		}
	}
}

// Restore puts the session back to a snapshot of its own tenant ("name" or "session@name").
func (s *Session) Restore(ctx context.Context, ref string) error {
	err := s.restore(ctx, ref)
	s.audit(ctx, Entry{Action: "restore", Detail: ref, Error: errorCode(err)})
	return err
}

func (s *Session) restore(ctx context.Context, ref string) error {
	of, name, err := parseRef(ref, s.key.Name)
	if err != nil {
		return err
	}
	if err := s.made(ctx); err != nil {
		return err
	}
	row, err := s.m.findSnapshot(ctx, s.key.Tenant, of, name)
	if err != nil {
		return err
	}
	v, err := savedOf(row)
	if err != nil {
		return err
	}
	defer s.m.hold(v.Image)()
	b := s.m.known(v.Image.Backend)
	if b == nil {
		return &sandbox.Error{Code: sandbox.CodeBackendUnknown, Op: "restore snapshot", Message: "it is of backend " + v.Image.Backend + ", which is not configured"}
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if err := s.seize(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeWait)
	defer cancel()
	return s.swap(ctx, b, row, v)
}

// seize keeps everybody from the sandbox, if nobody uses it.
//
// Preconditions: the turn is taken.
func (s *Session) seize() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.rec.State.Live() {
		return s.refusal(time.Now())
	}
	if s.calls > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeBusy, Op: "restore snapshot", Message: "a cell, a command or a transfer is under way", Remedy: "wait for it, or cancel it", Retry: true,
		}
	}
	s.attachment.reserve()
	return nil
}

// swap puts a sandbox made from a snapshot in the place of the session's own. Until the store knows of the new one, the old one counts.
//
// Preconditions: the turn is taken, and the sandbox seized.
func (s *Session) swap(ctx context.Context, b sandbox.Backend, row store.Snapshot, v saved) error {
	s.mu.Lock()
	next := s.rec
	s.mu.Unlock()
	next.Spec, next.SpecHash = v.Spec, v.SpecHash
	sb, err := sandbox.Restore(ctx, b, v.Image, sandbox.RestoreOptions{Labels: s.m.labels(&next)})
	if err != nil {
		s.thaw()
		return err
	}
	failpoint("restore.made")
	if err := s.promise(ctx, func(r *record) { r.Backend, r.Sandbox, r.Spec, r.SpecHash = b.Name(), sb.ID(), v.Spec, v.SpecHash }); err != nil {
		s.thaw()
		return joined(err, sb.Close())
	}
	failpoint("restore.saved")
	s.mu.Lock()
	old, oldID, oldBackend, oldImage := s.attachment.sandbox, s.rec.Sandbox, s.rec.Backend, s.rec.Hibernation
	s.mu.Unlock()
	s.adopt(sb, true, func() {
		r := &s.rec
		if !s.become(Ready, "restored from snapshot "+row.Session+"@"+row.Name) {
			return // it has ended meanwhile, and whoever ended it waits for the turn to clean up
		}
		if r.Since.IsZero() {
			r.Since = time.Now().UTC()
		}
		r.Backend, r.Spec, r.SpecHash, r.Hibernation, r.Slept = b.Name(), v.Spec, v.SpecHash, nil, time.Time{}
		r.Base, r.BaseName, r.StateFrom, r.Hopeless, r.Losses = row.ID, row.Name, nil, false, nil
		r.Used = time.Now().UTC()
		s.background = nil
		s.emit(Event{Kind: "restored", Reason: "by hand", Attrs: map[string]string{"snapshot": row.Session + "@" + row.Name}}, true)
	})
	_ = s.save(ctx) // told there, and tried again; it is restored already
	s.leave(oldID)
	switch known := s.m.known(oldBackend); {
	case old != nil:
		err = old.Close()
	case oldID != "" && known != nil:
		err = known.Stop(ctx, oldID)
	}
	failpoint("restore.stopped")
	if oldImage != nil {
		s.m.dropImage(ctx, oldImage)
	}
	return err
}

// makeFrom makes a new session from a snapshot.
func (s *Session) makeFrom(ctx context.Context, c creation) error {
	of, name, err := parseRef(c.From, s.key.Name)
	if err != nil {
		return err
	}
	row, err := s.m.findSnapshot(ctx, s.key.Tenant, of, name)
	if err != nil {
		return err
	}
	v, err := savedOf(row)
	if err != nil {
		return err
	}
	if c.ownSpec && c.specHash != v.SpecHash {
		return &sandbox.Error{Code: CodeSpecConflict, Op: "open session", Message: fmt.Sprintf("snapshot %s differs in %s", c.From, differing(*c.Spec, v.Spec)), Remedy: "ask without a spec"}
	}
	if c.Backend != "" && c.Backend != v.Image.Backend {
		return &sandbox.Error{Code: CodeSpecConflict, Op: "open session", Message: fmt.Sprintf("snapshot %s is of %s, not %s", c.From, v.Image.Backend, c.Backend)}
	}
	defer s.m.hold(v.Image)()
	s.mu.Lock()
	s.rec.Spec, s.rec.SpecHash, s.rec.Base, s.rec.BaseName = v.Spec, v.SpecHash, row.ID, row.Name
	s.mu.Unlock()
	return s.makeCopy(ctx, v.Image, c.Vars)
}

// makeCopy makes a new session from an image that somebody holds.
func (s *Session) makeCopy(ctx context.Context, image *sandbox.Snapshot, vars map[string]string) error {
	b, err := s.m.backend(ctx, image.Backend)
	if err != nil {
		return err
	}
	if err := s.register(ctx, b.Name(), vars); err != nil {
		return err
	}
	s.mu.Lock()
	labels := s.m.labels(&s.rec)
	s.mu.Unlock()
	sb, err := sandbox.Restore(ctx, b, image, sandbox.RestoreOptions{Labels: labels})
	if err != nil {
		return err
	}
	failpoint("create.made")
	s.adopt(sb, true, nil)
	return nil
}
