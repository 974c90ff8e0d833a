package v1

import (
	"fmt"
	"time"
)

// SessionKey names a session. Name is chosen by the caller: 1 to 128 letters, digits, and the characters - _ and . ("."
// and ".." are invalid). The characters @ and : separate a session from a snapshot and from a path.
type SessionKey struct {
	Tenant string `json:"tenant,omitempty" doc:"tenant; left out: default"`
	Name   string `json:"name" doc:"name of the session"`
}

// String returns tenant/name.
func (k SessionKey) String() string { return k.Tenant + "/" + k.Name }

// IdleAction is what happens to an idle session.
type IdleAction string

// The idle actions.
const (
	IdleHibernate IdleAction = "hibernate" // only if the backend supports it
	IdleEnd       IdleAction = "end"
	IdleKeep      IdleAction = "keep"
)

// ExpiryAction is what happens to a session at its expiry.
type ExpiryAction string

// The expiry actions.
const (
	ExpiryEnd       ExpiryAction = "end"
	ExpiryHibernate ExpiryAction = "hibernate" // with everything that runs in it
)

// Policy bounds how long a session lives and how much it may do. Zero fields take their defaults; NoLimit disables a
// timeout.
//
// Two times end a session. Idle is renewed by every use. Expires counts from the creation, however the session is used
// and also while it hibernates; only Extend moves it. The operator sets a third time, Quota.MaxAge: Expires is never
// later.
type Policy struct {
	Idle    Duration   `json:"idle,omitzero" doc:"time without use before on_idle applies, renewed by every use; left out: as the server is configured, 15m by default; none: unlimited"`
	OnIdle  IdleAction `json:"on_idle,omitempty" enum:"hibernate,end,keep" doc:"what happens to an idle session; left out: as the server is configured, and end where the backend cannot hibernate"`
	Expires Duration   `json:"expires,omitzero" doc:"time from the creation of the session to its end, however it is used, hibernation included; only extend moves it; left out: unlimited, or the operator's max_age; none: unlimited"`
	// OnExpiry ExpiryHibernate hibernates the session at its expiry, which it then no longer has.
	OnExpiry    ExpiryAction `json:"on_expiry,omitempty" enum:"end,hibernate" doc:"what happens at the expiry; hibernate: the session is written to disk with all that runs, and has no expiry from then on; left out: end"`
	Hibernation Duration     `json:"hibernation,omitzero" doc:"how long a hibernated session is kept; none: unlimited"`
	Snapshots   int          `json:"snapshots,omitempty" doc:"maximum number of named snapshots"`
	Commands    int          `json:"commands,omitempty" doc:"maximum number of cells and commands at once, including waiting ones"`
	Output      int64        `json:"output,omitempty" doc:"maximum bytes of output of all cells and commands together"`
}

// Settings describe a session. Zero fields leave the choice to the server.
type Settings struct {
	Spec    *Spec             `json:"spec,omitempty" doc:"spec of its sandbox; left out: the spec of the existing session, or the default"`
	Backend string            `json:"backend,omitempty" doc:"backend of its sandbox; left out: the server chooses"`
	Policy  Policy            `json:"policy,omitzero" doc:"lifetimes and limits; left out: as the server is configured"`
	From    string            `json:"from,omitempty" doc:"snapshot to start from: session@name, of the same tenant"`
	Vars    map[string]string `json:"vars,omitempty" doc:"initial variables of a new session; an existing one keeps its own"`
	Labels  map[string]string `json:"labels,omitempty" doc:"labels of a new session, by which lists can be filtered; an existing one keeps its own"`
	Gate    string            `json:"gate,omitempty" doc:"mode of the gate: off, warn or block; left out: as the server is configured"`
	Role    string            `json:"role,omitempty" doc:"role that selects the gate's thesaurus"`
}

// OpenOptions are the options of Open. By default Open returns the existing session, or creates one.
type OpenOptions struct {
	// Settings of the session. If the session exists, a setting that is set here and differs is the error
	// spec_conflict.
	Settings
	// IfNew are further settings of a session that this call creates. They are used where Settings has none.
	IfNew Settings `json:"if_new,omitzero" doc:"further settings of a session that this request creates; they are ignored if the session exists"`
	// Existing does not create a session: if it is missing, the error is session_not_found.
	Existing bool `json:"existing,omitempty" doc:"do not create a session"`
	// New does not open an existing session: the error is session_exists.
	New bool `json:"new,omitempty" doc:"fail if the session exists"`
}

// OpenRequest is the request to open a session.
type OpenRequest struct {
	Name string `json:"name,omitempty" doc:"name of the session; only in POST /v1/sessions, where it may be left out"`
	OpenOptions
}

// Opened is the session that Open returns, and whether Open created it.
type Opened struct {
	Session
	New bool `json:"new" doc:"the session was created by this request"`
}

