package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Session is a handle for a session in the server, by name.
type Session struct {
	c    *Client
	name string
	path string
}

// Session returns a handle for a session. It sends no request, so the session need not exist.
func (c *Client) Session(name string) *Session {
	return &Session{c: c, name: name, path: "/v1/sessions/" + url.PathEscape(name)}
}

// Name returns the name of the session.
func (s *Session) Name() string { return s.name }

// Open returns the named session, and creates it if it does not exist. Opened.New reports whether it was created.
func (c *Client) Open(ctx context.Context, name string, o v1.OpenOptions) (*Session, v1.Opened, error) {
	s := c.Session(name)
	out, err := callJSON[v1.Opened](ctx, c, request{
		op:         "open session",
		method:     http.MethodPut,
		path:       s.path,
		body:       v1.OpenRequest{OpenOptions: o},
		idempotent: !o.New,
	})
	if err != nil {
		return nil, out, err
	}
	return s, out, nil
}

// Create creates a session, and fails if it exists. If name is empty, the server chooses one.
func (c *Client) Create(ctx context.Context, name string, o v1.OpenOptions) (*Session, error) {
	r := post("create session", "/v1/sessions", v1.OpenRequest{Name: name, OpenOptions: o}).repeatable()
	out, err := callJSON[v1.Opened](ctx, c, r)
	if err != nil {
		return nil, err
	}
	return c.Session(out.Key.Name), nil
}

// Get returns a live session and its description. This is not a use of the session.
func (c *Client) Get(ctx context.Context, name string) (*Session, v1.Session, error) {
	s := c.Session(name)
	info, err := s.Info(ctx)
	if err != nil {
		return nil, v1.Session{}, err
	}
	return s, info, nil
}

// List iterates over sessions, sorted by name and then by age, oldest first. The tenant is that of the client.
func (c *Client) List(ctx context.Context, o v1.SessionListOptions) iter.Seq2[v1.Session, error] {
	q := url.Values{"limit": {pageSize(o.Limit)}}
	for _, st := range o.States {
		q.Add("state", string(st))
	}
	for name, value := range o.Labels {
		q.Add("label", name+"="+value)
	}
	r := get("list sessions", "/v1/sessions", q)
	return list(ctx, c, r, o.Limit, func(p v1.SessionPage) ([]v1.Session, string) { return p.Sessions, p.Next })
}

// Info returns a description of the session. This is not a use of the session.
func (s *Session) Info(ctx context.Context) (v1.Session, error) {
	return callJSON[v1.Session](ctx, s.c, get("show session", s.path, nil))
}

func (s *Session) post(ctx context.Context, op, path string, in any) error {
	return s.c.call(ctx, post(op, s.path+path, in), nil)
}

// End ends the session. Its name is free at once.
func (s *Session) End(ctx context.Context, reason string) error {
	r := remove("end session", s.path)
	r.query = url.Values{}
	set(r.query, "reason", reason)
	return s.c.call(ctx, r, nil)
}

// Extend moves the expiry of the session to the duration by from now, or from the current expiry if that is later; 0:
// 30 minutes. A session without an expiry does not change. If the session would exceed the operator's max_age, the
// error has code quota_exceeded.
func (s *Session) Extend(ctx context.Context, by time.Duration) (v1.Session, error) {
	return callJSON[v1.Session](ctx, s.c, post("extend session", s.path+"/extend", v1.ExtendRequest{By: v1.Duration(by)}))
}

// Pause freezes the session in memory.
func (s *Session) Pause(ctx context.Context) error {
	return s.post(ctx, "pause session", "/pause", nil)
}

// Hibernate writes the session to disk and frees its memory.
func (s *Session) Hibernate(ctx context.Context) error {
	return s.post(ctx, "hibernate session", "/hibernate", nil)
}

// Resume undoes Pause and Hibernate.
func (s *Session) Resume(ctx context.Context) error {
	return s.post(ctx, "resume session", "/resume", nil)
}

// Token creates a token that is valid for this session only, for the duration lifetime. scope is read or execute.
func (s *Session) Token(ctx context.Context, scope string, lifetime time.Duration) (string, error) {
	body := v1.TokenRequest{Scope: scope, For: v1.Duration(lifetime)}
	t, err := callJSON[v1.Token](ctx, s.c, post("create token", s.path+"/tokens", body))
	return t.Token, err
}

// Guest returns the guest's description of the inside of the sandbox.
func (s *Session) Guest(ctx context.Context) (*v1.Guest, error) {
	return callJSON[*v1.Guest](ctx, s.c, get("query the guest", s.path+"/guest", nil))
}

// Save takes a named snapshot.
func (s *Session) Save(ctx context.Context, name string) (v1.Snapshot, error) {
	r := post("save snapshot", s.path+"/snapshots", v1.SaveRequest{Name: name}).repeatable()
	return callJSON[v1.Snapshot](ctx, s.c, r)
}

// Restore restores the session to a snapshot. ref is "name" or "session@name".
func (s *Session) Restore(ctx context.Context, ref string) error {
	return s.post(ctx, "restore snapshot", "/restore", v1.RestoreRequest{Ref: ref})
}

