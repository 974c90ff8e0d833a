package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// snapshotRecord is what the store keeps about a named snapshot beside its columns.
type snapshotRecord struct {
	Image    *sandbox.Snapshot `json:"image"`
	Spec     sandbox.Spec      `json:"spec"`
	SpecHash string            `json:"spec_hash"`
	Request  string            `json:"request,omitempty"` // id of the request that took it, if a client may repeat that
	APIKey   string            `json:"api_key,omitempty"` // id of the API key whose quota it counts for
}

// imageOf returns the image of a named snapshot.
func imageOf(row store.Snapshot) (*sandbox.Snapshot, error) {
	v, err := decodeSnapshot(row)
	return v.Image, err
}

func decodeSnapshot(row store.Snapshot) (v snapshotRecord, err error) {
	if err := json.Unmarshal(row.Data, &v); err != nil || v.Image == nil {
		return v, &v1.Error{
			Code:    v1.CodeStoreCorrupt,
			Op:      "read snapshot",
			Message: fmt.Sprintf("invalid record of snapshot %q", row.ID),
			Err:     err,
		}
	}
	return v, nil
}

// describe returns a snapshot as callers see it.
func describe(row store.Snapshot) (Snapshot, error) {
	v, err := decodeSnapshot(row)
	return Snapshot{
		ID:      row.ID,
		Session: row.Session,
		Name:    row.Name,
		Parent:  row.Parent,
		Size:    row.Size,
		Memory:  row.Memory,
		Created: row.Created,
		Spec:    v.Spec,
	}, err
}

