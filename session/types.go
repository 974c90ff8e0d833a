package session

import (
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// The defaults of every session. Each can be set in a Policy.
const (
	DefaultTTL         = 30 * time.Minute   // not counting hibernation
	DefaultIdle        = 15 * time.Minute   // without use
	DefaultExtensions  = 3                  // how often a lifetime may be extended
	DefaultExtension   = 30 * time.Minute   // by how much at most, each time
	DefaultHibernation = 7 * 24 * time.Hour // how long a session is kept on disk
	DefaultSnapshots   = 10
	DefaultCommands    = 32       // cells and commands at once, including those in a queue
	DefaultOutput      = 10 << 30 // bytes of output in all
	DefaultTenant      = "default"
	DefaultAuditKept   = 90 * 24 * time.Hour
	DefaultRecordsKept = 30 * 24 * time.Hour // of ended sessions and their snapshots

	// A session is restored RestoreAttempts times within RestoreWindow before it is lost for good.
	RestoreAttempts = 3
	RestoreWindow   = 300 * time.Second
	// EndGrace is the time between SIGTERM and SIGKILL when a session ends.
	EndGrace = 5 * time.Second
)

// Key names a session. Name is chosen by the caller: 1 to 128 letters, digits, and the characters - _ . and colon. The
// character @ separates a session from a snapshot.
type Key struct {
	Tenant string `json:"tenant,omitempty"` // empty: DefaultTenant
	Name   string `json:"name"`
}

// IdleAction is what happens to an idle session.
type IdleAction string

// The idle actions.
const (
	IdleHibernate IdleAction = "hibernate" // it ends if the backend cannot
	IdleEnd       IdleAction = "end"
	IdleKeep      IdleAction = "keep"
)

// Policy is how long a session lives and how much it may do. Zero fields take their defaults; sandbox.NoLimit
// switches a time off.
type Policy struct {
	TTL         time.Duration `json:"ttl_ns,omitempty"`
	Idle        time.Duration `json:"idle_ns,omitempty"`
	OnIdle      IdleAction    `json:"on_idle,omitempty"`
	Extensions  int           `json:"extensions,omitempty"` // negative: none
	Extension   time.Duration `json:"extension_ns,omitempty"`
	Hibernation time.Duration `json:"hibernation_ns,omitempty"`
	Snapshots   int           `json:"snapshots,omitempty"`
	Commands    int           `json:"commands,omitempty"`
	Output      int64         `json:"output,omitempty"`
}

// Settings describe a session. Zero fields leave the choice to the manager.
type Settings struct {
	// Spec of the sandbox; nil: the default one.
	Spec *sandbox.Spec
	// Backend names the backend; empty: the manager's choice.
	Backend string
	Policy  Policy
	// From is the snapshot to start from, "session@name" of the same tenant.
	From string
	// Vars are the first context variables of a new session; an existing session keeps its own.
	Vars map[string]string
	// Gate is off, warn or block; empty: the manager's mode.
	Gate string
	// Role chooses the thesaurus that the gate judges by; empty: the one without a role.
	Role string
}

// OpenOptions says which session to open. By default it is found, or created if there is none.
type OpenOptions struct {
	// Settings of the session. If the session exists, a setting that is given and differs is the error spec_conflict.
	Settings
	// IfNew are further settings of a session that this call creates, used where Settings has none. An existing session is
	// returned whatever they say.
	IfNew Settings
	// Existing refuses to create a session: the error is session_not_found.
	Existing bool
	// New refuses an existing session: the error is session_exists.
	New bool
}

// Opened is the session that Open returns, and whether Open has created it.
type Opened struct {
	Info
	New bool `json:"new" doc:"the session was created by this request"`
}

// Info describes a session.
type Info struct {
	ID      string       `json:"id"` // never used again, unlike the key
	Key     Key          `json:"key"`
	State   State        `json:"state"`
	Reason  string       `json:"reason"` // why it is in this state
	Backend string       `json:"backend"`
	Sandbox string       `json:"sandbox,omitempty"` // empty while there is none
	Spec    sandbox.Spec `json:"spec"`
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
	Incidents []sandbox.Incident `json:"incidents,omitempty"`
}

// Snapshot is a named snapshot of a session.
type Snapshot struct {
	ID      string       `json:"id"`
	Session string       `json:"session"` // the name part of the key
	Name    string       `json:"name"`
	Parent  string       `json:"parent,omitempty"` // name of the snapshot its state came from
	Size    int64        `json:"size"`
	Memory  bool         `json:"memory"` // false: files only
	Created time.Time    `json:"created"`
	Spec    sandbox.Spec `json:"spec"`
}

// Event is something that happened to a session. Seq increases within a session.
type Event struct {
	Seq     int64             `json:"seq"`
	Time    time.Time         `json:"time"`
	Session string            `json:"session"`
	Kind    string            `json:"kind"` // state, operation, snapshot, restored, extended, var, gate, incident
	State   State             `json:"state,omitempty"`
	Reason  string            `json:"reason,omitempty"`
	Op      string            `json:"op,omitempty"`
	Attrs   map[string]string `json:"attrs,omitempty"`
}

// Entry is a line of the audit log: who ran what when, and how it ended.
type Entry struct {
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
