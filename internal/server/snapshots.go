package server

import (
	"net/http"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// listSnapshots returns a page of the snapshots of a session, or of the tenant if the path has no session. Snapshots
// outlive their session, so the session may have ended.
func listSnapshots(c *call, _ none) (v1.SnapshotPage, error) {
	if c.who.session != "" {
		if _, err := c.session(); err != nil {
			return v1.SnapshotPage{}, err
		}
	}
	list, err := c.s.manager.Snapshots(c.ctx(), c.key())
	if err != nil {
		return v1.SnapshotPage{}, err
	}
	if len(list) == 0 && c.key().Name != "" { // the session has no snapshots, or does not exist
		if _, err := c.session(); err != nil {
			return v1.SnapshotPage{}, err
		}
	}
	var out v1.SnapshotPage
	out.Snapshots, out.Next = paged(c, list, func(s session.Snapshot) string {
		return pageKey(s.Session, s.Created, s.ID)
	})
	return out, nil
}

func saveSnapshot(c *call, ses *session.Session, in v1.SaveRequest) (session.Snapshot, error) {
	snap, err := ses.Save(c.making(), in.Name)
	c.status = http.StatusCreated
	return snap, err
}

func deleteSnapshot(c *call, _ none) (none, error) {
	return dropSnapshots(c, c.r.PathValue("snapshot"))
}

func deleteSnapshots(c *call, _ none) (none, error) {
	if _, err := listSnapshots(c, none{}); err != nil { // an unknown session is an error
		return none{}, err
	}
	return dropSnapshots(c, "*")
}

// dropSnapshots removes a snapshot by name, or all snapshots of the session if name is "*".
func dropSnapshots(c *call, name string) (none, error) {
	if c.r.PathValue("snapshot") == "*" {
		return none{}, &v1.Error{Code: v1.CodeSnapshotNotFound, Op: "delete snapshot", Message: "snapshot not found"}
	}
	if c.who.session != "" {
		if _, err := c.session(); err != nil {
			return none{}, err
		}
	}
	return none{}, c.s.manager.DeleteSnapshot(c.ctx(), c.key(), name)
}

func restoreSnapshot(c *call, ses *session.Session, in v1.RestoreRequest) (session.Info, error) {
	// A snapshot contains the memory of its session, which the token of another session must not read.
	if of, _, found := strings.Cut(in.Ref, "@"); found && c.who.session != "" && of != c.who.session {
		return session.Info{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "restore snapshot",
			Message: "a session token is valid for the snapshots of its session only",
		}
	}
	if err := ses.Restore(c.ctx(), in.Ref); err != nil {
		return session.Info{}, err
	}
	return ses.Info(), nil
}

// forkSession creates live copies of a session.
func forkSession(c *call, ses *session.Session, in v1.ForkRequest) (v1.Forked, error) {
	if c.who.session != "" { // the holder of the token could neither use nor end the copies
		return v1.Forked{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "fork session",
			Message: "a session token cannot create sessions",
			Remedy:  "use a key",
		}
	}
	n := in.Count
	if n == 0 {
		n = max(1, len(in.Names))
	}
	began := time.Now()
	copies, err := ses.Fork(c.making(), n, in.Names)
	if err != nil {
		return v1.Forked{}, err
	}
	out := v1.Forked{Sessions: []session.Info{}}
	took := time.Since(began)
	for _, s := range copies {
		info := s.Info()
		c.s.metrics.created(info.Backend, took) // all copies were made at the same time
		out.Sessions = append(out.Sessions, info)
	}
	c.status = http.StatusCreated
	return out, nil
}
