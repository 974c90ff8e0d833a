// Package config reads the one configuration file, and the environment that overrides it.
//
// The structs below are the whole of it: a key exists because a field does, its variable in the environment is
// RECLUSE_SECTION_KEY, and docs/CONFIG.md is written from the same fields. A key that is not here is refused with its line and the
// nearest one that is.
package config

import (
	"fmt"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/terms"
	"github.com/recluse-dev/recluse/internal/mcp"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/pool"
	"github.com/recluse-dev/recluse/session"
)

// Config is everything that can be configured. Tags: key is the name (in a section of package v1 the name in JSON is), doc says what it is for, min is the least number,
// oneof the words that are allowed, none allows a duration to be switched off, limits names the keys of a v1.RunLimits, path says that the
// value names files: yes, role where they may have a role before them, or out where the program writes them.
type Config struct {
	Server  Server    `key:"server" doc:"the server that looks after sessions, started by hand or by itself"`
	Client  Client    `key:"client" doc:"the server that the command line talks to, when it is not the user's own"`
	Session Session   `key:"session" doc:"what a new session gets when its opener does not say"`
	Pool    Pool      `key:"pool" doc:"sandboxes that are kept warm, so that a new session is there at once"`
	Backend Backend   `key:"backend" doc:"which backend makes sandboxes"`
	Docker  Docker    `key:"docker" doc:"the docker backend; see docs/backends/docker.md"`
	Limits  v1.Limits `key:"limits" doc:"limits of a sandbox, for what is not said by flags"`
	Quota   v1.Quota  `key:"quota" doc:"what all sessions and runs of the server together may use; session.max_age is one of these bounds. What is left out is not bounded for the user's own socket; over the network memory, cpus and processes follow the size of the machine (docs/OPERATION.md)"`
	Gate    Gate      `key:"gate" doc:"what judges code before it runs; a seat belt, not the wall"`
	Models  Models    `key:"models" doc:"the language models of recluse ask and of runs in the server; keys of providers are also taken from the environment"`
	MCP     MCP       `key:"mcp" doc:"MCP servers whose tools are functions for the code of runs"`
	Log     Log       `key:"log" doc:"the log of the server"`
	Audit   Audit     `key:"audit" doc:"the log of who ran what when"`
	Webhook Webhook   `key:"webhook" doc:"who is told of alerts"`

	Telemetry Telemetry `key:"telemetry" doc:"traces and metrics of the server"`

	// Warnings are lines about old names that were used.
	Warnings []string

	sources map[string]Source
}

// Server configures serving.
type Server struct {
	Listen  string      `key:"listen" doc:"address for HTTP, beside the socket of the user's own; empty: none"`
	Socket  string      `key:"socket" path:"out" doc:"path of the UNIX socket of the API; empty: in the data directory"`
	TLSCert string      `key:"tls_cert" path:"yes" doc:"file with the certificate (PEM) for the address"`
	TLSKey  string      `key:"tls_key" path:"yes" doc:"file with its key (PEM)"`
	Linger  v1.Duration `key:"linger" none:"yes" doc:"how long a server that was started by itself stays with nothing to look after"`
	Drain   v1.Duration `key:"drain" doc:"how long requests have to end when the server leaves"`

	CORSOrigins   []string    `key:"cors_origins" doc:"origins whose pages may use the API from a browser, with a key, e.g. https://app.example; empty: none"`
	RunTimeout    v1.Duration `key:"run_timeout" none:"yes" doc:"time of a cell or command whose request names none; terminals and commands in the background have no limit then"`
	TerminalGrace v1.Duration `key:"terminal_grace" none:"yes" doc:"how long a terminal whose connection broke goes on, so that it can be attached again; none: it ends at once"`

	MaxBody   Size        `key:"max_body" doc:"bytes of a request that is JSON"`
	MaxUpload Size        `key:"max_upload" doc:"bytes of an uploaded file or archive; unlimited over the UNIX socket"`
	Timeout   v1.Duration `key:"timeout" doc:"for a request that neither runs code nor streams"`
	Rate      float64     `key:"rate" min:"0" doc:"requests a second that a key may make; 0: any number"`
	Burst     int         `key:"burst" min:"0" doc:"requests at once beyond the rate; 0: as many as the rate"`

	TerraphimNames bool `key:"terraphim_names" doc:"offer the tools of MCP over HTTP also by the names terraphim gives them (rlm_code, rlm_bash, …)"`
	SamplingCalls  int  `key:"sampling_calls" min:"0" doc:"how often a client's own model may be asked in one connection of MCP over HTTP; 0: never"`
}

// Client configures the command line.
type Client struct {
	URL string `key:"url" doc:"address of another server, e.g. https://box.example:7070, on which everything then runs; empty: the user's own, over its socket"`
	Key Secret `key:"key" doc:"API key for that address"`
}

