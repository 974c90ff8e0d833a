package server

import (
	"net/http"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// listSnapshots gives those of a session, or without one those of the tenant. They outlive their session, so it need not be live.
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
	if len(list) == 0 && c.key().Name != "" { // none, or no such session
		if _, err := c.session(); err != nil {
			return v1.SnapshotPage{}, err
		}
	}
	var out v1.SnapshotPage
	out.Snapshots, out.Next = paged(c, list, func(s session.Snapshot) string { return place(s.Session, s.Created, s.ID) })
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
	if _, err := listSnapshots(c, none{}); err != nil { // a session nobody knows is no success
		return none{}, err
	}
	return dropSnapshots(c, "*")
}

func dropSnapshots(c *call, name string) (none, error) {
	if c.r.PathValue("snapshot") == "*" {
		return none{}, &v1.Error{Code: v1.CodeSnapshotNotFound, Op: "delete snapshot", Message: "there is no such snapshot"}
	}
	if c.who.session != "" {
		if _, err := c.session(); err != nil {
			return none{}, err
		}
	}
	return none{}, c.s.manager.DeleteSnapshot(c.ctx(), c.key(), name)
}

func restoreSnapshot(c *call, ses *session.Session, in v1.RestoreRequest) (session.Info, error) {
	// A snapshot holds the memory of its session, which a token of another one must not come to see.
	if of, _, found := strings.Cut(in.Ref, "@"); found && c.who.session != "" && of != c.who.session {
		return session.Info{}, &v1.Error{Code: v1.CodeForbidden, Op: "restore snapshot", Message: "a session's token is good for the snapshots of its session only"}
	}
	if err := ses.Restore(c.ctx(), in.Ref); err != nil {
		return session.Info{}, err
	}
	return ses.Info(), nil
}

// forkSession makes live copies.
func forkSession(c *call, ses *session.Session, in v1.ForkRequest) (v1.Forked, error) {
	if c.who.session != "" { // the copies would be sessions it may not touch, and nobody would end them
		return v1.Forked{}, &v1.Error{Code: v1.CodeForbidden, Op: "fork session", Message: "a session's token makes no sessions", Remedy: "use a key"}
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
		c.s.metrics.created(info.Backend, took) // all at once
		out.Sessions = append(out.Sessions, info)
	}
	c.status = http.StatusCreated
	return out, nil
}