// Session describes a session.
type Session struct {
	ID      string       `json:"id" doc:"unique id, which every route accepts instead of the name; unlike a name, an id is never reused"`
	Key     SessionKey   `json:"key" doc:"tenant and name"`
	State   SessionState `json:"state" enum:"creating,ready,executing,paused,hibernated,lost,ending,ended,expired" doc:"state of the session"`
	Reason  string       `json:"reason" doc:"why it is in this state"`
	Backend string       `json:"backend" doc:"backend of its sandbox"`
	Sandbox string       `json:"sandbox,omitempty" doc:"id of its sandbox; left out while there is none"`
	Spec    Spec         `json:"spec" doc:"spec of its sandbox"`
	// NetworkRules has the policy of Spec first. Other lines begin with what they belong to, such as "the operator's
	// maximum"; they can only narrow the policy.
	NetworkRules []string          `json:"network_rules,omitempty" doc:"rules for the network that are in force, in order, with those of all maxima; left out: it has no network, or no sandbox is attached"`
	Policy       Policy            `json:"policy" doc:"lifetimes and limits"`
	Labels       map[string]string `json:"labels,omitempty" doc:"its labels"`
	Gate         string            `json:"gate,omitempty" doc:"mode of the gate; left out: as the server is configured"`
	Role         string            `json:"role,omitempty" doc:"role that selects the gate's thesaurus"`
	APIKey       string            `json:"api_key,omitempty" doc:"id of the API key that created it, whose quota it counts for; left out: it was created without one"`
	Created      time.Time         `json:"created" doc:"when it was created"`
	Used         time.Time         `json:"used" doc:"when it was last used"`
	Expires      *time.Time        `json:"expires,omitempty" doc:"when it expires, however it is used; for a hibernated session also when it is deleted; left out: never"`
	IdleAt       *time.Time        `json:"idle_at,omitempty" doc:"when its idle policy applies, if it is not used"`
	Restored     int               `json:"restored,omitempty" doc:"how often a lost sandbox was restored from a snapshot"`
	StateFrom    *time.Time        `json:"state_from,omitempty" doc:"time of the snapshot that it was restored from; left out after a verdict has reported it"`
	Previous     *PreviousSession  `json:"previous,omitempty" doc:"previous session of this name; left out after a verdict has reported that this one is new"`
	Running      int               `json:"running" doc:"cells, commands and connections to ports that run"`
	Output       int64             `json:"output" doc:"bytes of output so far"`
	Snapshots    int               `json:"snapshots" doc:"named snapshots"`
	Saving       *Saving           `json:"saving,omitempty" doc:"how much of its disk the snapshot or fork in progress has copied; left out: none copies a disk"`
	Cost         float64           `json:"cost_usd,omitempty" doc:"estimated cost of its sandbox so far, in US dollars; left out: it costs nothing, or there is none"`
	Ended        *time.Time        `json:"ended,omitempty" doc:"when it ended"`
	Incidents    []Incident        `json:"incidents,omitempty" doc:"what others did to its sandbox without ending it, such as docker pause; the last of each kind"`
}

// Saving is the progress of a snapshot that copies a disk.
type Saving struct {
	Done  int64 `json:"done" doc:"bytes that are copied"`
	Total int64 `json:"total" doc:"bytes on the disk"`
}

// PreviousSession is the session that had the same name earlier.
type PreviousSession struct {
	ID     string       `json:"id" doc:"unique id"`
	State  SessionState `json:"state" enum:"creating,ready,executing,paused,hibernated,lost,ending,ended,expired" doc:"how it ended"`
	Reason string       `json:"reason" doc:"why it ended"`
	Ended  time.Time    `json:"ended" doc:"when it ended"`
}

// String returns how it ended, in one line.
func (p *PreviousSession) String() string {
	return fmt.Sprintf("%s at %s: %s", p.State, p.Ended.UTC().Format(time.RFC3339), p.Reason)
}

// Snapshot is a named snapshot of a session.
type Snapshot struct {
	ID      string    `json:"id" doc:"id of the snapshot"`
	Session string    `json:"session" doc:"name of the session"`
	Name    string    `json:"name" doc:"name of the snapshot"`
	Parent  string    `json:"parent,omitempty" doc:"snapshot that its state came from"`
	Size    int64     `json:"size" doc:"bytes on disk"`
	Memory  bool      `json:"memory" doc:"it holds processes and their memory; otherwise files only"`
	Created time.Time `json:"created" doc:"when it was taken"`
	Spec    Spec      `json:"spec" doc:"spec of the sandbox"`
}

