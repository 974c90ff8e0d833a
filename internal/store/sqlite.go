package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/xdg"
)

// File is the name of the database in the data directory.
const File = "recluse.db"

const (
	// busyWait is how long a statement waits for another program that has locked the file, such as sqlite3.
	busyWait = 5 * time.Second
	// readers is the number of connections for reading, besides the one for writing. More only cost memory.
	readers = 2
	// checkSize is the maximum size of a file that is checked completely when it is opened. Checking a larger one would
	// delay the start.
	checkSize = 32 << 20
)

// SQLite is a store in a SQLite database.
type SQLite struct {
	path     string
	lock     *filelock.Lock
	write    *sql.DB // one connection: SQLite has one writer, and waiting in Go is fair
	read     *sql.DB
	instance string
}

// OpenSQLite locks a data directory and opens the store in it. It creates both if they are missing. If the file is
// damaged, OpenSQLite returns an error and does not change the file.
func OpenSQLite(ctx context.Context, dir string) (*SQLite, error) {
	return openSQLite(ctx, dir, busyWait)
}

func openSQLite(ctx context.Context, dir string, wait time.Duration) (_ *SQLite, err error) {
	if dir, err = filepath.Abs(dir); err != nil { // labels of sandboxes have the path, and other programs use it
		return nil, fileError("open store", err)
	}
	s := &SQLite{path: filepath.Join(dir, File)}
	if err := xdg.Private(dir); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "prepare data directory", Err: err}
	}
	if s.lock, err = lockDir(ctx, dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// The file is created here and not by SQLite, so that it never has a mode that other users can read.
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fileError("open store", err)
	}
	info, err := f.Stat()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, fileError("open store", err)
	}
	if s.write, err = connect(s.path, 1, wait); err != nil {
		return nil, s.wrapError("open store", err)
	}
	if info.Size() > 0 && info.Size() <= checkSize {
		if err := s.check(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.migrate(ctx); err != nil {
		return nil, err
	}
	// The mode is stored in the file. A file that cannot be used was rejected above, before this change.
	if _, err := s.write.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return nil, s.wrapError("open store", err)
	}
	if s.read, err = connect(s.path, readers, wait); err != nil {
		return nil, s.wrapError("open store", err)
	}
	if s.instance, err = s.identify(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// ErrRemoved is the error of Peek for a data directory whose store was removed.
var ErrRemoved = errors.New("the store was removed from its directory")

// Peek returns the instance id of the store in a data directory without opening it for use, and whether a program uses
// the store. If the directory had a store that was removed, the error is ErrRemoved. If the directory is missing or
// empty, its disk may not be mounted, and the error is fs.ErrNotExist.
func Peek(ctx context.Context, dir string) (instance string, used bool, err error) {
	path := filepath.Join(dir, File)
	if _, err := os.Stat(path); err != nil {
		if _, lockErr := os.Stat(filepath.Join(dir, lockFile)); errors.Is(err, fs.ErrNotExist) && lockErr == nil {
			err = ErrRemoved
		}
		return "", false, err
	}
	l, err := filelock.TryShared(filepath.Join(dir, lockFile))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		used = true
	case err == nil:
		l.Release()
	}
	u := url.URL{
		Scheme:   "file",
		Path:     filepath.ToSlash(path),
		RawQuery: fmt.Sprintf("mode=ro&_pragma=busy_timeout(%d)", busyWait.Milliseconds()),
	}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return "", used, err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'instance'").Scan(&instance)
	return instance, used, err
}

// connect opens the file. Committed writes survive if this program is killed. After a power failure the latest writes
// may be missing. The backends have then lost their sandboxes, too, and are the truth about what exists.
func connect(path string, conns int, wait time.Duration) (*sql.DB, error) {
	q := url.Values{}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", wait.Milliseconds()))
	q.Add("_pragma", "synchronous(NORMAL)")
	q.Add("_pragma", "foreign_keys(1)")
	q.Add("_txlock", "immediate")
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// check returns an error if the file is damaged. It reads the whole file.
func (s *SQLite) check(ctx context.Context) error {
	var result string
	if err := s.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return s.wrapError("open store", err)
	}
	if result != "ok" {
		return corrupt(s.path, errors.New(result))
	}
	return nil
}

// migrations holds the statements that bring a store to the next version: migrations[v] leads from version v to v+1.
// Existing elements never change.
var migrations = []string{schema1, schema2, schema3, schema4, schema5, schema6}

// migrate brings the file to the latest version, in one transaction.
func (s *SQLite) migrate(ctx context.Context) error {
	return s.transaction(ctx, "migrate store", func(tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		if version > len(migrations) {
			return &v1.Error{
				Code: CodeNewer,
				Op:   "open store",
				Message: fmt.Sprintf("%s has version %d; this program supports versions up to %d",
					s.path, version, len(migrations)),
				Remedy: "use the newer program that wrote the file",
			}
		}
		if version < 0 {
			return corrupt(s.path, fmt.Errorf("version %d", version))
		}
		for ; version < len(migrations); version++ {
			if _, err := tx.ExecContext(ctx, migrations[version]); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version+1)); err != nil {
				return err
			}
		}
		return nil
	})
}

