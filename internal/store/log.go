package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"
)

// Append implements Log.
func (s *SQLite) Append(ctx context.Context, b Batch) error {
	if len(b.Events)+len(b.Entries) == 0 {
		return nil
	}
	return s.transaction(ctx, "append to log", func(tx *sql.Tx) error {
		if err := appendEvents(ctx, tx, b.Events); err != nil {
			return err
		}
		if err := appendEntries(ctx, tx, b.Entries); err != nil || b.Mark == 0 {
			return err
		}
		_, err := tx.ExecContext(ctx, `
			INSERT INTO meta (name, value) VALUES (?, ?)
			ON CONFLICT (name) DO UPDATE SET value = excluded.value`,
			metaMark, strconv.FormatInt(b.Mark, 10))
		return err
	})
}

// metaMark is the name of the row of meta that has the mark of the latest batch.
const metaMark = "log_mark"

// Marked implements Log.
func (s *SQLite) Marked(ctx context.Context) (int64, error) {
	var text string
	err := s.read.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", metaMark).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, s.wrapError("read mark of log", err)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, corrupt(s.path, err)
	}
	return n, nil
}

func appendEvents(ctx context.Context, tx *sql.Tx, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	stmt, err := tx.PrepareContext(ctx, "INSERT OR IGNORE INTO events (session, seq, time, data) VALUES (?, ?, ?, ?)")
	if err != nil {
		return err
	}
	defer stmt.Close()
	for _, e := range events {
		if _, err := stmt.ExecContext(ctx, e.Session, e.Seq, toNanos(e.Time), e.Data); err != nil {
			return err
		}
	}
	return nil
}

func appendEntries(ctx context.Context, tx *sql.Tx, entries []Entry) error {
	if len(entries) == 0 {
		return nil
	}
	stmt, err := tx.PrepareContext(ctx, `
		INSERT INTO audit (time, tenant, session, actor, action, detail, digest, op, verdict, gate, error,
			stdout, stderr, duration)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return err
	}
	defer stmt.Close()
	for _, e := range entries {
		_, err := stmt.ExecContext(ctx,
			toNanos(e.Time), e.Tenant, e.Session, e.Actor, e.Action, e.Detail, e.Digest, e.Op, e.Verdict, e.Gate,
			e.Error, e.Stdout, e.Stderr, int64(e.Duration))
		if err != nil {
			return err
		}
	}
	return nil
}

// Events implements Log.
func (s *SQLite) Events(ctx context.Context, session string, after int64, limit int) ([]Event, error) {
	var w where
	w.and(true, "session = ? AND seq > ?", session, after)
	scan := func(rows *sql.Rows) (e Event, err error) {
		var at int64
		err = rows.Scan(&e.Session, &e.Seq, &at, &e.Data)
		e.Time = fromNanos(at)
		return e, err
	}
	return queryRows(ctx, s, "read events", scan,
		"SELECT session, seq, time, data FROM events"+w.text+" ORDER BY seq"+w.limit(limit), w.args...)
}

// LastEvent implements Log.
func (s *SQLite) LastEvent(ctx context.Context) (map[string]int64, error) {
	return queryMap[int64](ctx, s, "read events", "SELECT session, max(seq) FROM events GROUP BY session")
}

// Entries implements Log.
func (s *SQLite) Entries(ctx context.Context, q EntryQuery) ([]Entry, error) {
	var w where
	w.and(q.Tenant != "", "tenant = ?", q.Tenant)
	w.and(q.Session != "", "session = ?", q.Session)
	w.and(q.Actor != "", "actor = ?", q.Actor)
	w.and(q.Action != "", "action = ?", q.Action)
	w.and(q.Op != "", "op = ?", q.Op)
	w.and(q.After > 0, "id > ?", q.After)
	w.and(!q.Since.IsZero(), "time >= ?", toNanos(q.Since))
	if q.Last > 0 {
		inner := "SELECT id FROM audit" + w.text + " ORDER BY id DESC" + w.limit(q.Last)
		w.text = " WHERE id IN (" + inner + ")"
	}
	scan := func(rows *sql.Rows) (e Entry, err error) {
		var at, took int64
		err = rows.Scan(
			&e.ID, &at, &e.Tenant, &e.Session, &e.Actor, &e.Action, &e.Detail, &e.Digest, &e.Op, &e.Verdict, &e.Gate,
			&e.Error, &e.Stdout, &e.Stderr, &took,
		)
		e.Time, e.Duration = fromNanos(at), time.Duration(took)
		return e, err
	}
	return queryRows(ctx, s, "read audit log", scan, `
		SELECT id, time, tenant, session, actor, action, detail, digest, op, verdict, gate, error,
			stdout, stderr, duration FROM audit`+
		w.text+" ORDER BY id"+w.limit(q.Limit), w.args...)
}

// TrimEntries implements Log.
func (s *SQLite) TrimEntries(ctx context.Context, before time.Time) (int, error) {
	return s.exec(ctx, "trim audit log", "DELETE FROM audit WHERE time < ?", toNanos(before))
}
