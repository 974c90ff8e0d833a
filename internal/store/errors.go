package store

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/recluse-dev/recluse/sandbox"
)

// The codes of this package.
const (
	CodeLocked  sandbox.Code = "data_directory_locked"
	CodeCorrupt sandbox.Code = "store_corrupt"
	CodeNewer   sandbox.Code = "store_newer"
	CodeExists  sandbox.Code = "store_exists"
	CodeFailed  sandbox.Code = "store_failed"
)

// Sentinels for errors.Is.
var (
	ErrExists   = &sandbox.Error{Code: CodeExists}
	ErrNotFound = sandbox.ErrNotFound
)

// explain turns an error of the database into one of ours.
func (s *SQLite) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	e := &sandbox.Error{Code: CodeFailed, Op: op, Message: "the store could not do it", Err: err}
	db, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return e
	}
	switch db.Code() & 0xff { // without the extended part
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return corrupt(s.path, err)
	case sqlite3.SQLITE_FULL:
		e.Code, e.Message, e.Remedy = sandbox.CodeDiskFull, "the disk of the data directory is full", "free some space"
	case sqlite3.SQLITE_CONSTRAINT:
		e.Code, e.Message = CodeExists, "there is one already"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		e.Message, e.Retry = "the store is held by another program", true
	}
	return e
}

func corrupt(path string, err error) error {
	return &sandbox.Error{
		Code: CodeCorrupt, Op: "open store", Message: fmt.Sprintf("%s is damaged; nothing was changed", path),
		Remedy: "put a copy of it back, or move it away and begin anew: sandboxes it knew are then left alone", Err: err,
	}
}
