package store

import (
	"context"
	"database/sql"
)

// AddSnapshot implements Snapshots.
func (s *SQLite) AddSnapshot(ctx context.Context, r Snapshot, changed ...Session) error {
	return s.transaction(ctx, "add snapshot", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO snapshots (id, tenant, session, session_id, name, parent, image, size, memory, created, data)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.Tenant, r.Session, r.SessionID, r.Name, r.Parent, r.Image, r.Size, r.Memory,
			toNanos(r.Created), r.Data)
		if err != nil {
			return err
		}
		return saveSessions(ctx, tx, changed)
	})
}

// FindSnapshots implements Snapshots.
func (s *SQLite) FindSnapshots(ctx context.Context, q SnapshotQuery) ([]Snapshot, error) {
	var w where
	w.and(q.ID != "", "id = ?", q.ID)
	w.and(q.Tenant != "", "tenant = ?", q.Tenant)
	w.and(q.Session != "", "session = ?", q.Session)
	w.and(q.SessionID != "", "session_id = ?", q.SessionID)
	w.and(q.Name != "", "name = ?", q.Name)
	scan := func(rows *sql.Rows) (r Snapshot, err error) {
		var created int64
		err = rows.Scan(&r.ID, &r.Tenant, &r.Session, &r.SessionID, &r.Name, &r.Parent, &r.Image, &r.Size, &r.Memory,
			&created, &r.Data)
		r.Created = fromNanos(created)
		return r, err
	}
	return queryRows(ctx, s, "find snapshots", scan,
		"SELECT id, tenant, session, session_id, name, parent, image, size, memory, created, data FROM snapshots"+
			w.text+" ORDER BY tenant, session, created, id", w.args...)
}

// DropSnapshots implements Snapshots.
func (s *SQLite) DropSnapshots(ctx context.Context, ids ...string) error {
	return s.drop(ctx, "drop snapshot", ids, "DELETE FROM snapshots WHERE id = ?")
}

// imageUses selects the image of every snapshot and of every hibernated session.
const imageUses = "SELECT image FROM snapshots UNION ALL SELECT image FROM sessions WHERE image <> ''"

// Images implements Snapshots.
func (s *SQLite) Images(ctx context.Context) (map[string]int, error) {
	return queryMap[int](ctx, s, "count images", "SELECT image, count(*) FROM ("+imageUses+") GROUP BY image")
}

// ImageUses implements Snapshots.
func (s *SQLite) ImageUses(ctx context.Context, image string) (n int, err error) {
	err = s.write.QueryRowContext(ctx, "SELECT count(*) FROM ("+imageUses+") WHERE image = ?", image).Scan(&n)
	return n, s.wrapError("count images", err)
}