// Snapshots lists the snapshots of a session, which may have ended. If name is empty, it lists all snapshots of the
// tenant.
func (c *Client) Snapshots(ctx context.Context, name string) ([]v1.Snapshot, error) {
	path := "/v1/snapshots"
	if name != "" {
		path = c.Session(name).path + "/snapshots"
	}
	r := get("list snapshots", path, nil)
	return collect(list(ctx, c, r, 0, func(p v1.SnapshotPage) ([]v1.Snapshot, string) { return p.Snapshots, p.Next }))
}

// DeleteSnapshot deletes a snapshot of a session. "*" deletes all its snapshots.
func (c *Client) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	path := c.Session(name).path + "/snapshots"
	if snapshot != "*" {
		path += "/" + url.PathEscape(snapshot)
	}
	return c.call(ctx, remove("delete snapshot", path), nil)
}

// Fork makes n live copies of the session, with the given names or NAME-1, NAME-2, …. It makes all copies or none.
func (s *Session) Fork(ctx context.Context, n int, names []string) ([]*Session, error) {
	if n < 1 {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "fork",
			Message: fmt.Sprintf("invalid number of copies %d", n),
		}
	}
	r := post("fork", s.path+"/forks", v1.ForkRequest{Count: n, Names: names}).repeatable()
	out, err := callJSON[v1.Forked](ctx, s.c, r)
	if err != nil {
		return nil, err
	}
	var copies []*Session
	for _, i := range out.Sessions {
		copies = append(copies, s.c.Session(i.Key.Name))
	}
	return copies, nil
}

// Vars returns the variables of the session.
func (s *Session) Vars(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	r := get("list variables", s.path+"/vars", nil)
	pages := list(ctx, s.c, r, 0, func(p v1.VarPage) ([]map[string]string, string) {
		return []map[string]string{p.Vars}, p.Next
	})
	for vars, err := range pages {
		if err != nil {
			return nil, err
		}
		maps.Copy(out, vars)
	}
	return out, nil
}

// Var returns the value of a variable.
func (s *Session) Var(ctx context.Context, name string) (string, error) {
	out, err := callJSON[v1.Var](ctx, s.c, get("read variable", s.variable(name), nil))
	return out.Value, err
}

// SetVar sets a variable.
func (s *Session) SetVar(ctx context.Context, name, value string) error {
	return s.c.call(ctx, request{
		op:         "set variable",
		method:     http.MethodPut,
		path:       s.variable(name),
		body:       v1.Var{Value: value},
		idempotent: true,
	}, nil)
}

// DeleteVar deletes a variable.
func (s *Session) DeleteVar(ctx context.Context, name string) error {
	return s.c.call(ctx, remove("delete variable", s.variable(name)), nil)
}

func (s *Session) variable(name string) string { return s.path + "/vars/" + url.PathEscape(name) }

// Operations lists running and recently ended operations, oldest first.
func (s *Session) Operations(ctx context.Context) ([]v1.Operation, error) {
	r := get("list operations", s.path+"/operations", nil)
	return collect(list(ctx, s.c, r, 0, func(p v1.OperationPage) ([]v1.Operation, string) { return p.Operations, p.Next }))
}

// Operation returns an operation.
func (s *Session) Operation(ctx context.Context, id string) (v1.Operation, error) {
	return callJSON[v1.Operation](ctx, s.c, get("find operation", s.path+s.operation(id), nil))
}

// Contexts lists the live interpreters.
func (s *Session) Contexts(ctx context.Context) ([]v1.Context, error) {
	r := get("list contexts", s.path+"/contexts", nil)
	return collect(list(ctx, s.c, r, 0, func(p v1.ContextPage) ([]v1.Context, string) { return p.Contexts, p.Next }))
}

// CloseContext ends an interpreter and all processes that its cells left running.
func (s *Session) CloseContext(ctx context.Context, name string) error {
	return s.c.call(ctx, remove("close context", s.path+"/contexts/"+url.PathEscape(name)), nil)
}

func (s *Session) operation(id string) string { return "/operations/" + url.PathEscape(id) }

// Signal sends a signal to an operation's main process and its process group.
func (s *Session) Signal(ctx context.Context, id string, sig syscall.Signal, o v1.SignalOptions) error {
	return s.post(ctx, "signal", s.operation(id)+"/signal", v1.SignalRequest{
		Signal: strconv.Itoa(int(sig)),
		Tree:   o.Tree,
	})
}

// Cancel stops an operation and all processes it started.
func (s *Session) Cancel(ctx context.Context, id string) error {
	return s.post(ctx, "cancel", s.operation(id)+"/cancel", nil)
}

// Input sends input to a running operation whose stdin was kept open, or that has a terminal. It returns when the
// operation has read the input. While another call to Input waits, the error has code CodeBusy.
func (s *Session) Input(ctx context.Context, id string, in v1.Input) error {
	return s.post(ctx, "send input", s.operation(id)+"/input", in)
}

// Forget removes an ended operation and its spooled output.
func (s *Session) Forget(ctx context.Context, id string) error {
	return s.c.call(ctx, remove("forget", s.path+s.operation(id)), nil)
}
