package session

import (
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The defaults of every session. Each can be set in a Policy.
const (
	DefaultIdle        = 15 * time.Minute   // idle timeout
	DefaultHibernation = 7 * 24 * time.Hour // how long a hibernated session is kept
	DefaultSnapshots   = 10
	DefaultCommands    = 32       // cells and commands at once, including those in a queue
	DefaultOutput      = 10 << 30 // bytes of output in all
	DefaultTenant      = "default"
	DefaultAuditKept   = 90 * 24 * time.Hour
	DefaultRecordsKept = 30 * 24 * time.Hour // of ended sessions and their snapshots

	// DefaultExtension is by how much Extend moves the expiry if no duration is given.
	DefaultExtension = 30 * time.Minute
	// A session is restored RestoreAttempts times within RestoreWindow before it is lost for good.
	RestoreAttempts = 3
	RestoreWindow   = 300 * time.Second
	// EndGrace is the time between SIGTERM and SIGKILL when a session ends.
	EndGrace = 5 * time.Second
)

// Aliases for the types of package v1 that this package shares with the HTTP API.
type (
	// Key names a session.
	Key = v1.SessionKey
	// State is the state of a session.
	State = v1.SessionState
	// Policy is how long a session lives and how much it may do.
	Policy = v1.Policy
	// Settings describe a session.
	Settings = v1.Settings
	// OpenOptions are the options of Open.
	OpenOptions = v1.OpenOptions
	// Opened describes the session that Open returns, and whether it is new.
	Opened = v1.Opened
	// Info describes a session.
	Info = v1.Session
	// ListOptions chooses sessions.
	ListOptions = v1.SessionListOptions
	// Snapshot is a named snapshot of a session.
	Snapshot = v1.Snapshot
	// Event is something that happened to a session.
	Event = v1.SessionEvent
	// EventsOptions chooses events.
	EventsOptions = v1.EventsOptions
	// Entry is a line of the audit log.
	Entry = v1.AuditEntry
	// AuditOptions chooses lines of the audit log.
	AuditOptions = v1.AuditOptions
	// Collected is what GC removed.
	Collected = v1.Collected
)