// SessionEvent is something that happened to a session. Seq increases within a session.
type SessionEvent struct {
	Seq     int64             `json:"seq" doc:"number of the event, increasing within a session"`
	Time    time.Time         `json:"time" doc:"when it happened"`
	Session string            `json:"session" doc:"name of the session"`
	Kind    string            `json:"kind" enum:"state,operation,snapshot,restored,extended,var,gate,incident,network,denied" doc:"kind of event; network: the network policy was changed; denied: the network policy denied a connection"`
	State   SessionState      `json:"state,omitempty" enum:"creating,ready,executing,paused,hibernated,lost,ending,ended,expired" doc:"new state"`
	Reason  string            `json:"reason,omitempty" doc:"why"`
	Op      string            `json:"op,omitempty" doc:"id of the cell or command"`
	Attrs   map[string]string `json:"attrs,omitempty" doc:"details"`
}

// AuditEntry is a line of the audit log: the actor, the action, its time and its outcome.
type AuditEntry struct {
	ID       int64         `json:"id" doc:"number of the entry, increasing"`
	Time     time.Time     `json:"time" doc:"when it happened"`
	Tenant   string        `json:"tenant" doc:"tenant"`
	Session  string        `json:"session" doc:"name of the session"`
	Actor    string        `json:"actor" doc:"name of the API key, or user of the command line"`
	Action   string        `json:"action" doc:"what was done, such as cell, command, open, snapshot or file.write"`
	Detail   string        `json:"detail" doc:"beginning of the code or command"`
	Digest   string        `json:"digest,omitempty" doc:"first 16 bytes of the SHA-256 of the code or command, in hex"`
	Op       string        `json:"op,omitempty" doc:"id of the cell or command"`
	Verdict  string        `json:"verdict,omitempty" doc:"how it ended"`
	Gate     string        `json:"gate,omitempty" doc:"decision of the gate"`
	Stdout   int64         `json:"stdout,omitempty" doc:"bytes of stdout"`
	Stderr   int64         `json:"stderr,omitempty" doc:"bytes of stderr"`
	Duration time.Duration `json:"duration_ns,omitempty" doc:"how long it took"`
	Error    string        `json:"error,omitempty" doc:"code of the error"`
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
	StateLost       SessionState = "lost"       // its sandbox is gone, and was not or cannot be restored
	StateEnding     SessionState = "ending"     // its owner ended it, and its backend has not confirmed yet
	StateEnded      SessionState = "ended"      // its owner ended it
	StateExpired    SessionState = "expired"    // it reached its expiry or its idle timeout
)

// Live reports whether the session has not ended, so that its name is in use.
func (s SessionState) Live() bool { return s != StateEnded && s != StateExpired }

// SessionListOptions selects sessions.
type SessionListOptions struct {
	Tenant string            // "*": all; empty: "default"
	States []SessionState    // empty: all that are live
	Labels map[string]string // only sessions that have all of these
	Limit  int               // 0: all
}

// AuditOptions selects entries of the audit log.
type AuditOptions struct {
	Tenant, Session, Actor, Action string
	After                          int64     // entries with a larger id
	Since                          time.Time // entries of this time or later; zero: all
	Last                           int       // return only this many, the newest; 0: all
	Limit                          int       // return only this many, the oldest; 0: all
}

// Collected counts what GC removed.
type Collected struct {
	Sessions  int       `json:"sessions" doc:"records of ended sessions that were removed"`
	Snapshots int       `json:"snapshots" doc:"snapshots that were removed"`
	Strays    int       `json:"strays" doc:"sandboxes without a session that were ended"`
	Entries   int       `json:"entries" doc:"entries of the audit log that were removed"`
	Volumes   int       `json:"volumes" doc:"incomplete volumes that killed programs left, and that were removed"`
	Bytes     int64     `json:"bytes" doc:"bytes of disk that were freed"`
	Files     []DiskUse `json:"files,omitempty" doc:"what else was removed: unused templates, images and files that killed programs left"`
}

// DiskKind is what a part of the disk is used for.
type DiskKind string

// The kinds of DiskUse.
const (
	DiskSandbox  DiskKind = "sandbox"
	DiskSnapshot DiskKind = "snapshot"
	DiskVolume   DiskKind = "volume"
	DiskTemplate DiskKind = "template" // a booted sandbox, from which others are made
	DiskRoot     DiskKind = "root"     // a root file system that sandboxes share
	DiskImage    DiskKind = "image"    // an unpacked image
	DiskCache    DiskKind = "cache"    // programs, and what can be made again
	DiskRun      DiskKind = "run"      // events of runs
	DiskLog      DiskKind = "log"      // logs and the database of sessions
	DiskLeft     DiskKind = "left"     // left by programs that were killed
)

