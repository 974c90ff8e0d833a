package server

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/schema"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// route is one entry of the table of routes.
type route struct {
	method, path string
	tag, summary string
	scope        scope
	operator     bool // requires an operator's key
	everybody    bool // a session token may use it although its path has no session
	query        []param
	in, out      reflect.Type         // bodies; nil: none
	accepts      string               // media type of the request body, if it is not JSON
	filled       bool                 // rejects an empty body although no field is required
	gives        string               // media type of the answer, if it is not JSON
	events       *eventStream         // answers as server-sent events; additionally as JSON if out is set
	status       int                  // status of success; 0: 200, or 204 without a body
	also         map[int]reflect.Type // bodies of other statuses, except problems
	sandbox      bool                 // uses a sandbox although its path has no session
	fails        []int                // statuses of problems that only this route has
	long         bool                 // runs code or streams: Limits.Time does not apply
	repeatable   bool                 // supports Idempotency-Key
	proxy        bool                 // a program in a sandbox answers: the query and the rest of the path are its own
	large        bool                 // its JSON may be as large as an upload
	handle       func(c *call) error
	missing      error // not nil: the route does not exist, and this error is the answer
}

// with adds query parameters.
func (r route) with(p ...param) route { r.query = append(r.query, p...); return r }

// lasting marks a route without a time limit.
func (r route) lasting() route { r.long = true; return r }

// repeating marks a route that supports Idempotency-Key.
func (r route) repeating() route { r.repeatable = true; return r }

// contexts marks a route whose JSON may be as large as an upload.
func (r route) contexts() route { r.large = true; return r }

// giving sets the media type of an answer that is not JSON.
func (r route) giving(media string) route { r.gives = media; return r }

// streaming adds the answer as server-sent events.
func (r route) streaming(e *eventStream) route { r.events = e; return r }

// taking sets the media type of a request body that is not JSON.
func (r route) taking(media string) route { r.accepts = media; return r }

// filling marks a route that rejects an empty body although no field is required.
func (r route) filling() route { r.filled = true; return r }

// needsBody reports whether the route rejects an empty body.
func (r *route) needsBody() bool { return r.filled || r.in != nil && len(schema.Required(r.in)) > 0 }

// succeeding sets the status of success.
func (r route) succeeding(status int) route { r.status = status; return r }

// or adds an answer of another status.
func (r route) or(status int, body any) route {
	r.also = map[int]reflect.Type{status: reflect.TypeOf(body)}
	return r
}

// failing adds statuses of problems that cannot be derived from the other fields of the route.
func (r route) failing(statuses ...int) route { r.fails = append(r.fails, statuses...); return r }

// sandboxes marks a route that uses a sandbox although its path has no session.
func (r route) sandboxes() route { r.sandbox = true; return r }

// operators restricts a route to operators.
func (r route) operators() route { r.operator = true; return r }

// on returns a route whose bodies are JSON.
func on[In, Out any](method, path, tag, summary string, sc scope, f func(c *call, in In) (Out, error)) route {
	r := route{method: method, path: path, tag: tag, summary: summary, scope: sc, in: body[In](), out: body[Out]()}
	r.handle = func(c *call) error {
		in, err := decode[In](c)
		if err != nil {
			return err
		}
		out, err := f(c, in)
		if err != nil {
			return err
		}
		return c.reply(out)
	}
	return r
}

// raw returns a route whose handler reads and writes the bodies itself. In and Out are their types in the OpenAPI
// document.
func raw[In, Out any](method, path, tag, summary string, sc scope, f func(c *call) error) route {
	return route{
		method:  method,
		path:    path,
		tag:     tag,
		summary: summary,
		scope:   sc,
		in:      body[In](),
		out:     body[Out](),
		handle:  f,
	}
}

func body[T any]() reflect.Type {
	if t := reflect.TypeFor[T](); t != reflect.TypeFor[none]() {
		return t
	}
	return nil
}

// using adapts a handler that needs the result of find, such as the session that the path names.
func using[X, In, Out any](
	find func(*call) (X, error), f func(*call, X, In) (Out, error),
) func(*call, In) (Out, error) {
	return func(c *call, in In) (out Out, err error) {
		x, err := find(c)
		if err != nil {
			return out, err
		}
		return f(c, x, in)
	}
}

// rawUsing is like using, for a handler that reads and writes the bodies itself.
func rawUsing[X any](find func(*call) (X, error), f func(*call, X) error) func(*call) error {
	return func(c *call) error {
		x, err := find(c)
		if err != nil {
			return err
		}
		return f(c, x)
	}
}

