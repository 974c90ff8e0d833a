// Package config reads the configuration file, and the environment variables that override it.
//
// The structs below declare everything: a key exists because a field does, its environment variable is
// RECLUSE_SECTION_KEY, and docs/CONFIG.md is generated from the same fields. An unknown key is an error with its line
// and the nearest known key.
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

// Config is the whole configuration.
//
// Tags of the fields:
//   - key is the name of the key. In a section of package v1, the JSON name is the key.
//   - doc is the description, and min the minimum of a number.
//   - oneof lists the valid words.
//   - none allows the value none, which switches a duration off.
//   - path marks a key whose value names files. yes: files that are read. role: a file may have a role before it, as
//     ROLE=FILE. out: a file that the program writes.
//
// A field of type v1.RunLimits has one key for each of its limits.
type Config struct {
	Server  Server    `key:"server" doc:"the server that manages sessions, whether started by recluse serve or in the background"`
	Client  Client    `key:"client" doc:"the server that the command line uses, if it is not the user's own"`
	Session Session   `key:"session" doc:"defaults of new sessions"`
	Pool    Pool      `key:"pool" doc:"sandboxes that are kept warm for new sessions"`
	Backend Backend   `key:"backend" doc:"which backend makes sandboxes"`
	Network Network   `key:"network" doc:"the network policies of sandboxes; see docs/NETWORK.md"`
	Docker  Docker    `key:"docker" doc:"the docker backend; see docs/backends/docker.md"`
	VM      VM        `key:"vm" doc:"the vm backend; see docs/backends/vm.md"`
	E2B     E2B       `key:"e2b" doc:"the e2b backend; see docs/backends/e2b.md"`
	Modal   Modal     `key:"modal" doc:"the modal backend; see docs/backends/modal.md"`
	Prime   Prime     `key:"prime" doc:"the prime backend; see docs/backends/prime.md"`
	Limits  v1.Limits `key:"limits" doc:"limits of a sandbox, where flags do not set them"`
	Quota   v1.Quota  `key:"quota" doc:"what all sessions and runs of the server may use together; session.max_age also belongs to the quota. A key that is not set has no limit for calls over the user's own socket. For calls over the network, the defaults of memory, cpus, processes and volume_bytes follow the size of the machine (docs/OPERATION.md)"`
	Gate    Gate      `key:"gate" doc:"the gate, which judges code before it runs; it prevents accidents and is not a security boundary"`
	Models  Models    `key:"models" doc:"the models of recluse ask and of runs in the server; keys of providers are also read from the environment"`
	MCP     MCP       `key:"mcp" doc:"MCP servers whose tools the code of runs can call"`
	Log     Log       `key:"log" doc:"the log of the server"`
	Audit   Audit     `key:"audit" doc:"the audit log: who ran what and when"`
	Webhook Webhook   `key:"webhook" doc:"the receiver of alerts"`

	Telemetry Telemetry `key:"telemetry" doc:"traces and metrics of the server"`

	// Warnings has a line for each use of an old name of a key.
	Warnings []string

	sources map[string]Source
}

