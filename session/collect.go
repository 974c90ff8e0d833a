package session

import (
	"context"
	"errors"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// collectAge is how old an image or a sandbox that this manager made must be before it can be taken for left over: it may be about to
	// tell the store.
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

// lateLooks are the pauses before a new manager looks once more for what its predecessor left. A backend that is a service of its own
// finishes what a killed manager has asked it for, also after the first look: an image, a container.
var lateLooks = []time.Duration{2 * time.Second, 10 * time.Second, time.Minute}

// lookAgain removes what came late.
func (m *Manager) lookAgain() {
	for _, pause := range lateLooks {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
		var c Collected
		err := errors.Join(m.collectImages(m.ctx, &c, m.others), m.collectStrays(m.ctx, &c, m.others))
		if err != nil && m.ctx.Err() == nil {
			m.log.WarnContext(m.ctx, "what an earlier manager may have left could not be looked for", "error", err)
		}
	}
}

// others says of the labels of an image or a sandbox that an earlier manager of this instance made it.
func (m *Manager) others(labels map[string]string, _ time.Time) bool {
	return labels[labelInstance] == m.instance && labels[labelMaker] != m.maker
}

// old says that it is ours and that nobody is about to tell the store of it.
func (m *Manager) old(labels map[string]string, made time.Time) bool {
	return m.others(labels, made) || labels[labelInstance] == m.instance && time.Since(made) >= collectAge
}

// GC removes what nothing needs: records past their retention, snapshots nobody names, strays.
func (m *Manager) GC(ctx context.Context) (Collected, error) {
	var c Collected
	var errs []error
	for _, f := range []func(context.Context, *Collected) error{m.collectRecords, m.collectLog} {
		errs = append(errs, f(ctx, &c))
	}
	errs = append(errs, m.collectImages(ctx, &c, m.old), m.collectStrays(ctx, &c, m.old))
	return c, errors.Join(errs...)
}

func retention(set, otherwise time.Duration) (time.Time, bool) {
	switch set {
	case sandbox.NoLimit:
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

// collectImages removes images that may be left over and that nobody needs.
func (m *Manager) collectImages(ctx context.Context, c *Collected, may func(labels map[string]string, made time.Time) bool) error {
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := asked(ctx, b, m.opts.searchWait, b.Snapshots)
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
			if !may(i.Labels, i.Created) || needed[imageRef(i)] > 0 || m.sleptIn(i) {
				continue
			}
			gone, err := m.removeImage(ctx, i)
			if sandbox.CodeOf(err) == sandbox.CodeBackendMissing {
				errs = append(errs, err) // the next one would be waited for in vain, too
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

// collectStrays ends sandboxes that may be left over and belong to nobody.
func (m *Manager) collectStrays(ctx context.Context, c *Collected, may func(labels map[string]string, made time.Time) bool) error {
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := asked(ctx, b, m.opts.searchWait, b.List)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		live := map[string]*Session{}
		for _, s := range m.sessions() {
			live[s.id] = s
		}
		for _, i := range list {
			if !may(i.Labels, i.Created) || m.wanted(i, live[i.Labels[labelSessionID]]) {
				continue
			}
			err := m.endStray(ctx, i)
			if err == nil {
				c.Strays++
			}
			if sandbox.CodeOf(err) == sandbox.CodeBackendMissing {
				errs = append(errs, err)
				break // it would be the same with the others
			}
		}
	}
	return errors.Join(errs...)
}

// wanted says whether a sandbox belongs to somebody: to this manager's pool, or to the live session whose id it bears, if there is one.
func (m *Manager) wanted(i sandbox.Info, s *Session) bool {
	ours := i.Labels[labelMaker] == m.maker
	if s == nil {
		return ours && i.Labels[labelSessionID] == ""
	}
	return ours || s.claims(i.ID)
}

// claims says whether a sandbox that an earlier manager made for the session is its own, or may turn out to be. Otherwise it never will:
// whatever else the session gets is made by this manager.
func (s *Session) claims(id string) bool {
	select {
	case s.turn <- struct{}{}:
		defer s.give()
	default:
		return true // somebody is changing the sandbox, and the next look tells
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attachment.isUnknown() || s.rec.Sandbox == "" || s.rec.Sandbox == id
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