// table returns all routes of the API.
func (s *Server) table() []route {
	const (
		ses   = "/v1/sessions/{session}"
		op    = ses + "/operations/{operation}"
		files = ses + "/files"
	)
	theSession, theFiles := (*call).session, (*call).files
	rs := []route{
		on("GET", "/healthz", "server", "Check that the server is alive", scopeNone, healthz),
		on("GET", "/readyz", "server", "Check that the server can make sandboxes",
			scopeNone, readyz).or(http.StatusServiceUnavailable, v1.Readiness{}),
		raw[none, none]("GET", "/metrics", "server", "Metrics for Prometheus",
			scopeAdmin, metricsPage).giving("text/plain"),
		raw[none, map[string]any]("GET", "/v1/openapi.json", "server", "This document",
			scopeNone, openapi("application/json")),
		raw[none, none]("GET", "/v1/openapi.yaml", "server", "This document",
			scopeNone, openapi("application/yaml")).giving("application/yaml"),
		on("GET", "/v1/server", "server", "Show the server and the identity of the caller", scopeRead, serverInfo),
		on("POST", "/v1/server/shutdown", "server", "Stop the server; sessions continue",
			scopeAdmin, shutdown).operators().
			succeeding(http.StatusAccepted).failing(http.StatusNotImplemented),
		on("POST", "/v1/server/gc", "server", "Remove expired records, snapshots and stray sandboxes",
			scopeAdmin, collect).operators().lasting(),

		on("GET", "/v1/sessions", "sessions", "List sessions", scopeRead, listSessions).
			with(
				qLimit,
				qAfter,
				text("state", "only this state; may be repeated"),
				text("label", "only sessions with this label, k=v; may be repeated, and all must match"),
			),
		on("POST", "/v1/sessions", "sessions", "Create a session", scopeExecute, createSession).repeating().sandboxes().
			succeeding(http.StatusCreated).lasting(),
		on("PUT", ses, "sessions", "Open a session: return the existing one, or create it",
			scopeExecute, openSession).or(http.StatusCreated, session.Opened{}).repeating().lasting(),
		on("GET", ses, "sessions", "Show a session; this does not renew the idle timeout",
			scopeRead, using(theSession, showSession)),
		on("DELETE", ses, "sessions", "End a session",
			scopeExecute, using(theSession, endSession)).with(text("reason", "reason for the log")),
		on("POST", ses+"/extend", "sessions", "Move the expiry of a session",
			scopeExecute, using(theSession, extendSession)),
		on("POST", ses+"/pause", "sessions", "Freeze a session in memory",
			scopeExecute, using(theSession, changing((*session.Session).Pause))),
		on("POST", ses+"/hibernate", "sessions", "Write a session to disk and free its memory",
			scopeExecute, using(theSession, changing((*session.Session).Hibernate))).lasting(),
		on("POST", ses+"/resume", "sessions", "Undo pause or hibernate",
			scopeExecute, using(theSession, changing((*session.Session).Resume))).lasting(),
		on("POST", ses+"/tokens", "access", "Create a token for this session only",
			scopeExecute, using(theSession, createToken)).succeeding(http.StatusCreated),
		on("GET", ses+"/guest", "sessions", "Describe the inside of the sandbox",
			scopeRead, using(theSession, showGuest)),
		raw[none, none]("GET", ses+"/events", "sessions", "Events of a session, past and future",
			scopeRead, rawUsing(theSession, sessionEvents)).
			with(
				number("after", "start with the event after this seq; Last-Event-ID does the same"),
				flag("follow", "continue with later events; true if left out"),
			).
			streaming(&sessionStream).lasting(),

		raw[v1.CellRequest, sandbox.Verdict]("POST", ses+"/cells", "run", "Run Python in a live interpreter",
			scopeExecute, rawUsing(theSession, runCell)).
			streaming(&operationStream).lasting().repeating(),
		raw[v1.CommandRequest, sandbox.Verdict]("POST", ses+"/commands", "run", "Run a program or a shell script",
			scopeExecute, rawUsing(theSession, runCommand)).
			or(http.StatusAccepted, v1.Started{}).streaming(&operationStream).lasting().repeating().filling(),
		raw[none, none]("GET", ses+"/stream", "run", "Run a cell or command over a WebSocket: input, terminal, cancel",
			scopeExecute, rawUsing(theSession, runSocket)).lasting().
			succeeding(http.StatusSwitchingProtocols),
		on("GET", ses+"/operations", "run", "List cells and commands",
			scopeRead, using(theSession, listOperations)).with(qLimit, qAfter),
		on("GET", op, "run", "Show a cell or command", scopeRead, using(theSession, showOperation)),
		on("DELETE", op, "run", "Remove an ended cell or command and its output",
			scopeExecute, using(theSession, doing((*session.Session).Forget, "operation"))),
		raw[none, v1.Followed]("GET", op+"/output", "run",
			"Output of a cell or command so far, or as events while it arrives",
			scopeRead, rawUsing(theSession, followOperation)).
			with(
				number("stdout", "offset in stdout to start at"),
				number("stderr", "offset in stderr to start at"),
			).streaming(&operationStream).lasting(),
		on("GET", op+"/verdict", "run", "Wait for the verdict of a cell or command",
			scopeRead, using(theSession, awaitOperation)).lasting(),
		on("POST", op+"/input", "run", "Send input to a cell or command, end its input, or resize its terminal",
			scopeExecute, using(theSession, inputOperation)).lasting(),
		on("POST", op+"/signal", "run", "Send a signal to a cell or command",
			scopeExecute, using(theSession, signalOperation)),
		on("POST", op+"/cancel", "run", "Cancel a cell or command and kill every process it started",
			scopeExecute, using(theSession, doing((*session.Session).Cancel, "operation"))),
		on("GET", ses+"/contexts", "run", "List live interpreters",
			scopeRead, using(theSession, listContexts)).with(qLimit, qAfter),
		on("DELETE", ses+"/contexts/{context}", "run", "End an interpreter",
			scopeExecute, using(theSession, doing((*session.Session).CloseContext, "context"))),

		raw[none, none]("GET", files, "files", "Download a regular file", scopeRead, rawUsing(theFiles, readFile)).
			with(
				qPath,
				number("offset", "bytes to skip"),
				number("limit", "bytes to return; 0: all"),
			).giving("application/octet-stream").lasting(),
		raw[none, v1.FileInfo]("PUT", files, "files", "Upload a file atomically",
			scopeExecute, rawUsing(theFiles, writeFile)).
			with(
				qPath,
				flag("exclusive", "never replace a file"),
				flag("parents", "create missing directories"),
				flag("append", "add to the end"),
				text("mode", "permission bits, octal"),
			).taking("application/octet-stream").lasting(),
		on("DELETE", files, "files", "Remove a file",
			scopeExecute, using(theFiles, removeFile)).
			with(qPath, flag("recursive", "remove a directory with everything in it")),
		on("GET", files+"/stat", "files", "Describe a file", scopeRead, using(theFiles, statFile)).with(qPath),
		on("GET", files+"/list", "files", "List a directory", scopeRead, using(theFiles, listFiles)).
			with(
				qPath,
				qLimit,
				flag("recursive", "also list the directories below"),
				param{
					name: "depth",
					kind: "integer",
					doc:  "levels of directories, with recursive; 0: all",
					most: 1 << 20,
				},
				qAfter,
			),
		on("POST", files+"/mkdir", "files", "Create a directory", scopeExecute, using(theFiles, makeDirectory)),
		on("POST", files+"/move", "files", "Rename a file or directory", scopeExecute, using(theFiles, moveFile)),
		raw[none, v1.Uploads]("POST", files+"/batch", "files", "Upload several files", scopeExecute, uploadBatch).
			with(
				text("dir", "directory for the files; the working directory if left out"),
				flag("exclusive", "never replace a file"),
				flag("parents", "create missing directories"),
			).or(http.StatusMultiStatus, v1.Uploads{}).taking("multipart/form-data").filling().lasting(),
		raw[none, none]("GET", files+"/tar", "files", "Download files and directories as a tar stream",
			scopeRead, rawUsing(theFiles, downloadTar)).
			with(
				param{name: "path", kind: "string", doc: "file or directory; may be repeated", required: true},
			).giving("application/x-tar").lasting(),
		raw[none, v1.TarStats]("PUT", files+"/tar", "files", "Unpack a tar stream into a directory",
			scopeExecute, rawUsing(theFiles, uploadTar)).
			with(
				qPath,
				flag("exclusive", "never replace a file"),
				flag("parents", "create the directory"),
				number("max_bytes", "refuse more bytes; 0: the sandbox's own limit"),
				number("max_entries", "refuse more entries; 0: the sandbox's own limit"),
			).
			taking("application/x-tar").lasting(),
		raw[none, none]("GET", files+"/watch", "files", "Watch a path for changes",
			scopeRead, rawUsing(theFiles, watchFiles)).
			with(qPath, flag("recursive", "also watch the directories below")).streaming(&fileStream).lasting(),

		on("GET", ses+"/vars", "vars", "List variables", scopeRead, using(theSession, listVars)).with(qLimit, qAfter),
		on("GET", ses+"/vars/{name}", "vars", "Show a variable", scopeRead, using(theSession, getVar)),
		on("PUT", ses+"/vars/{name}", "vars", "Set a variable", scopeExecute, using(theSession, setVar)),
		on("DELETE", ses+"/vars/{name}", "vars", "Remove a variable",
			scopeExecute, using(theSession, doing((*session.Session).DeleteVar, "name"))),

		on("GET", ses+"/snapshots", "snapshots", "List snapshots of a session, also of one that has ended",
			scopeRead, listSnapshots).with(qLimit, qAfter),
		on("POST", ses+"/snapshots", "snapshots", "Take a snapshot",
			scopeExecute, using(theSession, saveSnapshot)).repeating().succeeding(http.StatusCreated).lasting(),
		on("DELETE", ses+"/snapshots", "snapshots", "Remove all snapshots of a session", scopeExecute, deleteSnapshots),
		on("DELETE", ses+"/snapshots/{snapshot}", "snapshots", "Remove a snapshot", scopeExecute, deleteSnapshot),
		on("POST", ses+"/restore", "snapshots", "Restore the session to a snapshot",
			scopeExecute, using(theSession, restoreSnapshot)).lasting(),
		on("POST", ses+"/forks", "snapshots", "Create live copies of a session",
			scopeExecute, using(theSession, forkSession)).repeating().succeeding(http.StatusCreated).lasting(),
		on("GET", "/v1/snapshots", "snapshots", "List all snapshots of the tenant",
			scopeRead, listSnapshots).with(qLimit, qAfter),

		on("GET", "/v1/approvals", "gate", "List the gate's questions to people", scopeRead, listApprovals).
			with(qLimit, qAfter, text("state", "only pending, granted, refused or expired ones")),
		on("GET", "/v1/approvals/{approval}", "gate", "Show a question, or wait for its answer",
			scopeRead, showApproval).
			with(flag("wait", "answer once the question is no longer pending")).lasting(),
		on("POST", "/v1/approvals/{approval}", "gate", "Grant or refuse a question; for people, not for programs",
			scopeAdmin, resolveApproval).failing(http.StatusConflict),

		on("GET", "/v1/audit", "access", "Show the audit log", scopeAdmin, auditLog).
			with(
				qLimit,
				number("after", "start with the entry after this id"),
				text("since", "only entries of this time or later, in the format of RFC 3339"),
				number("last", "start with this many of the newest entries; leave it out for the following pages"),
				text("session", "only this session"),
				text("actor", "only this actor"),
				text("action", "only this action"),
			),
		on("GET", "/v1/keys", "access", "List keys", scopeAdmin, listKeys).with(qLimit, qAfter),
		on("POST", "/v1/keys", "access", "Create a key; its secret is shown once",
			scopeAdmin, createKey).succeeding(http.StatusCreated),
		on("DELETE", "/v1/keys/{key}", "access", "Revoke a key", scopeAdmin, revokeKey),
		on("GET", "/v1/usage", "access", "Show the quotas of the caller, and how much of them is in use",
			scopeRead, usage),
		on("GET", "/v1/tenants", "access", "List tenants and their quotas",
			scopeAdmin, listTenants).operators().with(qLimit, qAfter),
		on("GET", "/v1/tenants/{tenant}", "access", "Show a tenant and its quota", scopeAdmin, showTenant).operators(),
		on("PUT", "/v1/tenants/{tenant}", "access",
			"Set the quota of a tenant; fields that are left out are not bounded",
			scopeAdmin, setTenant).operators(),
		on("DELETE", "/v1/tenants/{tenant}", "access", "Remove the quota of a tenant; its keys and sessions stay",
			scopeAdmin, removeTenant).operators(),
	}
	rs = slices.Concat(rs, s.runRoutes(), s.portRoutes(), networkRoutes(), volumeRoutes())
	for i := range rs {
		if strings.HasPrefix(rs[i].path, files) {
			rs[i] = rs[i].with(qRoot)
		}
		switch rs[i].path {
		case "/v1/server":
			rs[i].everybody = true
		case "/metrics":
			if s.opts.PublicMetrics {
				rs[i].scope = scopeNone
			}
		}
	}
	return rs
}
