// Package store keeps what must outlive the server: sessions, snapshots, variables, events, the audit log, and who may do what.
//
// It adds to what a backend knows and is never the truth about what runs. [SQLite] keeps it in a file of a data directory,
// which only one program opens at a time. Whoever opens a store passes it to the session manager and to the server as a
// [Store], so that another database needs no change there.
package store

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Store is what the packages above need of a database. Its methods may be called concurrently, and each is one transaction:
// all of it happens, or nothing.
type Store interface {
	// Instance returns the id of this store, which marks the sandboxes of its managers.
	Instance() string
	// Dir returns the directory of this machine that the store is in; empty: it is elsewhere.
	Dir() string
	// Close releases the store.
	Close() error

	Sessions
	Snapshots
	Vars
	Log
	Access
	Quotas
	Approvals
}

// Session is the record of a session. Data is encoded by its owner; the other fields are for queries.
type Session struct {
	ID      string
	Tenant  string
	Name    string
	State   string
	Live    bool      // holds its key; at most one session per tenant and name does
	Image   string    // backend and id of the snapshot it is hibernated in, or ""
	Ended   time.Time // zero while it is live
	Data    []byte
	Changed time.Time
}

// SessionQuery chooses sessions. Zero fields choose all.
type SessionQuery struct {
	ID, Tenant, Name string
	Live             bool      // only those
	Dead             bool      // only the others
	EndedBefore      time.Time // dead since before this moment
	Limit            int
}

// Sessions keeps sessions.
type Sessions interface {
	// SaveSessions creates or replaces records. A second live session of a key is the error exists.
	SaveSessions(ctx context.Context, s ...Session) error
	// FindSessions returns sessions by tenant and name, the latest first among those of one name.
	FindSessions(ctx context.Context, q SessionQuery) ([]Session, error)
	// DropSessions removes records with their variables and events.
	DropSessions(ctx context.Context, ids ...string) error
}

// Snapshot is a named snapshot's record.
type Snapshot struct {
	ID        string
	Tenant    string
	Session   string // name of the session
	SessionID string
	Name      string
	Parent    string // name of the snapshot before it
	Image     string // backend and id of the image; several snapshots may share one
	Size      int64
	Memory    bool
	Created   time.Time
	Data      []byte // encoded by its owner
}

// SnapshotQuery chooses snapshots. Zero fields choose all.
type SnapshotQuery struct {
	ID, Tenant, Session, SessionID, Name string
}

// Snapshots keeps the names of snapshots.
type Snapshots interface {
	// AddSnapshot creates a record, and replaces those of sessions that change with it. A name that the session has already
	// is the error exists.
	AddSnapshot(ctx context.Context, s Snapshot, changed ...Session) error
	// FindSnapshots returns snapshots by session, oldest first.
	FindSnapshots(ctx context.Context, q SnapshotQuery) ([]Snapshot, error)
	// DropSnapshots removes records.
	DropSnapshots(ctx context.Context, ids ...string) error
	// Images returns every image that a snapshot or a session needs, and how many do.
	Images(ctx context.Context) (map[string]int, error)
	// ImageUses returns how many snapshots and sessions need an image.
	ImageUses(ctx context.Context, image string) (int, error)
}

// Vars keeps the variables of sessions.
type Vars interface {
	// SetVars writes variables of a session.
	SetVars(ctx context.Context, session string, vars map[string]string) error
	// Vars returns all variables of a session.
	Vars(ctx context.Context, session string) (map[string]string, error)
	// DeleteVar removes a variable and reports whether it existed.
	DeleteVar(ctx context.Context, session, name string) (bool, error)
}

// Event is something that happened to a session.
type Event struct {
	Session string // id
	Seq     int64
	Time    time.Time
	Data    []byte
}