// Session configures the lives of sessions.
type Session struct {
	Idle        v1.Duration `key:"idle" none:"yes" doc:"how long a session may be without use; every use renews it"`
	OnIdle      string      `key:"on_idle" oneof:"hibernate end keep" doc:"what becomes of a session without use; where a backend cannot hibernate, it ends"`
	MaxAge      v1.Duration `key:"max_age" none:"yes" doc:"time from the creation of a session to its end at most, however it is used, and however often it is extended"`
	Hibernation v1.Duration `key:"hibernation" none:"yes" doc:"how long a hibernated session is kept"`
	Snapshots   int         `key:"snapshots" min:"1" doc:"named snapshots of one session"`
	Commands    int         `key:"commands" min:"1" doc:"cells and commands of one session at once, waiting ones included"`
	Output      Size        `key:"output" doc:"bytes of output of one session, in all"`
	Remember    v1.Duration `key:"remember" none:"yes" doc:"how long ended sessions are listed, and their snapshots kept"`
}

// Pool configures warm sandboxes.
type Pool struct {
	Enabled     bool        `key:"enabled" doc:"keep any at all"`
	Min         int         `key:"min" min:"1" doc:"kept however long nobody asks"`
	Target      int         `key:"target" min:"1" doc:"kept while there is demand, or as many as were missing in the last burst"`
	Max         int         `key:"max" min:"1" doc:"of all kinds together"`
	ShrinkAfter v1.Duration `key:"shrink_after" doc:"time without demand after which only the least number is kept, and after a burst in which the pool stays larger"`
	Wait        v1.Duration `key:"wait" doc:"how long a caller waits for one that is being made before another is made for it"`
}

// Backend configures the choice of a backend.
type Backend struct {
	Order            []string `key:"order" doc:"backends to try, in this order; empty: the strongest isolation first"`
	MinIsolation     string   `key:"min_isolation" oneof:"none container kernel vm" doc:"refuse anything weaker"`
	AllowNoIsolation bool     `key:"allow_no_isolation" doc:"consent to a backend that isolates nothing"`
	AllowMounts      []string `key:"allow_mounts" doc:"directories that may be mounted although a rule refuses a place above them, e.g. /root/project; one with a key folder or key file in it, such as .ssh, .netrc or id_rsa, stays refused"`
	AllowContainer   bool     `key:"allow_container" doc:"consent to containers that share the host's kernel, such as Docker's with runc; to name docker in the order is consent too"`
}

// Models configures which language models there are, and what a run may take.
type Models struct {
	Default   string   `key:"default" doc:"model of a run, provider/model, or several with commas: the next is asked when one fails; empty: RECLUSE_MODEL, or one that is found"`
	Sub       []string `key:"sub" doc:"models of the calls that a run makes, by depth; the last serves all deeper ones; empty: that of the run"`
	Providers string   `key:"providers" path:"yes" doc:"file (YAML) with more about providers and models: base URLs, keys, limits, prices; docs/RLM.md shows one"`
	Scripts   []string `key:"scripts" path:"yes" doc:"files with scripted models, which answer by rules and need no network"`
	Cassettes []string `key:"cassettes" path:"yes" doc:"files with recorded calls: the models in them are not asked, but say what they said then; a call that was not recorded fails"`
	Record    string   `key:"record" path:"out" doc:"file to which all calls of models are recorded, as a cassette; empty: none"`

	// Limits bounds a run. Its keys are the names of flags, with an underscore; all other limits are those of package rlm.
	Limits v1.RunLimits `limits:"max_tokens max_cost max_time depth"`

	PlainBelow int  `key:"plain_below" min:"0" doc:"tokens of a context below which the model is simply given it, without a run; 0: never"`
	Cache      Size `key:"cache" doc:"size of the replies to calls from code that are kept on disk, so that later runs need not ask again; 0: each run keeps only its own"`
	Resume     bool `key:"resume" doc:"runs that were under way when their server ended go on by themselves in the next one"`
}

// Log configures logging.
type Log struct {
	Level  string `key:"level" oneof:"debug info warn error" doc:"the least that is logged"`
	Format string `key:"format" oneof:"json text" doc:"how a line looks"`
}

// Audit configures the audit log.
type Audit struct {
	Keep v1.Duration `key:"keep" none:"yes" doc:"how long entries are kept"`
}

// Telemetry configures what others can watch.
type Telemetry struct {
	Traces        string `key:"traces" doc:"address of an OpenTelemetry collector (OTLP over HTTP), e.g. http://127.0.0.1:4318; empty: as the variables OTEL_* say"`
	PublicMetrics bool   `key:"public_metrics" doc:"serve /metrics without a key"`
}

