package client

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Session is a session of the server's, known by its name.
type Session struct {
	c    *Client
	name string
	path string
}

// Session gives a handle on a session without asking the server for it.
func (c *Client) Session(name string) *Session {
	return &Session{c: c, name: name, path: "/v1/sessions/" + url.PathEscape(name)}
}

// Name is what the session is called.
func (s *Session) Name() string { return s.name }

// Open returns the session of a name, and creates it if there is none. Opened.New reports whether it was created now.
func (c *Client) Open(ctx context.Context, name string, o v1.OpenOptions) (*Session, v1.Opened, error) {
	s := c.Session(name)
	out, err := ask[v1.Opened](ctx, c, request{op: "open session", method: http.MethodPut, path: s.path, body: v1.OpenRequest{OpenOptions: o}, again: !o.New})
	if err != nil {
		return nil, out, err
	}
	return s, out, nil
}

// Create makes a session that was not there; an empty name lets the server choose one.
func (c *Client) Create(ctx context.Context, name string, o v1.OpenOptions) (*Session, error) {
	out, err := ask[v1.Opened](ctx, c, post("create session", "/v1/sessions", v1.OpenRequest{Name: name, OpenOptions: o}).repeatable())
	if err != nil {
		return nil, err
	}
	return c.Session(out.Key.Name), nil
}

// Get finds a live session. Looking is not use.
func (c *Client) Get(ctx context.Context, name string) (*Session, v1.Session, error) {
	s := c.Session(name)
	info, err := s.Info(ctx)
	if err != nil {
		return nil, v1.Session{}, err
	}
	return s, info, nil
}

// List iterates over sessions in the order of their names, the oldest first among those of one name. The tenant is the client's own.
func (c *Client) List(ctx context.Context, o v1.SessionListOptions) iter.Seq2[v1.Session, error] {
	q := url.Values{"limit": {pageSize(o.Limit)}}
	for _, st := range o.States {
		q.Add("state", string(st))
	}
	for name, value := range o.Labels {
		q.Add("label", name+"="+value)
	}
	return list(ctx, c, get("list sessions", "/v1/sessions", q), o.Limit, func(p v1.SessionPage) ([]v1.Session, string) { return p.Sessions, p.Next })
}

// Info tells what is known of the session. Looking is not use.
func (s *Session) Info(ctx context.Context) (v1.Session, error) {
	return ask[v1.Session](ctx, s.c, get("look at session", s.path, nil))
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

// Extend moves the end of the session: by a duration from now, or from its present end if that is later; 0: 30 minutes. A session without an
// end stays without one. One that would get older than the operator's max_age is the error quota_exceeded.
func (s *Session) Extend(ctx context.Context, by time.Duration) (v1.Session, error) {
	return ask[v1.Session](ctx, s.c, post("extend session", s.path+"/extend", v1.ExtendRequest{By: v1.Duration(by)}))
}

// Pause freezes it in memory.
func (s *Session) Pause(ctx context.Context) error {
	return s.post(ctx, "pause session", "/pause", nil)
}

// Hibernate writes it to disk and gives its memory back.
func (s *Session) Hibernate(ctx context.Context) error {
	return s.post(ctx, "hibernate session", "/hibernate", nil)
}

// Resume undoes both.
func (s *Session) Resume(ctx context.Context) error {
	return s.post(ctx, "resume session", "/resume", nil)
}

// Token makes a secret that is good for this session alone, and ends with it. Scope is read or execute.
func (s *Session) Token(ctx context.Context, scope string, lasting time.Duration) (string, error) {
	t, err := ask[v1.Token](ctx, s.c, post("make token", s.path+"/tokens", v1.TokenRequest{Scope: scope, For: v1.Duration(lasting)}))
	return t.Token, err
}

// Guest asks the guest what it sees.
func (s *Session) Guest(ctx context.Context) (*v1.Guest, error) {
	return ask[*v1.Guest](ctx, s.c, get("ask the guest", s.path+"/guest", nil))
}

// Save takes a named snapshot.
func (s *Session) Save(ctx context.Context, name string) (v1.Snapshot, error) {
	return ask[v1.Snapshot](ctx, s.c, post("save snapshot", s.path+"/snapshots", v1.SaveRequest{Name: name}).repeatable())
}

// Restore puts the session back to a snapshot, "name" or "session@name".
func (s *Session) Restore(ctx context.Context, ref string) error {
	return s.post(ctx, "restore snapshot", "/restore", v1.RestoreRequest{Ref: ref})
}

// Snapshots lists the snapshots of a session, also of one that has ended and kept them; name "": of the whole tenant.
func (c *Client) Snapshots(ctx context.Context, name string) ([]v1.Snapshot, error) {
	path := "/v1/snapshots"
	if name != "" {
		path = c.Session(name).path + "/snapshots"
	}
	return whole(list(ctx, c, get("list snapshots", path, nil), 0, func(p v1.SnapshotPage) ([]v1.Snapshot, string) { return p.Snapshots, p.Next }))
}

// DeleteSnapshot removes a snapshot of a session; "*": all of them.
func (c *Client) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	path := c.Session(name).path + "/snapshots"
	if snapshot != "*" {
		path += "/" + url.PathEscape(snapshot)
	}
	return c.call(ctx, remove("delete snapshot", path), nil)
}

