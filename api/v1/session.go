package v1

import (
	"time"
)

// SessionKey names a session. Name is chosen by the caller: 1 to 128 letters, digits, and the characters - _ . and colon. The
// character @ separates a session from a snapshot.
type SessionKey struct {
	Tenant string `json:"tenant,omitempty"` // empty: "default"
	Name   string `json:"name"`
}

// String returns tenant and name.
func (k SessionKey) String() string { return k.Tenant + "/" + k.Name }

// IdleAction is what happens to an idle session.
type IdleAction string

// The idle actions.
const (
	IdleHibernate IdleAction = "hibernate" // it ends if the backend cannot
	IdleEnd       IdleAction = "end"
	IdleKeep      IdleAction = "keep"
)

// Policy is how long a session lives and how much it may do. Zero fields take their defaults; NoLimit switches a time off.
type Policy struct {
	TTL         Duration   `json:"ttl,omitzero"`
	Idle        Duration   `json:"idle,omitzero"`
	OnIdle      IdleAction `json:"on_idle,omitempty"`
	Extensions  int        `json:"extensions,omitempty"` // negative: none
	Extension   Duration   `json:"extension,omitzero"`
	Hibernation Duration   `json:"hibernation,omitzero"`
	Snapshots   int        `json:"snapshots,omitempty"`
	Commands    int        `json:"commands,omitempty"`
	Output      int64      `json:"output,omitempty"`
}

// Settings describe a session. Zero fields leave the choice to the server.
type Settings struct {
	Spec    *Spec             `json:"spec,omitempty" doc:"of its sandbox; left out: whatever the session has, or the default"`
	Backend string            `json:"backend,omitempty" doc:"left out: the server's choice"`
	Policy  Policy            `json:"policy,omitzero"`
	From    string            `json:"from,omitempty" doc:"a snapshot to begin from, session@name of the same tenant"`
	Vars    map[string]string `json:"vars,omitempty" doc:"the first variables of a new session; a live one keeps its own"`
	Gate    string            `json:"gate,omitempty" doc:"off, warn or block; left out: as the server is configured"`
	Role    string            `json:"role,omitempty" doc:"chooses the thesaurus that the gate judges by"`
}

// OpenOptions says which session to open. By default it is found, or created if there is none.
type OpenOptions struct {
	// Settings of the session. If the session exists, a setting that is given and differs is the error spec_conflict.
	Settings
	// IfNew are further settings of a session that this call creates, used where Settings has none.
	IfNew Settings `json:"if_new,omitzero" doc:"further settings of a session that this request creates; an existing one is returned whatever they say"`
	// Existing refuses to create a session: the error is session_not_found.
	Existing bool `json:"existing,omitempty" doc:"do not create a session"`
	// New refuses an existing session: the error is session_exists.
	New bool `json:"new,omitempty" doc:"refuse an existing session"`
}

// OpenRequest asks for a session.
type OpenRequest struct {
	Name string `json:"name,omitempty" doc:"of the session; only in POST /v1/sessions, where it may be left out"`
	OpenOptions
}

// Opened is the session that Open returns, and whether Open has created it.
type Opened struct {
	Session
	New bool `json:"new" doc:"the session was created by this request"`
}

// Session describes a session.
type Session struct {
	ID      string       `json:"id"` // never used again, unlike the key
	Key     SessionKey   `json:"key"`
	State   SessionState `json:"state"`
	Reason  string       `json:"reason"` // why it is in this state
	Backend string       `json:"backend"`
	Sandbox string       `json:"sandbox,omitempty"` // empty while there is none
	Spec    Spec         `json:"spec"`
	Policy  Policy       `json:"policy"`
	Gate    string       `json:"gate,omitempty"`
	Role    string       `json:"role,omitempty"`
	Created time.Time    `json:"created"`
	Used    time.Time    `json:"used"`              // when it was last used
	Expires *time.Time   `json:"expires,omitempty"` // nil: never
	IdleAt  *time.Time   `json:"idle_at,omitempty"` // when its idle policy acts, if it is not used
	// Extended counts extensions so far.
	Extended int `json:"extended"`
	// Restored counts how often a lost sandbox was restored from a snapshot. StateFrom is the time of that snapshot until a
	// verdict has reported it.
	Restored  int        `json:"restored,omitempty"`
	StateFrom *time.Time `json:"state_from,omitempty"`
	Running   int        `json:"running"` // cells and commands
	Output    int64      `json:"output"`  // bytes so far
	Snapshots int        `json:"snapshots"`
	Ended     *time.Time `json:"ended,omitempty"`
	// Incidents are what others did to its sandbox without ending it, such as docker rename or docker pause: the last of each
	// kind.
	Incidents []Incident `json:"incidents,omitempty"`
}

// Snapshot is a named snapshot of a session.
type Snapshot struct {
	ID      string    `json:"id"`
	Session string    `json:"session"` // the name part of the key
	Name    string    `json:"name"`
	Parent  string    `json:"parent,omitempty"` // name of the snapshot its state came from
	Size    int64     `json:"size"`
	Memory  bool      `json:"memory"` // false: files only
	Created time.Time `json:"created"`
	Spec    Spec      `json:"spec"`
}