// Entry is a line of the audit log. It has the fields of session.Entry, so that one converts to the other.
type Entry struct {
	ID                             int64
	Time                           time.Time
	Tenant, Session, Actor, Action string
	Detail, Digest, Op             string
	Verdict, Gate                  string
	Stdout, Stderr                 int64
	Duration                       time.Duration
	Error                          string
}

// Batch is lines that are written together.
type Batch struct {
	Events  []Event
	Entries []Entry
	Mark    int64 // the number of the last entry, by which its writer recognises later that it was written; 0: none
}

// EntryQuery chooses entries. Zero fields choose all.
type EntryQuery struct {
	Tenant, Session, Actor, Action, Op string
	After                              int64 // ids larger than this
	Since                              time.Time
	Last                               int // only the newest
	Limit                              int // of what is chosen, only the oldest
}

// Log keeps what happened.
type Log interface {
	// Append writes a batch in one transaction, and assigns ids to its entries.
	Append(ctx context.Context, b Batch) error
	// Marked returns the mark of the latest batch that had one.
	Marked(ctx context.Context) (int64, error)
	// Events returns up to limit events of a session after a number, oldest first; 0: all.
	Events(ctx context.Context, session string, after int64, limit int) ([]Event, error)
	// LastEvent returns the largest number of each session.
	LastEvent(ctx context.Context) (map[string]int64, error)
	// Entries returns entries of the audit log, oldest first.
	Entries(ctx context.Context, q EntryQuery) ([]Entry, error)
	// TrimEntries removes entries older than a time, and returns how many.
	TrimEntries(ctx context.Context, before time.Time) (int, error)
}

// APIKey lets a program act for a tenant. Only its hash is kept.
type APIKey struct {
	ID      string // public, names the key in lists
	Name    string
	Tenant  string
	Scopes  []string
	Hash    []byte // SHA-256 of the secret
	Created time.Time
	Expires time.Time // zero: never
	Revoked time.Time // zero: not
	Quota   v1.Quota
}

// Token lets a program act on one session. Only its hash is kept.
type Token struct {
	ID      string
	Tenant  string
	Session string // id
	Name    string // of the session
	Key     string // id of the key that made it, with which it ends; empty: none did
	Scopes  []string
	Hash    []byte
	Created time.Time
	Expires time.Time
}

// Reply is an answer that is given again to whoever repeats a request under one idempotency key.
type Reply struct {
	Tenant, Key string
	Request     []byte // digest of the request; another request under the key is a mistake of the caller's
	Done        bool   // false: the first request is still being answered, or its server died over it
	Status      int
	Body        []byte
	Header      map[string]string
	Created     time.Time
}

// Access keeps who may do what, and what was already answered.
type Access interface {
	// AddKey writes a new API key.
	AddKey(ctx context.Context, k APIKey) error
	// Keys lists the API keys of a tenant, oldest first; "": of all.
	Keys(ctx context.Context, tenant string) ([]APIKey, error)
	// RevokeKey marks a key as revoked from now on and says whether it was there. An empty tenant means any.
	RevokeKey(ctx context.Context, tenant, id string) (bool, error)

	// AddToken writes a new token of a session.
	AddToken(ctx context.Context, t Token) error
	// TokenByHash finds a token, also one that has expired; the error is not found.
	TokenByHash(ctx context.Context, hash []byte) (Token, error)
	// DropTokens removes the tokens of a session, and with "" all that have expired.
	DropTokens(ctx context.Context, session string) error

	// BeginReply claims an idempotency key. If somebody has claimed it already, that reply is given and claimed is false.
	BeginReply(ctx context.Context, r Reply) (old Reply, claimed bool, err error)
	// EndReply keeps the answer of a claimed key.
	EndReply(ctx context.Context, r Reply) error
	// DropReply gives a claim up, so that the request can be tried again.
	DropReply(ctx context.Context, tenant, key string) error
	// TrimReplies removes replies older than a moment, and counts them.
	TrimReplies(ctx context.Context, before time.Time) (int, error)
}