// Fork makes n live copies, named by names or NAME-1, NAME-2, …. All are made, or none.
func (s *Session) Fork(ctx context.Context, n int, names []string) ([]*Session, error) {
	if n < 1 {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "fork", Message: strconv.Itoa(n) + " copies"}
	}
	out, err := ask[v1.Forked](ctx, s.c, post("fork", s.path+"/forks", v1.ForkRequest{Count: n, Names: names}).repeatable())
	if err != nil {
		return nil, err
	}
	var copies []*Session
	for _, i := range out.Sessions {
		copies = append(copies, s.c.Session(i.Key.Name))
	}
	return copies, nil
}

// Vars gives the variables of the session.
func (s *Session) Vars(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	r := get("list variables", s.path+"/vars", nil)
	for vars, err := range list(ctx, s.c, r, 0, func(p v1.VarPage) ([]map[string]string, string) { return []map[string]string{p.Vars}, p.Next }) {
		if err != nil {
			return nil, err
		}
		maps.Copy(out, vars)
	}
	return out, nil
}

// Var gives one.
func (s *Session) Var(ctx context.Context, name string) (string, error) {
	out, err := ask[v1.Var](ctx, s.c, get("read variable", s.variable(name), nil))
	return out.Value, err
}

// SetVar sets one.
func (s *Session) SetVar(ctx context.Context, name, value string) error {
	return s.c.call(ctx, request{op: "set variable", method: http.MethodPut, path: s.variable(name), body: v1.Var{Value: value}, again: true}, nil)
}

// DeleteVar removes one.
func (s *Session) DeleteVar(ctx context.Context, name string) error {
	return s.c.call(ctx, remove("delete variable", s.variable(name)), nil)
}

func (s *Session) variable(name string) string { return s.path + "/vars/" + url.PathEscape(name) }

// Operations lists what runs and what has ended lately, oldest first.
func (s *Session) Operations(ctx context.Context) ([]v1.Operation, error) {
	r := get("list operations", s.path+"/operations", nil)
	return whole(list(ctx, s.c, r, 0, func(p v1.OperationPage) ([]v1.Operation, string) { return p.Operations, p.Next }))
}

// Operation gives one of them.
func (s *Session) Operation(ctx context.Context, id string) (v1.Operation, error) {
	return ask[v1.Operation](ctx, s.c, get("find operation", s.path+s.operation(id), nil))
}

// Contexts lists the live interpreters.
func (s *Session) Contexts(ctx context.Context) ([]v1.Context, error) {
	r := get("list contexts", s.path+"/contexts", nil)
	return whole(list(ctx, s.c, r, 0, func(p v1.ContextPage) ([]v1.Context, string) { return p.Contexts, p.Next }))
}

// CloseContext ends an interpreter and everything its cells left running.
func (s *Session) CloseContext(ctx context.Context, name string) error {
	return s.c.call(ctx, remove("close context", s.path+"/contexts/"+url.PathEscape(name)), nil)
}

func (s *Session) operation(id string) string { return "/operations/" + url.PathEscape(id) }

// Signal sends a signal to an operation's main process and its process group.
func (s *Session) Signal(ctx context.Context, id string, sig syscall.Signal, o v1.SignalOptions) error {
	return s.post(ctx, "signal", s.operation(id)+"/signal", v1.SignalRequest{Signal: strconv.Itoa(int(sig)), Tree: o.Tree})
}

// Cancel ends an operation and everything it started.
func (s *Session) Cancel(ctx context.Context, id string) error {
	return s.post(ctx, "cancel", s.operation(id)+"/cancel", nil)
}

// Input gives input to an operation that runs and whose stdin was kept open, or that has a terminal. It returns when the operation has
// taken it. While another call waits for that, the error is CodeBusy.
func (s *Session) Input(ctx context.Context, id string, in v1.Input) error {
	return s.post(ctx, "give input", s.operation(id)+"/input", in)
}

// Forget drops an ended operation and its spooled output.
func (s *Session) Forget(ctx context.Context, id string) error {
	return s.c.call(ctx, remove("forget", s.path+s.operation(id)), nil)
}