// SessionEvent is something that happened to a session. Seq increases within a session.
type SessionEvent struct {
	Seq     int64             `json:"seq"`
	Time    time.Time         `json:"time"`
	Session string            `json:"session"`
	Kind    string            `json:"kind"` // state, operation, snapshot, restored, extended, var, gate, incident
	State   SessionState      `json:"state,omitempty"`
	Reason  string            `json:"reason,omitempty"`
	Op      string            `json:"op,omitempty"`
	Attrs   map[string]string `json:"attrs,omitempty"`
}

// AuditEntry is a line of the audit log: who ran what when, and how it ended.
type AuditEntry struct {
	ID       int64         `json:"id"`
	Time     time.Time     `json:"time"`
	Tenant   string        `json:"tenant"`
	Session  string        `json:"session"`
	Actor    string        `json:"actor"`  // name of the API key, or the user of the command line
	Action   string        `json:"action"` // cell, command, start, background (the end of a started one), open, ended, snapshot, restore, fork, …; of the server: file.write, …
	Detail   string        `json:"detail"` // beginning of the code or command
	Digest   string        `json:"digest,omitempty"`
	Op       string        `json:"op,omitempty"`
	Verdict  string        `json:"verdict,omitempty"`
	Gate     string        `json:"gate,omitempty"` // the gate's decision
	Stdout   int64         `json:"stdout,omitempty"`
	Stderr   int64         `json:"stderr,omitempty"`
	Duration time.Duration `json:"duration_ns,omitempty"`
	Error    string        `json:"error,omitempty"` // code of the error
}

// SessionState is the state of a session.
type SessionState string

// The states of a session.
const (
	StateCreating   SessionState = "creating"   // its sandbox is being created
	StateReady      SessionState = "ready"      // nothing runs in it
	StateExecuting  SessionState = "executing"  // a cell, a command or a transfer is in progress
	StatePaused     SessionState = "paused"     // frozen in memory, by hand
	StateHibernated SessionState = "hibernated" // on disk, its memory freed
	StateLost       SessionState = "lost"       // its sandbox is gone, and not restored yet or for good
	StateEnded      SessionState = "ended"      // by its owner
	StateExpired    SessionState = "expired"    // by its lifetime or its idle time
)

// Live reports whether the session still holds its key.
func (s SessionState) Live() bool { return s != StateEnded && s != StateExpired }

// SessionListOptions chooses sessions.
type SessionListOptions struct {
	Tenant string         // "*": all; empty: "default"
	States []SessionState // empty: all that are live
	Limit  int            // 0: all
}

// AuditOptions chooses entries of the audit log.
type AuditOptions struct {
	Tenant, Session, Actor, Action string
	After                          int64 // entries with a larger id
	Limit                          int
}

// Collected is what GC removed.
type Collected struct {
	Sessions  int   `json:"sessions"`  // records of ended sessions
	Snapshots int   `json:"snapshots"` // of removed sessions, and images without a name
	Strays    int   `json:"strays"`    // sandboxes of no session
	Entries   int   `json:"entries"`   // of the audit log
	Bytes     int64 `json:"bytes"`     // of images
}

// EventsOptions chooses events.
type EventsOptions struct {
	After  int64 // events with a larger Seq
	Follow bool  // continue with later events until ctx or the session ends
}

// SessionPage is one page.
type SessionPage struct {
	Sessions []Session `json:"sessions"`
	Next     string    `json:"next,omitempty" doc:"give it as after for the next page; empty: this is the last"`
}

// ExtendRequest asks for more time.
type ExtendRequest struct {
	By Duration `json:"by,omitzero" doc:"left out: as much as the policy allows"`
}

// ForkRequest asks for live copies.
type ForkRequest struct {
	Count int      `json:"count,omitempty" doc:"left out: as many as there are names, or one"`
	Names []string `json:"names,omitempty"`
}

// Forked is the answer to ForkRequest: all copies.
type Forked struct {
	Sessions []Session `json:"sessions"`
}

// SaveRequest asks for a snapshot.
type SaveRequest struct {
	Name string `json:"name"`
}

// RestoreRequest puts a session back.
type RestoreRequest struct {
	Ref string `json:"ref" doc:"name, or session@name"`
}

// SnapshotPage is all snapshots of a session or tenant.
type SnapshotPage struct {
	Snapshots []Snapshot `json:"snapshots"`
	Next      string     `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// VarPage are variables of a session, in the order of their names.
type VarPage struct {
	Vars map[string]string `json:"vars"`
	Next string            `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Var is the value of one.
type Var struct {
	Value string `json:"value"`
}

// AuditPage is one page of the audit log.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	Next    int64        `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// TokenRequest asks for a token that is good for one session only, and no longer than it.
type TokenRequest struct {
	Scope string   `json:"scope,omitempty" doc:"read or execute (the default)"`
	For   Duration `json:"for,omitzero" doc:"left out: as long as the session"`
}

// Token is shown once.
type Token struct {
	Token   string     `json:"token"`
	Session string     `json:"session"`
	Scope   string     `json:"scope"`
	Expires *time.Time `json:"expires,omitempty"`
}