// Server configures the server.
type Server struct {
	Listen   string      `key:"listen" doc:"address for HTTP, in addition to the user's own socket; empty: none"`
	Socket   string      `key:"socket" path:"out" doc:"path of the UNIX socket of the API; empty: in the data directory"`
	TLSCert  string      `key:"tls_cert" path:"yes" doc:"file with the TLS certificate (PEM) for the address"`
	TLSKey   string      `key:"tls_key" path:"yes" doc:"file with the key of the certificate (PEM)"`
	IdleExit v1.Duration `key:"idle_exit" none:"yes" doc:"time without callers, runs and live sessions after which a background server exits; none: never"`
	Drain    v1.Duration `key:"drain" doc:"how long a server that exits waits for running requests"`

	CORSOrigins   []string    `key:"cors_origins" doc:"origins whose web pages may use the API with a key, such as https://app.example; empty: none"`
	Hosts         []string    `key:"hosts" doc:"names by which callers reach the address, such as box.example; requests over TCP that name another host are refused, except localhost and the addresses of the machine; empty: none"`
	PortsDomain   string      `key:"ports_domain" doc:"domain of the host names of ports inside sessions, PORT-SESSION.DOMAIN, such as preview.example, or https://preview.example behind a proxy; DNS must lead all names below it to the server; empty: localhost"`
	RunTimeout    v1.Duration `key:"run_timeout" none:"yes" doc:"default timeout of cells and commands; terminals and background commands have none"`
	TerminalGrace v1.Duration `key:"terminal_grace" none:"yes" doc:"how long a terminal stays after its connection was lost, so that it can be attached again; none: it ends at once"`

	MaxBody   Size        `key:"max_body" doc:"maximum size of a JSON request"`
	MaxUpload Size        `key:"max_upload" doc:"maximum size of an uploaded file or archive; unlimited over the UNIX socket"`
	Timeout   v1.Duration `key:"timeout" doc:"timeout of requests that neither run code nor stream"`
	Rate      float64     `key:"rate" min:"0" doc:"requests per second that a key may make; 0: unlimited"`
	Burst     int         `key:"burst" min:"0" doc:"requests that a key may make at once, beyond the rate; 0: the rate"`

	E2B            bool `key:"e2b" doc:"also serve the API of E2B on the address, for its SDKs"`
	TerraphimNames bool `key:"terraphim_names" doc:"offer the MCP tools over HTTP also by their terraphim names (rlm_code, rlm_bash, …)"`
	SamplingCalls  int  `key:"sampling_calls" min:"0" doc:"calls of a client's own model in one connection of MCP over HTTP; 0: none"`
}

// Client configures the command line.
type Client struct {
	URL string `key:"url" doc:"URL of another server, such as https://box.example:7070, on which everything then runs; empty: the user's own server, over its socket"`
	Key Secret `key:"key" doc:"API key for that server"`
}

// Session configures the lifetimes and limits of sessions.
type Session struct {
	Idle        v1.Duration `key:"idle" none:"yes" doc:"idle timeout of a session; each use renews it"`
	OnIdle      string      `key:"on_idle" oneof:"hibernate end keep" doc:"action after the idle timeout; a session ends if its backend cannot hibernate"`
	MaxAge      v1.Duration `key:"max_age" none:"yes" doc:"maximum time from the creation of a session to its end, however it is used and extended"`
	Hibernation v1.Duration `key:"hibernation" none:"yes" doc:"how long a hibernated session is kept"`
	Snapshots   int         `key:"snapshots" min:"1" doc:"maximum number of named snapshots of a session"`
	Commands    int         `key:"commands" min:"1" doc:"maximum number of cells and commands of a session at a time, including waiting ones"`
	Output      Size        `key:"output" doc:"maximum size of the output of a session, in total"`
	Remember    v1.Duration `key:"remember" none:"yes" doc:"how long ended sessions are listed and their snapshots kept"`
	Sudo        bool        `key:"sudo" doc:"let code become root in new sandboxes, with sudo and in commands of the user root (--sudo)"`
}

// Pool configures warm sandboxes.
type Pool struct {
	Enabled     bool        `key:"enabled" doc:"keep warm sandboxes"`
	Min         int         `key:"min" min:"1" doc:"number of sandboxes that are kept even without demand"`
	Target      int         `key:"target" min:"1" doc:"number of sandboxes that are kept while there is demand; after a burst, as many as were missing"`
	Max         int         `key:"max" min:"1" doc:"maximum number of sandboxes of all kinds together"`
	ShrinkAfter v1.Duration `key:"shrink_after" doc:"time without demand after which the pool shrinks to min; after a burst, the pool stays larger for the same time"`
	Wait        v1.Duration `key:"wait" doc:"how long a caller waits for a sandbox that is being made before it makes its own"`
}

// Backend configures the choice of a backend.
type Backend struct {
	Order            []string `key:"order" doc:"backends to try, in this order; empty: strongest isolation first. Backends that cost money are only tried if they are listed: e2b"`
	MinIsolation     string   `key:"min_isolation" oneof:"none container kernel vm" doc:"refuse weaker isolation"`
	AllowNoIsolation bool     `key:"allow_no_isolation" doc:"allow a backend that isolates nothing"`
	AllowMounts      []string `key:"allow_mounts" doc:"directories that may be mounted although a rule refuses a directory above them, such as /root/project; a directory with keys in it, such as .ssh, .netrc or id_rsa, is always refused"`
	UnlimitedDisk    bool     `key:"unlimited_disk" doc:"allow volumes whose size cannot be limited, such as those of local and of an ordinary user; they report disk_limit: false; docker has a setting of its own"`
	AllowContainer   bool     `key:"allow_container" doc:"allow containers that share the host's kernel, such as Docker's with runc; implied if docker is in the order"`
}