// identify returns the instance id of the store. It creates the id of a new store.
func (s *SQLite) identify(ctx context.Context) (id string, err error) {
	return s.constant(ctx, "instance", ids.Hex(8))
}

// secretSize is the number of random bytes in the secret of a store.
const secretSize = 32

// Secret implements Access. Without its row in the table meta, a server that starts makes another one.
func (s *SQLite) Secret(ctx context.Context) (string, error) {
	return s.constant(ctx, "secret", ids.Hex(secretSize))
}

// constant returns a value of the table meta, which is set if it is missing.
func (s *SQLite) constant(ctx context.Context, name, otherwise string) (value string, err error) {
	err = s.transaction(ctx, "read "+name+" of the store", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", name, otherwise)
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", name).Scan(&value)
	})
	return value, err
}

// Instance implements Store.
func (s *SQLite) Instance() string { return s.instance }

// Dir implements Store.
func (s *SQLite) Dir() string { return filepath.Dir(s.path) }

// Close implements Store.
func (s *SQLite) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if s.lock != nil {
		s.lock.Release()
	}
	return errors.Join(errs...)
}

// transaction runs f in a transaction for writing.
func (s *SQLite) transaction(ctx context.Context, op string, f func(tx *sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return s.wrapError(op, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // the error of f is returned
		return s.wrapError(op, err)
	}
	return s.wrapError(op, tx.Commit())
}

// queryRows runs a query and returns its rows, converted by scan.
func queryRows[T any](
	ctx context.Context, s *SQLite, op string, scan func(*sql.Rows) (T, error), query string, args ...any,
) ([]T, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.wrapError(op, err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, s.wrapError(op, err)
		}
		out = append(out, v)
	}
	return out, s.wrapError(op, rows.Err())
}

// queryMap runs a query whose rows are a key and a value, and returns them as a map.
func queryMap[T any](ctx context.Context, s *SQLite, op, query string, args ...any) (map[string]T, error) {
	out := map[string]T{}
	_, err := queryRows(ctx, s, op, func(rows *sql.Rows) (_ struct{}, err error) {
		var key string
		var value T
		err = rows.Scan(&key, &value)
		out[key] = value
		return struct{}{}, err
	}, query, args...)
	return out, err
}

// exec runs one statement in a transaction, and returns the number of rows that it changed.
func (s *SQLite) exec(ctx context.Context, op, query string, args ...any) (n int, err error) {
	err = s.transaction(ctx, op, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		rows, err := r.RowsAffected()
		n = int(rows)
		return err
	})
	return n, err
}

// drop runs the statements for each id, in one transaction.
func (s *SQLite) drop(ctx context.Context, op string, ids []string, statements ...string) error {
	return s.transaction(ctx, op, func(tx *sql.Tx) error {
		for _, id := range ids {
			for _, q := range statements {
				if _, err := tx.ExecContext(ctx, q, id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// where is the WHERE clause of a query.
type where struct {
	text string
	args []any
}

// and adds a condition if use is set.
func (w *where) and(use bool, condition string, args ...any) {
	if !use {
		return
	}
	if w.text == "" {
		w.text = " WHERE " + condition
	} else {
		w.text += " AND " + condition
	}
	w.args = append(w.args, args...)
}

// limit returns a LIMIT clause; 0: no limit.
func (w *where) limit(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" LIMIT %d", n)
}

// toNanos returns a time as nanoseconds since 1970. The zero time is 0.
func toNanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// fromNanos is the inverse of toNanos.
func fromNanos(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
