package store

import (
	"context"
	"database/sql"
)

// AddSnapshot implements Snapshots.
func (s *SQLite) AddSnapshot(ctx context.Context, r Snapshot, changed ...Session) error {
	return s.change(ctx, "add snapshot", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO snapshots (id, tenant, session, session_id, name, parent, image, size, memory, created, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.Tenant, r.Session, r.SessionID, r.Name, r.Parent, r.Image, r.Size, r.Memory, stamp(r.Created), r.Data)
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
		err = rows.Scan(&r.ID, &r.Tenant, &r.Session, &r.SessionID, &r.Name, &r.Parent, &r.Image, &r.Size, &r.Memory, &created, &r.Data)
		r.Created = moment(created)
		return r, err
	}
	return rowsOf(ctx, s, "find snapshots", scan,
		"SELECT id, tenant, session, session_id, name, parent, image, size, memory, created, data FROM snapshots"+w.text+" ORDER BY tenant, session, created, id", w.args...)
}

// DropSnapshots implements Snapshots.
func (s *SQLite) DropSnapshots(ctx context.Context, ids ...string) error {
	return s.change(ctx, "drop snapshot", func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "DELETE FROM snapshots WHERE id = ?", id); err != nil {
				return err
			}
		}
		return nil
	})
}

// needed is every need of an image.
const needed = "SELECT image FROM snapshots UNION ALL SELECT image FROM sessions WHERE image <> ''"

// Images implements Snapshots.
func (s *SQLite) Images(ctx context.Context) (map[string]int, error) {
	scan := func(rows *sql.Rows) (image string, err error) {
		err = rows.Scan(&image)
		return image, err
	}
	all, err := rowsOf(ctx, s, "count images", scan, needed)
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, i := range all {
		out[i]++
	}
	return out, nil
}

// ImageUses implements Snapshots.
func (s *SQLite) ImageUses(ctx context.Context, image string) (n int, err error) {
	err = s.write.QueryRowContext(ctx, "SELECT count(*) FROM ("+needed+") WHERE image = ?", image).Scan(&n)
	return n, s.explain("count images", err)
}
