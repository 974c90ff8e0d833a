package session

import (
	"context"
	"errors"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// collectAge is how old an image or a sandbox must be before it can be taken for left over: its maker may be about to tell the store.
	collectAge = 10 * time.Minute
	// repliesKept is how long answers to idempotent requests are kept.
	repliesKept = 24 * time.Hour
)

// Collected is what GC removed.
type Collected struct {
	Sessions  int   `json:"sessions"`  // records of ended ones
	Snapshots int   `json:"snapshots"` // named ones of forgotten sessions, and images without a name
	Strays    int   `json:"strays"`    // sandboxes of no session
	Entries   int   `json:"entries"`   // of the audit log
	Bytes     int64 `json:"bytes"`     // of images
}

// GC removes what nothing needs: records past their retention, snapshots nobody names, strays.
func (m *Manager) GC(ctx context.Context) (Collected, error) {
	var c Collected
	var errs []error
	for _, f := range []func(context.Context, *Collected) error{m.collectRecords, m.collectImages, m.collectStrays, m.collectLog} {
		errs = append(errs, f(ctx, &c))
	}
	return c, errors.Join(errs...)
}

func retention(set, otherwise time.Duration) (time.Time, bool) {
	switch set {
	case None:
		return time.Time{}, false
	case 0:
		set = otherwise
	}
	return time.Now().Add(-set), true
}

// collectRecords forgets sessions that ended long ago, with the snapshots they left, unless a live session has taken their name.
func (m *Manager) collectRecords(ctx context.Context, c *Collected) error {
	before, ok := retention(m.opts.RecordsKept, DefaultRecordsKept)
	if !ok {
		return nil
	}
	rows, err := m.store.FindSessions(ctx, store.SessionQuery{EndedBefore: before})
	if err != nil {
		return err
	}
	for _, row := range rows {
		key := Key{Tenant: row.Tenant, Name: row.Name}
		m.mu.Lock()
		taken := m.live[key] != nil
		m.mu.Unlock()
		if taken {
			continue
		}
		snaps, err := m.store.FindSnapshots(ctx, store.SnapshotQuery{SessionID: row.ID})
		if err != nil {
			return err
		}
		for _, s := range snaps {
			c.Bytes += s.Size
		}
		c.Snapshots += len(snaps)
		if err := m.dropSnapshots(ctx, snaps); err != nil {
			return err
		}
		if err := m.store.DropSessions(ctx, row.ID); err != nil {
			return err
		}
		c.Sessions++
	}
	return nil
}

// collectImages removes images of ours that nobody needs.
func (m *Manager) collectImages(ctx context.Context, c *Collected) error {
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := b.Snapshots(ctx)
		if err != nil {
			if !errors.Is(err, sandbox.ErrNotSupported) {
				errs = append(errs, err)
			}
			continue
		}
		needed, err := m.store.Images(ctx)
		if err != nil {
			return err
		}
		for _, i := range list {
			if i.Labels[labelInstance] != m.instance || needed[imageRef(i)] > 0 || time.Since(i.Created) < collectAge || m.sleptIn(i) {
				continue
			}
			m.dropImage(ctx, i)
			c.Snapshots++
			c.Bytes += i.Size
		}
	}
	return errors.Join(errs...)
}

// collectStrays ends sandboxes of ours that belong to no session. Those of the pool belong to none yet, unless they are older than this manager.
func (m *Manager) collectStrays(ctx context.Context, c *Collected) error {
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := b.List(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		known := map[string]bool{}
		for _, s := range m.sessions() {
			known[s.id] = true
		}
		for _, i := range list {
			id := i.Labels[labelSessionID]
			pooled := id == "" && i.Created.After(m.started)
			if i.Labels[labelInstance] != m.instance || pooled || known[id] || time.Since(i.Created) < collectAge && i.Created.After(m.started) {
				continue
			}
			if m.endStray(ctx, i) {
				c.Strays++
			}
		}
	}
	return errors.Join(errs...)
}

// collectLog trims what only grows.
func (m *Manager) collectLog(ctx context.Context, c *Collected) error {
	var errs []error
	if before, ok := retention(m.opts.AuditKept, DefaultAuditKept); ok {
		n, err := m.store.TrimEntries(ctx, before)
		c.Entries, errs = n, append(errs, err)
	}
	_, err := m.store.TrimReplies(ctx, time.Now().Add(-repliesKept))
	return errors.Join(append(errs, err, m.store.DropTokens(ctx, ""))...)
}
