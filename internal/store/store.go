// Package store keeps the data that must outlive the server: sessions, snapshots, variables, events, the audit log,
// keys, tokens and quotas.
//
// The store adds to what the backends know. It is never the truth about what runs. [SQLite] is a store in a file of the
// data directory, which only one program opens at a time. That program passes it to the session manager and to the
// server as a [Store], so that another database needs no change there.
package store

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Store is the interface of a database for sessions and the server. Its methods may be called concurrently. Each method
// is one transaction.
type Store interface {
	// Instance returns the id of this store. Sandboxes of its manager are labelled with the id.
	Instance() string
	// Dir returns the local directory that contains the store; empty: the store is not on this machine.
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
	Live    bool      // the session holds its key; only one session of a key is live
	Image   string    // backend and id of the snapshot of a hibernated session, or ""
	Ended   time.Time // zero while the session is live
	Data    []byte
	Changed time.Time
}

// SessionQuery selects sessions. Zero fields select all.
type SessionQuery struct {
	ID, Tenant, Name string
	Live             bool      // only live sessions
	Dead             bool      // only sessions that are not live
	EndedBefore      time.Time // only sessions that ended before this time
	Limit            int
}

// Sessions stores sessions.
type Sessions interface {
	// SaveSessions creates or replaces records. If another session of the same key is live, the error is ErrExists.
	SaveSessions(ctx context.Context, s ...Session) error
	// FindSessions returns sessions sorted by tenant and name. Of sessions with the same name, the latest is first.
	FindSessions(ctx context.Context, q SessionQuery) ([]Session, error)
	// DropSessions removes records with their variables and events.
	DropSessions(ctx context.Context, ids ...string) error
}

// Snapshot is the record of a named snapshot.
type Snapshot struct {
	ID        string
	Tenant    string
	Session   string // name of the session
	SessionID string
	Name      string
	Parent    string // name of the previous snapshot
	Image     string // backend and id of the image; several snapshots may share one
	Size      int64
	Memory    bool
	Created   time.Time
	Data      []byte // encoded by its owner
}

// SnapshotQuery selects snapshots. Zero fields select all.
type SnapshotQuery struct {
	ID, Tenant, Session, SessionID, Name string
}

// Snapshots stores the records of snapshots.
type Snapshots interface {
	// AddSnapshot creates a record, and replaces the records of the changed sessions. If the session already has a
	// snapshot of this name, the error is ErrExists.
	AddSnapshot(ctx context.Context, s Snapshot, changed ...Session) error
	// FindSnapshots returns snapshots sorted by session, and the oldest of a session first.
	FindSnapshots(ctx context.Context, q SnapshotQuery) ([]Snapshot, error)
	// DropSnapshots removes records.
	DropSnapshots(ctx context.Context, ids ...string) error
	// Images returns every image that a snapshot or a session uses, with the number of uses.
	Images(ctx context.Context) (map[string]int, error)
	// ImageUses returns the number of snapshots and sessions that use an image.
	ImageUses(ctx context.Context, image string) (int, error)
}

// Vars stores the variables of sessions.
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
	Session string // id of the session
	Seq     int64
	Time    time.Time
	Data    []byte
}

// Entry is an entry of the audit log. It has the same fields as session.Entry, so that one converts to the other.
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

// Batch is a set of events and entries that are written in one transaction.
type Batch struct {
	Events  []Event
	Entries []Entry
	Mark    int64 // the writer's number of the last entry; Marked returns it later; 0: none
}

// EntryQuery selects entries. Zero fields select all.
type EntryQuery struct {
	Tenant, Session, Actor, Action, Op string
	After                              int64 // only larger ids
	Since                              time.Time
	Last                               int // only this many of the newest
	Limit                              int // of the selected entries, only this many of the oldest
}

// Log stores events and the audit log.
type Log interface {
	// Append writes a batch in one transaction, and assigns ids to its entries.
	Append(ctx context.Context, b Batch) error
	// Marked returns the mark of the latest batch with a mark.
	Marked(ctx context.Context) (int64, error)
	// Events returns up to limit events of a session with a larger Seq than after, the oldest first; 0: all.
	Events(ctx context.Context, session string, after int64, limit int) ([]Event, error)
	// LastEvent returns the largest Seq of each session, by session id.
	LastEvent(ctx context.Context) (map[string]int64, error)
	// Entries returns entries of the audit log, oldest first.
	Entries(ctx context.Context, q EntryQuery) ([]Entry, error)
	// TrimEntries removes entries older than a time, and returns how many.
	TrimEntries(ctx context.Context, before time.Time) (int, error)
}

// APIKey is the record of an API key, with which a program acts for a tenant. Only the hash of the secret is stored.
type APIKey struct {
	ID      string // not secret; identifies the key in lists
	Name    string
	Tenant  string
	Scopes  []string
	Hash    []byte // SHA-256 of the secret
	Created time.Time
	Expires time.Time // zero: never
	Revoked time.Time // zero: not revoked
	Quota   v1.Quota
	Network v1.NetworkBounds
}

// Token is the record of a session token, with which a program uses one session. Only the hash of the secret is stored.
type Token struct {
	ID      string
	Tenant  string
	Session string // id of the session
	Name    string // name of the session
	Key     string // id of the key that created the token, which ends with the key; empty: created without a key
	Scopes  []string
	Hash    []byte
	Created time.Time
	Expires time.Time
}

// Reply is a claimed idempotency key, and the answer for repeated requests with the key.
type Reply struct {
	Tenant, Key string
	Request     []byte // digest of the request, to reject another request with the same key
	Done        bool   // false: the first request is still running, or its server was killed during the request
	Status      int
	Body        []byte
	Header      map[string]string
	Created     time.Time
}

// Access stores API keys, session tokens, and answers for idempotency keys.
type Access interface {
	// Secret returns a random text, which stays the same as long as the store.
	Secret(ctx context.Context) (string, error)
	// AddKey writes a new API key.
	AddKey(ctx context.Context, k APIKey) error
	// Keys returns the API keys of a tenant, the oldest first; "": of all tenants.
	Keys(ctx context.Context, tenant string) ([]APIKey, error)
	// RevokeKey revokes a key and reports whether it exists. An empty tenant means any tenant.
	RevokeKey(ctx context.Context, tenant, id string) (bool, error)

	// AddToken writes a new token of a session.
	AddToken(ctx context.Context, t Token) error
	// TokenByHash returns a token, also if it has expired. If there is no such token, the error is ErrNotFound.
	TokenByHash(ctx context.Context, hash []byte) (Token, error)
	// DropTokens removes the tokens of a session; "": all expired tokens.
	DropTokens(ctx context.Context, session string) error

	// BeginReply claims an idempotency key. If the key is already claimed, it returns that reply, and claimed is false.
	BeginReply(ctx context.Context, r Reply) (old Reply, claimed bool, err error)
	// EndReply stores the answer for a claimed key.
	EndReply(ctx context.Context, r Reply) error
	// DropReply releases a claimed key, so that the request can be retried.
	DropReply(ctx context.Context, tenant, key string) error
	// TrimReplies removes replies older than a time, and returns how many.
	TrimReplies(ctx context.Context, before time.Time) (int, error)
}
