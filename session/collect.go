package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// collectAge is how old an image or a sandbox of this manager must be before it counts as left over. The store may
	// not have a younger one yet.
	collectAge = 10 * time.Minute
	// repliesKept is how long replies to idempotent requests are kept.
	repliesKept = 24 * time.Hour
)

// collectDelays are the pauses before a new manager collects again what its predecessor left. A backend that is a
// service of its own finishes the requests of a killed manager, such as an image or a container, after the first
// inventory.
var collectDelays = []time.Duration{2 * time.Second, 10 * time.Second, time.Minute}

// collectLate removes images and sandboxes of an earlier manager that appeared after the inventory.
func (m *Manager) collectLate() {
	for _, pause := range collectDelays {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
		var c Collected
		err := errors.Join(
			m.collectImages(m.ctx, &c, m.madeByEarlierManager),
			m.collectStrays(m.ctx, &c, m.madeByEarlierManager),
		)
		if err != nil && m.ctx.Err() == nil {
			m.log.WarnContext(m.ctx, "collection after the restart failed", "error", err)
		}
	}
}

// madeByEarlierManager reports whether the labels of an image or a sandbox are those of an earlier manager of this
// instance.
func (m *Manager) madeByEarlierManager(labels map[string]string, _ time.Time) bool {
	return labels[labelInstance] == m.instance && labels[labelMaker] != m.maker
}

// removable reports whether an image or a sandbox belongs to this instance and is old enough that the store would have
// it if it were needed.
func (m *Manager) removable(labels map[string]string, made time.Time) bool {
	return m.madeByEarlierManager(labels, made) || labels[labelInstance] == m.instance && time.Since(made) >= collectAge
}

// GC removes what is no longer needed: records and audit entries past their retention, images that no snapshot needs,
// and sandboxes that belong to no session. It returns what it removed.
func (m *Manager) GC(ctx context.Context) (Collected, error) {
	var c Collected
	var errs []error
	for _, f := range []func(context.Context, *Collected) error{m.collectRecords, m.collectLog} {
		errs = append(errs, f(ctx, &c))
	}
	m.backendMu.Lock()
	pools := slices.Collect(maps.Values(m.pools))
	m.backendMu.Unlock()
	for _, p := range pools {
		c.Strays += p.Sweep()
	}
	errs = append(
		errs,
		m.collectImages(ctx, &c, m.removable),
		m.collectStrays(ctx, &c, m.removable),
		m.collectForeign(ctx, &c),
		m.collectVolumes(ctx, &c),
		m.collectFiles(ctx, &c),
	)
	return c, errors.Join(errs...)
}

// retention returns the time before which something is removed; ok is false if it is kept for ever.
func retention(configured, byDefault time.Duration) (before time.Time, ok bool) {
	switch configured {
	case v1.NoLimit:
		return time.Time{}, false
	case 0:
		configured = byDefault
	}
	return time.Now().Add(-configured), true
}

// collectRecords removes ended sessions past their retention, with their snapshots, unless a live session has the same
// key.
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

// collectImages removes the images that may allows and that nothing needs.
func (m *Manager) collectImages(
	ctx context.Context, c *Collected, may func(labels map[string]string, made time.Time) bool,
) error {
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := askBackend(ctx, b, m.opts.searchWait, b.Snapshots)
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
			if !may(i.Labels, i.Created) || needed[imageRef(i)] > 0 || m.imageInUse(i) {
				continue
			}
			gone, err := m.removeImage(ctx, i)
			if v1.CodeOf(err) == v1.CodeBackendMissing {
				errs = append(errs, err) // the next image would time out, too
				break
			}
			if gone {
				c.Snapshots++
				c.Bytes += i.Size
			}
		}
	}
	return errors.Join(errs...)
}

// collectStrays ends the sandboxes that may allows and that belong to no session.
func (m *Manager) collectStrays(
	ctx context.Context, c *Collected, may func(labels map[string]string, made time.Time) bool,
) error {
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := askBackend(ctx, b, m.opts.searchWait, b.List)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		live := map[string]*Session{}
		for _, s := range m.sessions() {
			live[s.id] = s
		}
		for _, i := range list {
			if !may(i.Labels, i.Created) && !m.dead(i) || m.belongs(i, live[i.Labels[labelSessionID]]) {
				continue
			}
			err := m.endStray(ctx, i)
			if err == nil {
				c.Strays++
			}
			if v1.CodeOf(err) == v1.CodeBackendMissing {
				errs = append(errs, err)
				break // the next one would time out, too
			}
		}
	}
	return errors.Join(errs...)
}

// dead reports whether a sandbox belongs to this instance and does not run, although its creation must be over.
func (m *Manager) dead(i sandbox.Info) bool {
	return !i.Running && i.Labels[labelInstance] == m.instance && time.Since(i.Created) > makeWait(i.Spec.Limits)
}

// belongs reports whether a sandbox is needed. s is the live session whose id is in the labels of the sandbox, or nil.
// The sandbox then belongs to that session or, if it has no session id and runs, to the pool of this manager.
func (m *Manager) belongs(i sandbox.Info, s *Session) bool {
	ours := i.Labels[labelMaker] == m.maker
	if s == nil {
		return ours && i.Labels[labelSessionID] == "" && i.Running
	}
	return ours || s.claims(i.ID)
}

// claims reports whether a sandbox that an earlier manager created for the session is the session's sandbox, or may
// turn out to be. If claims returns false, that never changes: this manager creates all later sandboxes of the session.
func (s *Session) claims(id string) bool {
	select {
	case s.turn <- struct{}{}:
		defer s.releaseTurn()
	default:
		return true // the sandbox is being changed; the next collection decides
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attachment.isUnknown() || s.rec.Sandbox == "" || s.rec.Sandbox == id
}

// collectLog removes old entries of the audit log, old replies and expired tokens.
func (m *Manager) collectLog(ctx context.Context, c *Collected) error {
	var errs []error
	if before, ok := retention(m.opts.AuditKept, DefaultAuditKept); ok {
		n, err := m.store.TrimEntries(ctx, before)
		c.Entries, errs = n, append(errs, err)
	}
	_, err := m.store.TrimReplies(ctx, time.Now().Add(-repliesKept))
	return errors.Join(append(errs, err, m.store.DropTokens(ctx, ""))...)
}