// DiskUse is one thing that takes space on disk.
type DiskUse struct {
	Kind    DiskKind `json:"kind" enum:"sandbox,snapshot,volume,template,root,image,cache,run,log,left" doc:"what it is"`
	Name    string   `json:"name" doc:"its id, the name of its file, or of a volume as tenant/name"`
	Backend string   `json:"backend,omitempty" doc:"its backend, if it belongs to one"`
	Session string   `json:"session,omitempty" doc:"the session that it belongs to, as tenant/name"`
	Bytes   int64    `json:"bytes" doc:"bytes on disk; what several things share counts for each"`
}

// DiskReport is what takes space on the disk of a server.
type DiskReport struct {
	Dir   string    `json:"dir" doc:"data directory of the server"`
	Total int64     `json:"total" doc:"size of its file system in bytes; 0: unknown"`
	Free  int64     `json:"free" doc:"bytes that are free"`
	Low   bool      `json:"low" doc:"so little is free that some should be freed"`
	Uses  []DiskUse `json:"uses" doc:"what takes space, the largest first"`
}

// SandboxUse is whether a program still uses a sandbox, or may use it again.
type SandboxUse string

// The uses of a sandbox.
const (
	SandboxHeld    SandboxUse = "held"    // a running program made it or is attached to it
	SandboxKept    SandboxUse = "kept"    // its server is stopped, and attaches to it at the next start
	SandboxStray   SandboxUse = "stray"   // its program has ended, and the store that knew it was removed or replaced
	SandboxUnknown SandboxUse = "unknown" // its program has ended, and no readable store shows whether it is needed
)

// HostSandbox is a sandbox on this machine. Any program may have made it, not only the server that reports it.
type HostSandbox struct {
	ID       string     `json:"id" doc:"id of the sandbox within its backend"`
	Backend  string     `json:"backend" doc:"backend that runs it"`
	Use      SandboxUse `json:"use" enum:"held,kept,stray,unknown" doc:"held: a running program uses it; kept: its server is stopped and will use it again; stray: no program can use it again; unknown: no readable store shows whether it is needed"`
	Running  bool       `json:"running" doc:"it is running"`
	Session  string     `json:"session,omitempty" doc:"tenant and name of its session; empty: it has no session"`
	Owner    int        `json:"owner" doc:"pid of the program that is responsible for ending it"`
	Instance string     `json:"instance,omitempty" doc:"id of the store of its server"`
	Store    string     `json:"store,omitempty" doc:"directory of that store"`
	Created  time.Time  `json:"created" doc:"when it was made"`
}

// EventsOptions selects events.
type EventsOptions struct {
	After  int64 // events with a larger Seq
	Follow bool  // continue with later events until ctx or the session ends
}

// SessionPage is one page of sessions.
type SessionPage struct {
	Sessions []Session `json:"sessions" doc:"sessions, by name"`
	Next     string    `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// ExtendRequest moves the expiry of a session.
type ExtendRequest struct {
	By Duration `json:"by,omitzero" doc:"time from now, or from the present expiry if that is later, to the new expiry; left out: 30m"`
}

// ForkRequest requests live copies of a session.
type ForkRequest struct {
	Count int      `json:"count,omitempty" doc:"number of copies; left out: as many as there are names, or one"`
	Names []string `json:"names,omitempty" doc:"names of the copies; left out: the server chooses"`
}

// Forked is the answer to a ForkRequest: all copies.
type Forked struct {
	Sessions []Session `json:"sessions" doc:"the copies"`
}

// SaveRequest requests a snapshot.
type SaveRequest struct {
	Name string `json:"name" doc:"name of the snapshot"`
}

// RestoreRequest restores a session from a snapshot.
type RestoreRequest struct {
	Ref string `json:"ref" doc:"snapshot to restore: name, or session@name"`
}

// SnapshotPage is one page of the snapshots of a session or tenant.
type SnapshotPage struct {
	Snapshots []Snapshot `json:"snapshots" doc:"snapshots, oldest first"`
	Next      string     `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// VarPage is one page of the variables of a session, sorted by name.
type VarPage struct {
	Vars map[string]string `json:"vars" doc:"variables by name"`
	Next string            `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// Var is the value of one variable.
type Var struct {
	Value string `json:"value" doc:"value of the variable"`
}

// AuditPage is one page of the audit log.
type AuditPage struct {
	Entries []AuditEntry `json:"entries" doc:"entries, oldest first"`
	Next    int64        `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// TokenRequest requests a session token: a token that is valid for one session only, and no longer than the session.
type TokenRequest struct {
	Scope string   `json:"scope,omitempty" doc:"read or execute (the default)"`
	For   Duration `json:"for,omitzero" doc:"time until it expires; left out: with the session"`
}

// Token is a session token. It is shown once.
type Token struct {
	Token   string     `json:"token" doc:"the token itself; shown once"`
	Session string     `json:"session" doc:"name of the session"`
	Scope   string     `json:"scope" enum:"read,execute" doc:"what it permits"`
	Expires *time.Time `json:"expires,omitempty" doc:"when it expires; left out: with the session"`
}
