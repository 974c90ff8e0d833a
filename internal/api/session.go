package api

import (
	"reflect"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// Open asks for a session, which is created if there is none.
type Open struct {
	Name string `json:"name,omitempty" doc:"of the session; only in POST /v1/sessions, where it may be left out"`
	Settings
	IfNew    *Settings `json:"if_new,omitempty" doc:"further settings of a session that this request creates; an existing one is returned whatever they say"`
	Existing bool      `json:"existing,omitempty" doc:"do not create a session"`
	New      bool      `json:"new,omitempty" doc:"refuse an existing session"`
}

// Settings is session.Settings. In Open, a setting that is given and differs from that of an existing session is
// spec_conflict, except for the variables, which are those of a new session.
type Settings struct {
	Spec    *sandbox.Spec     `json:"spec,omitempty" doc:"of its sandbox; left out: whatever the session has, or the default"`
	Backend string            `json:"backend,omitempty"`
	Policy  Policy            `json:"policy,omitzero"`
	From    string            `json:"from,omitempty" doc:"a snapshot to begin from, session@name"`
	Vars    map[string]string `json:"vars,omitempty" doc:"the first variables of a new session; a live one keeps its own"`
	Gate    string            `json:"gate,omitempty" doc:"off, warn or block; left out: as the server is configured"`
	Role    string            `json:"role,omitempty" doc:"chooses the thesaurus that the gate judges by"`
}

// OpenOf returns the request for options.
func OpenOf(o session.OpenOptions) Open {
	out := Open{Settings: settingsOf(o.Settings), Existing: o.Existing, New: o.New}
	if in := settingsOf(o.IfNew); !reflect.ValueOf(in).IsZero() {
		out.IfNew = &in
	}
	return out
}

// Options is the reverse of OpenOf.
func (o Open) Options() session.OpenOptions {
	out := session.OpenOptions{Settings: o.Settings.session(), Existing: o.Existing, New: o.New}
	if o.IfNew != nil {
		out.IfNew = o.IfNew.session()
	}
	return out
}

func settingsOf(s session.Settings) Settings {
	return Settings{Spec: s.Spec, Backend: s.Backend, Policy: PolicyOf(s.Policy), From: s.From, Vars: s.Vars, Gate: s.Gate, Role: s.Role}
}

func (s Settings) session() session.Settings {
	return session.Settings{Spec: s.Spec, Backend: s.Backend, Policy: s.Policy.Session(), From: s.From, Vars: s.Vars, Gate: s.Gate, Role: s.Role}
}

// Policy is session.Policy with times as texts.
type Policy struct {
	TTL         v1.Duration        `json:"ttl,omitzero"`
	Idle        v1.Duration        `json:"idle,omitzero"`
	OnIdle      session.IdleAction `json:"on_idle,omitempty"`
	Extensions  int                `json:"extensions,omitempty"`
	Extension   v1.Duration        `json:"extension,omitzero"`
	Hibernation v1.Duration        `json:"hibernation,omitzero"`
	Snapshots   int                `json:"snapshots,omitempty"`
	Commands    int                `json:"commands,omitempty"`
	Output      int64              `json:"output,omitempty"`
}

// PolicyOf writes a policy for the way.
func PolicyOf(p session.Policy) Policy {
	return Policy{
		TTL: v1.Duration(p.TTL), Idle: v1.Duration(p.Idle), OnIdle: p.OnIdle, Extensions: p.Extensions, Extension: v1.Duration(p.Extension),
		Hibernation: v1.Duration(p.Hibernation), Snapshots: p.Snapshots, Commands: p.Commands, Output: p.Output,
	}
}

// Session is the way back from PolicyOf.
func (p Policy) Session() session.Policy {
	return session.Policy{
		TTL: time.Duration(p.TTL), Idle: time.Duration(p.Idle), OnIdle: p.OnIdle, Extensions: p.Extensions, Extension: time.Duration(p.Extension),
		Hibernation: time.Duration(p.Hibernation), Snapshots: p.Snapshots, Commands: p.Commands, Output: p.Output,
	}
}

// Sessions is one page.
type Sessions struct {
	Sessions []session.Info `json:"sessions"`
	Next     string         `json:"next,omitempty" doc:"give it as after for the next page; empty: this is the last"`
}

// Extend asks for more time.
type Extend struct {
	By v1.Duration `json:"by,omitzero" doc:"left out: as much as the policy allows"`
}

// Fork asks for live copies.
type Fork struct {
	Count int      `json:"count,omitempty" doc:"left out: as many as there are names, or one"`
	Names []string `json:"names,omitempty"`
}

// Forked is the answer to Fork: all copies.
type Forked struct {
	Sessions []session.Info `json:"sessions"`
}

// Save asks for a snapshot.
type Save struct {
	Name string `json:"name"`
}

// Restore puts a session back.
type Restore struct {
	Ref string `json:"ref" doc:"name, or session@name"`
}

// SnapshotList is all snapshots of a session or tenant.
type SnapshotList struct {
	Snapshots []session.Snapshot `json:"snapshots"`
	Next      string             `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Vars are variables of a session, in the order of their names.
type Vars struct {
	Vars map[string]string `json:"vars"`
	Next string            `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Var is the value of one.
type Var struct {
	Value string `json:"value"`
}

// Audit is one page of the audit log.
type Audit struct {
	Entries []session.Entry `json:"entries"`
	Next    int64           `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// NewToken asks for a token that is good for one session only, and no longer than it.
type NewToken struct {
	Scope string      `json:"scope,omitempty" doc:"read or execute (the default)"`
	For   v1.Duration `json:"for,omitzero" doc:"left out: as long as the session"`
}

// Token is shown once.
type Token struct {
	Token   string     `json:"token"`
	Session string     `json:"session"`
	Scope   string     `json:"scope"`
	Expires *time.Time `json:"expires,omitempty"`
}

// NewKey asks for an API key.
type NewKey struct {
	Name   string      `json:"name" doc:"for people and for the audit log"`
	Tenant string      `json:"tenant,omitempty" doc:"* makes an operator's key, which may name a tenant in each request"`
	Scope  string      `json:"scope" doc:"read, execute or admin; each includes those before it"`
	For    v1.Duration `json:"for,omitzero" doc:"left out: it does not expire"`
}

// Key describes an API key. Secret is given when it is made and never again.
type Key struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Tenant  string     `json:"tenant"`
	Scope   string     `json:"scope"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Secret  string     `json:"secret,omitempty"`
}

// Keys is all keys.
type Keys struct {
	Keys []Key  `json:"keys"`
	Next string `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Server describes the server and who it takes the caller for.
type Server struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Tenant  string    `json:"tenant"`
	Scope   string    `json:"scope"`
	Actor   string    `json:"actor"`
}

// Health is the answer of healthz and readyz.
type Health struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}