// Webhook configures alerts.
type Webhook struct {
	URL Secret `key:"url" doc:"address that is sent a JSON message when a session is lost; often it holds a token, so it is not shown"`
}

// Default is what holds where nothing is said.
func Default() *Config {
	limits := v1.Limits{}.WithDefaults()
	limits.Disk = 0 // it follows the memory
	return &Config{
		Server: Server{
			Linger: DefaultLinger, Drain: v1.Duration(server.DefaultDrain), MaxBody: server.DefaultBody, MaxUpload: server.DefaultUpload, Timeout: v1.Duration(server.DefaultTime),
			RunTimeout: v1.Duration(v1.DefaultTimeout), TerminalGrace: v1.Duration(server.DefaultTerminalGrace), SamplingCalls: mcp.DefaultSamplingCalls,
		},
		Session: Session{
			Idle: v1.Duration(session.DefaultIdle), OnIdle: string(v1.IdleHibernate), MaxAge: v1.NoLimit, Hibernation: v1.Duration(session.DefaultHibernation), Snapshots: session.DefaultSnapshots,
			Commands: session.DefaultCommands, Output: session.DefaultOutput,
			Remember: v1.Duration(session.DefaultRecordsKept),
		},
		Audit: Audit{Keep: v1.Duration(session.DefaultAuditKept)},
		Pool: Pool{
			Enabled: true, Min: pool.DefaultMin, Target: pool.DefaultTarget, Max: pool.DefaultMax,
			ShrinkAfter: v1.Duration(pool.DefaultShrinkAfter), Wait: v1.Duration(pool.DefaultWait),
		},
		Backend: Backend{MinIsolation: "none"},
		Docker:  defaultDocker(),
		Limits:  limits,
		Gate: Gate{
			Rules: string(gate.ModeWarn), Graph: string(gate.ModeBlock), Strictness: string(terms.Normal), MinRatio: terms.DefaultMinRatio,
			Least: string(gate.ModeOff), Tries: gate.DefaultEscalateAfter, Approval: v1.Duration(gate.DefaultApprovalTTL),
		},
		Models:  Models{Limits: rlm.DefaultLimits(), PlainBelow: rlm.DefaultPlainBelow, Resume: true},
		MCP:     defaultMCP(),
		Log:     Log{Level: "info", Format: "json"},
		sources: map[string]Source{},
	}
}

// Policy gives the lives of sessions as their package wants them.
func (s Session) Policy() session.Policy {
	return session.Policy{
		Idle: s.Idle, OnIdle: v1.IdleAction(s.OnIdle), Hibernation: s.Hibernation, Snapshots: s.Snapshots, Commands: s.Commands, Output: int64(s.Output),
	}
}

// Limits gives what a request may ask as the server's package wants it.
func (s Server) Limits() server.Limits {
	return server.Limits{Body: int64(s.MaxBody), Upload: int64(s.MaxUpload), Time: s.Timeout.Std(), Run: s.RunTimeout.Std(), Rate: s.Rate, Burst: s.Burst}
}

// ServerQuota returns the bounds of the whole server.
func (c *Config) ServerQuota() v1.Quota {
	q := c.Quota
	if c.Session.MaxAge != v1.NoLimit {
		q.MaxAge = &c.Session.MaxAge
	}
	return q
}

// SandboxLimits returns the limits that somebody configured. The others are zero, so that they are nobody's demand.
func (c *Config) SandboxLimits() v1.Limits {
	var set Config
	for _, f := range fields("limits") {
		if _, ok := c.Set(f.key); ok {
			f.in(&set).Set(f.in(c))
		}
	}
	return set.Limits
}

// Options gives the pool's sizes as its package wants them.
func (p Pool) Options() pool.Options {
	return pool.Options{Min: p.Min, Target: p.Target, Max: p.Max, ShrinkAfter: p.ShrinkAfter.Std(), Wait: p.Wait.Std()}
}

// check refuses what does not go together.
func (c *Config) check() []error {
	var bad []error
	if err := server.CheckOrigins(c.Server.CORSOrigins); err != nil {
		bad = append(bad, c.wrong("server.cors_origins", err.Error()))
	}
	if (c.Server.TLSCert == "") != (c.Server.TLSKey == "") {
		bad = append(bad, c.wrong("server.tls_cert", "server.tls_cert and server.tls_key go together"))
	}
	for _, dir := range c.Backend.AllowMounts {
		if !filepath.IsAbs(dir) {
			bad = append(bad, c.wrong("backend.allow_mounts", fmt.Sprintf("backend.allow_mounts: %q is not absolute", dir)))
		}
	}
	if c.Pool.Max < c.Pool.Min {
		bad = append(bad, c.wrong("pool.max", "pool.max is below pool.min"))
	}
	return bad
}
