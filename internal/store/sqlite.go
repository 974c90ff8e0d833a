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
	// busyWait is how long a statement waits for another program that looks into the file.
	busyWait = 5 * time.Second
	// readers is how many connections there are beside the one that writes. More only cost memory.
	readers = 2
	// checkSize is up to which size the whole file is checked when it is opened; a larger one would delay the start.
	checkSize = 32 << 20
)

// SQLite is a store in a file.
type SQLite struct {
	path     string
	lock     *filelock.Lock
	write    *sql.DB // one connection: SQLite has one writer, and waiting in Go is fair
	read     *sql.DB
	instance string
}

// OpenSQLite locks a data directory and opens the store in it; both are created if they are missing. A damaged file is an
// error and stays as it is.
func OpenSQLite(ctx context.Context, dir string) (*SQLite, error) {
	return openSQLite(ctx, dir, busyWait)
}

func openSQLite(ctx context.Context, dir string, wait time.Duration) (_ *SQLite, err error) {
	if dir, err = filepath.Abs(dir); err != nil { // sandboxes bear it, and programs elsewhere look it up
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
	// The file is made here so that its mode is ours, and nobody else's ever.
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
		return nil, s.explain("open store", err)
	}
	if info.Size() > 0 && info.Size() <= checkSize {
		if err := s.check(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.migrate(ctx); err != nil {
		return nil, err
	}
	// The file remembers it. A file that is not ours to write was refused before this.
	if _, err := s.write.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return nil, s.explain("open store", err)
	}
	if s.read, err = connect(s.path, readers, wait); err != nil {
		return nil, s.explain("open store", err)
	}
	if s.instance, err = s.identify(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// ErrRemoved is the error of Peek for a data directory whose store was removed.
var ErrRemoved = errors.New("the store was removed from its directory")

// Peek returns the id of the store in a data directory without opening it for use, and whether a program uses it. A directory without a
// store is ErrRemoved if it had one; if it is absent or empty, its disk may not be mounted, and the error is fs.ErrNotExist.
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
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: fmt.Sprintf("mode=ro&_pragma=busy_timeout(%d)", busyWait.Milliseconds())}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return "", used, err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'instance'").Scan(&instance)
	return instance, used, err
}

// connect opens the file. Writes survive the death of this program at any moment; after a power failure the last ones may be missing,
// and then the backends, which lost their sandboxes too, say what there is.
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

// check reads the whole file.
func (s *SQLite) check(ctx context.Context) error {
	var said string
	if err := s.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&said); err != nil {
		return s.explain("open store", err)
	}
	if said != "ok" {
		return corrupt(s.path, errors.New(said))
	}
	return nil
}

// migrations bring a store from one version to the next, which is their index and one. They are only ever added to.
var migrations = []string{schema1, schema2, schema3, schema4, schema5}

// migrate brings the file to our version, all or nothing.
func (s *SQLite) migrate(ctx context.Context) error {
	return s.change(ctx, "migrate store", func(tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		if version > len(migrations) {
			return &v1.Error{
				Code: CodeNewer, Op: "open store", Message: fmt.Sprintf("%s has version %d, and this program knows %d", s.path, version, len(migrations)),
				Remedy: "use the newer program that wrote it",
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

// identify gives the store's id and makes it the first time.
func (s *SQLite) identify(ctx context.Context) (id string, err error) {
	err = s.change(ctx, "identify store", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO meta (name, value) VALUES ('instance', ?)", ids.Hex(8)); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'instance'").Scan(&id)
	})
	return id, err
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

// change runs f in a transaction.
func (s *SQLite) change(ctx context.Context, op string, f func(tx *sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return s.explain(op, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // the first error is the one to tell
		return s.explain(op, err)
	}
	return s.explain(op, tx.Commit())
}

// rowsOf reads rows into a slice.
func rowsOf[T any](ctx context.Context, s *SQLite, op string, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.explain(op, err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, s.explain(op, err)
		}
		out = append(out, v)
	}
	return out, s.explain(op, rows.Err())
}

// mapOf reads rows of a key and a value into a map.
func mapOf[T any](ctx context.Context, s *SQLite, op, query string, args ...any) (map[string]T, error) {
	out := map[string]T{}
	_, err := rowsOf(ctx, s, op, func(rows *sql.Rows) (_ struct{}, err error) {
		var key string
		var value T
		err = rows.Scan(&key, &value)
		out[key] = value
		return struct{}{}, err
	}, query, args...)
	return out, err
}

// affect runs one statement and counts the rows it changed.
func (s *SQLite) affect(ctx context.Context, op, query string, args ...any) (n int, err error) {
	err = s.change(ctx, op, func(tx *sql.Tx) error {
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

// drop runs statements for each id, all or none.
func (s *SQLite) drop(ctx context.Context, op string, ids []string, statements ...string) error {
	return s.change(ctx, op, func(tx *sql.Tx) error {
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

// where gathers the conditions of a query.
type where struct {
	text string
	args []any
}

// and adds a condition unless it is not asked for.
func (w *where) and(asked bool, condition string, args ...any) {
	if !asked {
		return
	}
	if w.text == "" {
		w.text = " WHERE " + condition
	} else {
		w.text += " AND " + condition
	}
	w.args = append(w.args, args...)
}

// limit ends a query; 0: all.
func (w *where) limit(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" LIMIT %d", n)
}

// stamp writes a moment; the zero one is 0.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
