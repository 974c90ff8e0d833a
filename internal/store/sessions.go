package store

import (
	"context"
	"database/sql"
	"time"
)

// SaveSessions implements Sessions.
func (s *SQLite) SaveSessions(ctx context.Context, all ...Session) error {
	return s.transaction(ctx, "save session", func(tx *sql.Tx) error { return saveSessions(ctx, tx, all) })
}

func saveSessions(ctx context.Context, tx *sql.Tx, all []Session) error {
	now := toNanos(time.Now())
	for _, r := range all {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO sessions (id, tenant, name, state, live, image, ended, changed, data)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET
				state = excluded.state, live = excluded.live, image = excluded.image,
				ended = excluded.ended, changed = excluded.changed, data = excluded.data`,
			r.ID, r.Tenant, r.Name, r.State, r.Live, r.Image, toNanos(r.Ended), now, r.Data)
		if err != nil {
			return err
		}
	}
	return nil
}

// FindSessions implements Sessions.
func (s *SQLite) FindSessions(ctx context.Context, q SessionQuery) ([]Session, error) {
	var w where
	w.and(q.ID != "", "id = ?", q.ID)
	w.and(q.Tenant != "", "tenant = ?", q.Tenant)
	w.and(q.Name != "", "name = ?", q.Name)
	w.and(q.Live, "live = 1")
	w.and(q.Dead, "live = 0")
	w.and(!q.EndedBefore.IsZero(), "live = 0 AND ended < ?", toNanos(q.EndedBefore))
	scan := func(rows *sql.Rows) (r Session, err error) {
		var ended, changed int64
		err = rows.Scan(&r.ID, &r.Tenant, &r.Name, &r.State, &r.Live, &r.Image, &ended, &changed, &r.Data)
		r.Ended, r.Changed = fromNanos(ended), fromNanos(changed)
		return r, err
	}
	return queryRows(ctx, s, "find sessions", scan,
		"SELECT id, tenant, name, state, live, image, ended, changed, data FROM sessions"+w.text+
			" ORDER BY tenant, name, live DESC, ended DESC, id"+w.limit(q.Limit), w.args...)
}

// DropSessions implements Sessions.
func (s *SQLite) DropSessions(ctx context.Context, ids ...string) error {
	return s.drop(ctx, "drop session", ids,
		"DELETE FROM sessions WHERE id = ?",
		"DELETE FROM events WHERE session = ?",
		"DELETE FROM tokens WHERE session = ?")
}

// SetVars implements Vars.
func (s *SQLite) SetVars(ctx context.Context, session string, vars map[string]string) error {
	return s.transaction(ctx, "set variable", func(tx *sql.Tx) error {
		for name, value := range vars {
			_, err := tx.ExecContext(ctx, `
				INSERT INTO vars (session, name, value) VALUES (?, ?, ?)
				ON CONFLICT DO UPDATE SET value = excluded.value`,
				session, name, value)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Vars implements Vars.
func (s *SQLite) Vars(ctx context.Context, session string) (map[string]string, error) {
	return queryMap[string](ctx, s, "read variables", "SELECT name, value FROM vars WHERE session = ?", session)
}

// DeleteVar implements Vars.
func (s *SQLite) DeleteVar(ctx context.Context, session, name string) (found bool, err error) {
	n, err := s.exec(ctx, "delete variable", "DELETE FROM vars WHERE session = ? AND name = ?", session, name)
	return n > 0, err
}