// Snapshots lists the snapshots of a session, even of an ended one. If key.Name is empty, it lists those of the tenant.
func (m *Manager) Snapshots(ctx context.Context, key Key) ([]Snapshot, error) {
	key = withTenant(key)
	if key.Name != "" && !m.holds(key) {
		if err := checkKey(key); err != nil {
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

// findSnapshot returns a snapshot by name.
func (m *Manager) findSnapshot(ctx context.Context, tenant, session, name string) (store.Snapshot, error) {
	rows, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: tenant, Session: session, Name: name})
	if err == nil && len(rows) == 0 {
		err = &v1.Error{
			Code:    v1.CodeSnapshotNotFound,
			Op:      "find snapshot",
			Message: fmt.Sprintf("no snapshot %s@%s", session, name),
			Remedy:  "list snapshots",
		}
	}
	if err != nil {
		return store.Snapshot{}, err
	}
	return rows[0], nil
}

// findRef returns the snapshot for a reference: "name" of the session of the key, or "session@name" of its tenant.
func (m *Manager) findRef(ctx context.Context, key Key, ref string) (row store.Snapshot, v snapshotRecord, err error) {
	of, name, err := parseRef(ref, key.Name)
	if err == nil {
		row, err = m.findSnapshot(ctx, key.Tenant, of, name)
	}
	if err == nil {
		v, err = decodeSnapshot(row)
	}
	return row, v, err
}

// DeleteSnapshot removes a snapshot, and its image if nothing else needs it. Name "*" removes all snapshots of the
// session.
func (m *Manager) DeleteSnapshot(ctx context.Context, key Key, name string) error {
	key = withTenant(key)
	if err := checkKey(key); err != nil && !m.holds(key) {
		return err
	}
	var err error
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
	m.audit(ctx, Entry{
		Tenant:  key.Tenant,
		Session: key.Name,
		Action:  "snapshot.delete",
		Detail:  name,
		Error:   errorCode(err),
	})
	return err
}

// dropSnapshots removes snapshots, and the images that nothing needs then.
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

// recountSnapshots updates the number of snapshots of a live session.
func (m *Manager) recountSnapshots(ctx context.Context, key Key) {
	m.mu.Lock()
	s := m.live[key]
	m.mu.Unlock()
	if s == nil {
		return
	}
	_ = s.countSnapshots(ctx) // the next change tries again
}

// countSnapshots reads the number of the session's snapshots from the store. Only one goroutine does so at a time, so
// that an older count does not overwrite a newer one.
func (s *Session) countSnapshots(ctx context.Context) error {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	q := store.SnapshotQuery{Tenant: s.key.Tenant, Session: s.key.Name}
	rows, err := s.m.store.FindSnapshots(context.WithoutCancel(ctx), q)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshotCount = len(rows)
	return nil
}

// Save takes a snapshot and gives it a name. The session keeps running. A hibernated session stays hibernated, and its
// image becomes the snapshot.
func (s *Session) Save(ctx context.Context, name string) (Snapshot, error) {
	snap, err := s.saveAs(ctx, name)
	s.audit(ctx, Entry{Action: "snapshot", Detail: name, Error: errorCode(err)})
	return snap, err
}

func (s *Session) saveAs(ctx context.Context, name string) (Snapshot, error) {
	if err := checkName("snapshot", name); err != nil {
		return Snapshot{}, err
	}
	if err := s.awaitCreated(ctx); err != nil {
		return Snapshot{}, err
	}
	if err := s.beginUse(true, false); err != nil {
		return Snapshot{}, err
	}
	defer s.endUse(true, 0)
	// One at a time, so that the limit is not exceeded and a name is used once.
	s.namingMu.Lock()
	defer s.namingMu.Unlock()
	if snap, found, err := s.snapshotBy(ctx, name); found || err != nil {
		return snap, err
	}
	if err := s.checkSnapshotName(ctx, name); err != nil {
		return Snapshot{}, err
	}
	quotaOwner := ownerOf(ctx, s.key.Tenant)
	if err := s.m.checkSnapshot(ctx, quotaOwner, 0, nil); err != nil { // before it costs anything
		return Snapshot{}, err
	}
	image, release, err := s.takeImage(ctx, kindSnapshot)
	if err != nil {
		return Snapshot{}, err
	}
	defer release()
	failpoint("snapshot.written")
	s.mu.Lock()
	row := store.Snapshot{
		ID:        "p" + newID(),
		Tenant:    s.key.Tenant,
		Session:   s.key.Name,
		SessionID: s.id,
		Name:      name,
		Parent:    s.rec.BaseName,
		Image:     imageRef(image),
		Size:      image.Size,
		Memory:    true,
		Created:   image.Created,
	}
	v := snapshotRecord{
		Image:    image,
		Spec:     s.rec.Spec,
		SpecHash: s.rec.SpecHash,
		Request:  requestID(ctx),
		APIKey:   quotaOwner.Key,
	}
	s.mu.Unlock()
	if row.Data, err = json.Marshal(v); err != nil {
		return Snapshot{}, fmt.Errorf("encode snapshot: %w", err)
	}
	if b := s.m.known(image.Backend); b != nil {
		row.Memory = canHibernate(ctx, b)
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.m.checkSnapshot(ctx, quotaOwner, row.Size, func() error { return s.nameImage(ctx, row) }); err != nil {
		return Snapshot{}, err
	}
	failpoint("snapshot.named")
	_ = s.countSnapshots(ctx) // the next change tries again
	s.mu.Lock()
	s.emit(Event{Kind: "snapshot", Reason: "saved", Attrs: map[string]string{"name": name}}, true)
	s.mu.Unlock()
	return describe(row)
}

// nameImage writes a named snapshot, and makes it the one that the session is restored from after a loss, in one
// transaction.
func (s *Session) nameImage(ctx context.Context, row store.Snapshot) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	based := func(r *record) { r.Base, r.BaseName = row.ID, row.Name }
	own, err := s.plannedRow(based)
	if err != nil {
		return err
	}
	with := []store.Session{own}
	if !own.Live {
		with = nil // the session has ended meanwhile
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
	return &v1.Error{
		Code:    v1.CodeSnapshotExists,
		Op:      "save snapshot",
		Message: fmt.Sprintf("snapshot %q already exists", name),
		Remedy:  "delete it first, or choose another name",
	}
}

// checkSnapshotName returns an error if the name is taken, or the session has as many snapshots as its policy allows.
func (s *Session) checkSnapshotName(ctx context.Context, name string) error {
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
		return &v1.Error{
			Code:    v1.CodeSessionLimit,
			Op:      "save snapshot",
			Message: fmt.Sprintf("limit of %d snapshots reached", limit),
			Remedy:  "delete one",
		}
	}
	return nil
}