// Models configures the models, and the limits of runs.
type Models struct {
	Default   string   `key:"default" doc:"model of a run, as provider/model; further models, separated by commas, are used if one fails; empty: RECLUSE_MODEL, or the first model found"`
	Sub       []string `key:"sub" doc:"models of sub-calls, by depth; the last one is used for all deeper levels; empty: the model of the run"`
	Providers string   `key:"providers" path:"yes" doc:"file (YAML) with providers and models: base URLs, keys, limits, prices; see docs/RLM.md for an example"`
	Scripts   []string `key:"scripts" path:"yes" doc:"files with scripted models, which answer by rules and need no network"`
	Cassettes []string `key:"cassettes" path:"yes" doc:"files with recorded calls; their models replay the recorded replies, and a call that was not recorded fails"`
	Record    string   `key:"record" path:"out" doc:"file to record all model calls to, as a cassette; empty: none"`

	// Limits are the limits of a run. The keys are the names of the flags, with underscores.
	Limits v1.RunLimits

	PlainBelow  int      `key:"plain_below" min:"0" doc:"size in tokens below which a context is sent to the model as it is, without a run; 0: never"`
	Cache       Size     `key:"cache" doc:"size of the cache on disk for replies to sub-calls, which later runs use; 0: each run has only its own cache"`
	Prompts     []string `key:"prompts" doc:"prompt profiles of runs, as [DEPTH:][MODEL=]PROFILE; the first that matches is used, and * in MODEL matches any text; profiles: default, official, compact, plan; see docs/RLM.md"`
	KeepPrompts Size     `key:"keep_prompts" doc:"size of the prompts that are stored with each run, without secrets, for recluse runs show and export; further ones are left out; 0: none"`
	Dialect     bool     `key:"dialect" doc:"run lines of replies that begin with a command word: RUN(…), CODE(…), QUERY_LLM(…), QUERY_LLM_BATCHED(…), SNAPSHOT(…), ROLLBACK(…); for models trained on them"`
	Resume      bool     `key:"resume" doc:"continue interrupted runs in the next server"`
}

// Log configures logging.
type Log struct {
	Level  string `key:"level" oneof:"debug info warn error" doc:"lowest level that is logged"`
	Format string `key:"format" oneof:"json text" doc:"format of log lines"`
}

// Audit configures the audit log.
type Audit struct {
	Keep v1.Duration `key:"keep" none:"yes" doc:"how long entries are kept"`
}

// Telemetry configures traces and metrics.
type Telemetry struct {
	Traces        string `key:"traces" doc:"URL of an OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318; empty: the environment variables OTEL_*"`
	PublicMetrics bool   `key:"public_metrics" doc:"serve /metrics without a key"`
}

// Webhook configures alerts.
type Webhook struct {
	URL Secret `key:"url" doc:"URL that receives a JSON message when a session is lost; it often contains a token, so it is not shown"`
}

// Default returns the default configuration.
func Default() *Config {
	limits := v1.Limits{}.WithDefaults()
	return &Config{
		Server: Server{
			IdleExit:      DefaultIdleExit,
			Drain:         v1.Duration(server.DefaultDrain),
			MaxBody:       server.DefaultBody,
			MaxUpload:     server.DefaultUpload,
			Timeout:       v1.Duration(server.DefaultTime),
			RunTimeout:    v1.Duration(v1.DefaultTimeout),
			TerminalGrace: v1.Duration(server.DefaultTerminalGrace),
			SamplingCalls: mcp.DefaultSamplingCalls,
		},
		Session: Session{
			Idle:        v1.Duration(session.DefaultIdle),
			OnIdle:      string(v1.IdleHibernate),
			MaxAge:      v1.NoLimit,
			Hibernation: v1.Duration(session.DefaultHibernation),
			Snapshots:   session.DefaultSnapshots,
			Commands:    session.DefaultCommands,
			Output:      session.DefaultOutput,
			Remember:    v1.Duration(session.DefaultRecordsKept),
		},
		Audit: Audit{Keep: v1.Duration(session.DefaultAuditKept)},
		Pool: Pool{
			Enabled:     true,
			Min:         pool.DefaultMin,
			Target:      pool.DefaultTarget,
			Max:         pool.DefaultMax,
			ShrinkAfter: v1.Duration(pool.DefaultShrinkAfter),
			Wait:        v1.Duration(pool.DefaultWait),
		},
		Backend: Backend{MinIsolation: "none"},
		Network: Network{Max: string(v1.NetworkPublic)},
		Docker:  defaultDocker(),
		VM:      defaultVM(),
		E2B:     defaultE2B(),
		Modal:   defaultModal(),
		Prime:   defaultPrime(),
		Limits:  limits,
		Gate: Gate{
			Rules:      string(gate.ModeWarn),
			Graph:      string(gate.ModeBlock),
			Strictness: string(terms.Normal),
			MinRatio:   terms.DefaultMinRatio,
			MinMode:    string(gate.ModeOff),
			Tries:      gate.DefaultEscalateAfter,
			Approval:   v1.Duration(gate.DefaultApprovalTTL),
		},
		Models: Models{
			Limits:      rlm.DefaultLimits(),
			PlainBelow:  rlm.DefaultPlainBelow,
			KeepPrompts: rlm.DefaultMaxPrompts,
			Resume:      true,
		},
		MCP:     defaultMCP(),
		Log:     Log{Level: "info", Format: "json"},
		sources: map[string]Source{},
	}
}

