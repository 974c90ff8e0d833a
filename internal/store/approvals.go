package store

import (
	"context"
	"database/sql"
	"time"
)

// schema3 keeps the gate's questions to people.
const schema3 = `
CREATE TABLE approvals (
	id      TEXT PRIMARY KEY,
	expires INTEGER NOT NULL,
	data    BLOB NOT NULL
) STRICT;
`

// Approval is a question to a person, or its answer. Data is its owner's own encoding.
type Approval struct {
	ID      string
	Expires time.Time
	Data    []byte
}

// Approvals keeps the gate's questions to people.
type Approvals interface {
	// SaveApproval writes a question, new or known.
	SaveApproval(ctx context.Context, a Approval) error
	// FindApprovals gives all questions, those that expire first before the others.
	FindApprovals(ctx context.Context) ([]Approval, error)
	// DropApprovals removes questions.
	DropApprovals(ctx context.Context, ids ...string) error
}

// SaveApproval implements Approvals.
func (s *SQLite) SaveApproval(ctx context.Context, a Approval) error {
	_, err := s.affect(ctx, "save approval", `
		INSERT INTO approvals (id, expires, data) VALUES (?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, data = excluded.data`,
		a.ID, stamp(a.Expires), a.Data)
	return err
}

// FindApprovals implements Approvals.
func (s *SQLite) FindApprovals(ctx context.Context) ([]Approval, error) {
	scan := func(rows *sql.Rows) (a Approval, err error) {
		var expires int64
		err = rows.Scan(&a.ID, &expires, &a.Data)
		a.Expires = moment(expires)
		return a, err
	}
	return rowsOf(ctx, s, "find approvals", scan, "SELECT id, expires, data FROM approvals ORDER BY expires, id")
}

// DropApprovals implements Approvals.
func (s *SQLite) DropApprovals(ctx context.Context, ids ...string) error {
	return s.drop(ctx, "drop approvals", ids, "DELETE FROM approvals WHERE id = ?")
}
