package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Error codes of this package.
const (
	CodeNewer  v1.Code = "store_newer"
	CodeExists v1.Code = "store_exists"
	CodeFailed v1.Code = "store_failed"
)

// Sentinels for errors.Is.
var (
	ErrExists   = &v1.Error{Code: CodeExists}
	ErrNotFound = sandbox.ErrNotFound
)

// wrapError converts an error of the database into a *v1.Error.
func (s *SQLite) wrapError(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err
	}
	e := &v1.Error{Code: CodeFailed, Op: op, Message: "the store failed", Err: err}
	db, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return fileError(op, err)
	}
	switch db.Code() & 0xff { // the primary result code
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return corrupt(s.path, err)
	case sqlite3.SQLITE_FULL:
		return full(op, err)
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		// On a full disk, the files beside the database cannot be created first. SQLite does not report that as
		// SQLITE_FULL.
		if !hasSpace(filepath.Dir(s.path)) {
			return full(op, err)
		}
	case sqlite3.SQLITE_CONSTRAINT:
		e.Code, e.Message = CodeExists, "the record exists already"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		e.Code, e.Message, e.Retry = v1.CodeStoreBusy, s.path+" is locked by another program", true
		e.Remedy = "end the program that has the file open, e.g. sqlite3"
	}
	return e
}

// fileError converts an error of a file operation.
func fileError(op string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return full(op, err)
	}
	return &v1.Error{Code: CodeFailed, Op: op, Message: "the store failed", Err: err}
}

func full(op string, err error) error {
	return &v1.Error{
		Code:    v1.CodeDiskFull,
		Op:      op,
		Message: "the disk of the data directory is full",
		Remedy:  "free some space",
		Err:     err,
	}
}

func corrupt(path string, err error) error {
	return &v1.Error{
		Code:    v1.CodeStoreCorrupt,
		Op:      "open store",
		Message: fmt.Sprintf("%s is damaged; nothing was changed", path),
		Remedy: "restore the file from a backup, or move it away to start with an empty store; " +
			"the sandboxes in the damaged store are then left alone",
		Err: err,
	}
}