// Policy returns the policy of new sessions.
func (s Session) Policy() session.Policy {
	return session.Policy{
		Idle:        s.Idle,
		OnIdle:      v1.IdleAction(s.OnIdle),
		Hibernation: s.Hibernation,
		Snapshots:   s.Snapshots,
		Commands:    s.Commands,
		Output:      int64(s.Output),
	}
}

// Limits returns the limits of requests.
func (s Server) Limits() server.Limits {
	return server.Limits{
		Body:   int64(s.MaxBody),
		Upload: int64(s.MaxUpload),
		Time:   s.Timeout.Std(),
		Run:    s.RunTimeout.Std(),
		Rate:   s.Rate,
		Burst:  s.Burst,
	}
}

// ServerQuota returns the quota of the whole server.
func (c *Config) ServerQuota() v1.Quota {
	q := c.Quota
	if c.Session.MaxAge != v1.NoLimit {
		q.MaxAge = &c.Session.MaxAge
	}
	return q
}

// SandboxSpec returns the spec of sandboxes for which the caller sets nothing.
func (c *Config) SandboxSpec() v1.Spec {
	return v1.Spec{Limits: c.SandboxLimits(), Sudo: c.Session.Sudo}
}

// SandboxLimits returns the limits that the file or the environment sets. The others are zero, so that defaults do not
// count as requirements.
func (c *Config) SandboxLimits() v1.Limits {
	var set Config
	for _, f := range fields("limits") {
		if _, ok := c.Set(f.key); ok {
			f.in(&set).Set(f.in(c))
		}
	}
	return set.Limits
}

// Options returns the options of the pool.
func (p Pool) Options() pool.Options {
	return pool.Options{Min: p.Min, Target: p.Target, Max: p.Max, ShrinkAfter: p.ShrinkAfter.Std(), Wait: p.Wait.Std()}
}

// check returns errors about combinations of values.
func (c *Config) check() []error {
	var bad []error
	if err := server.CheckOrigins(c.Server.CORSOrigins); err != nil {
		bad = append(bad, c.wrong("server.cors_origins", err.Error()))
	}
	if err := server.CheckHosts(c.Server.Hosts, c.Server.PortsDomain); err != nil {
		bad = append(bad, c.wrong("server.hosts", err.Error()))
	}
	if (c.Server.TLSCert == "") != (c.Server.TLSKey == "") {
		bad = append(bad, c.wrong("server.tls_cert", "server.tls_cert and server.tls_key must be set together"))
	}
	for _, dir := range c.Backend.AllowMounts {
		if !filepath.IsAbs(dir) {
			bad = append(bad, c.wrong("backend.allow_mounts", fmt.Sprintf("backend.allow_mounts: path %q is not absolute", dir)))
		}
	}
	if err := rlm.CheckPromptProfiles(c.Models.Prompts); err != nil {
		bad = append(bad, c.wrong("models.prompts", err.Error()))
	}
	if c.Pool.Max < c.Pool.Min {
		bad = append(bad, c.wrong("pool.max", "pool.max is below pool.min"))
	}
	return append(bad, c.checkNetwork()...)
}
