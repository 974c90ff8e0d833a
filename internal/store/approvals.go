package store

import (
	"context"
	"database/sql"
	"time"
)

// schema3 adds the approvals of the gate.
const schema3 = `
CREATE TABLE approvals (
	id      TEXT PRIMARY KEY,
	expires INTEGER NOT NULL,
	data    BLOB NOT NULL
) STRICT;
`

// Approval is the record of an approval. Data is encoded by its owner.
type Approval struct {
	ID      string
	Expires time.Time
	Data    []byte
}

// Approvals stores the approvals of the gate.
type Approvals interface {
	// SaveApproval creates or replaces an approval.
	SaveApproval(ctx context.Context, a Approval) error
	// FindApprovals returns all approvals, sorted by their expiry.
	FindApprovals(ctx context.Context) ([]Approval, error)
	// DropApprovals removes approvals.
	DropApprovals(ctx context.Context, ids ...string) error
}

// SaveApproval implements Approvals.
func (s *SQLite) SaveApproval(ctx context.Context, a Approval) error {
	_, err := s.exec(ctx, "save approval", `
		INSERT INTO approvals (id, expires, data) VALUES (?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, data = excluded.data`,
		a.ID, toNanos(a.Expires), a.Data)
	return err
}

// FindApprovals implements Approvals.
func (s *SQLite) FindApprovals(ctx context.Context) ([]Approval, error) {
	scan := func(rows *sql.Rows) (a Approval, err error) {
		var expires int64
		err = rows.Scan(&a.ID, &expires, &a.Data)
		a.Expires = fromNanos(expires)
		return a, err
	}
	return queryRows(ctx, s, "find approvals", scan, "SELECT id, expires, data FROM approvals ORDER BY expires, id")
}

// DropApprovals implements Approvals.
func (s *SQLite) DropApprovals(ctx context.Context, ids ...string) error {
	return s.drop(ctx, "drop approvals", ids, "DELETE FROM approvals WHERE id = ?")
}
