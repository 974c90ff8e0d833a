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
	var out v1.Opened
	r := request{op: "open session", method: http.MethodPut, path: s.path, body: v1.OpenRequest{OpenOptions: o}, again: !o.New}
	if err := c.call(ctx, r, &out); err != nil {
		return nil, v1.Opened{}, err
	}
	return s, out, nil
}

// Create makes a session that was not there; an empty name lets the server choose one.
func (c *Client) Create(ctx context.Context, name string, o v1.OpenOptions) (*Session, error) {
	in := v1.OpenRequest{OpenOptions: o}
	in.Name = name
	var out v1.Opened
	r := request{
		op: "create session", method: http.MethodPost, path: "/v1/sessions", body: in, again: true, header: map[string]string{v1.HeaderIdempotency: randomID("")},
	}
	if err := c.call(ctx, r, &out); err != nil {
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

// List gives sessions in the order of their names, the oldest first among those of one name. The tenant is the client's own.
func (c *Client) List(ctx context.Context, o v1.SessionListOptions) iter.Seq2[v1.Session, error] {
	return func(yield func(v1.Session, error) bool) {
		given, after := 0, ""
		for {
			q := url.Values{"limit": {strconv.Itoa(pageSize(o.Limit, given))}}
			set(q, "after", after)
			for _, st := range o.States {
				q.Add("state", string(st))
			}
			var page v1.SessionPage
			if err := c.call(ctx, request{op: "list sessions", method: http.MethodGet, path: "/v1/sessions", query: q, again: true}, &page); err != nil {
				yield(v1.Session{}, err)
				return
			}
			for _, i := range page.Sessions {
				given++
				if !yield(i, nil) || given == o.Limit {
					return
				}
			}
			if page.Next == "" {
				return
			}
			after = page.Next
		}
	}
}

// Info tells what is known of the session. Looking is not use.
func (s *Session) Info(ctx context.Context) (v1.Session, error) {
	var i v1.Session
	err := s.get(ctx, "look at session", "", &i)
	return i, err
}

func (s *Session) get(ctx context.Context, op, path string, out any) error {
	return s.c.call(ctx, request{op: op, method: http.MethodGet, path: s.path + path, again: true}, out)
}

func (s *Session) post(ctx context.Context, op, path string, in, out any) error {
	return s.c.call(ctx, request{op: op, method: http.MethodPost, path: s.path + path, body: in}, out)
}

// End ends the session. Its name is free at once.
func (s *Session) End(ctx context.Context, reason string) error {
	q := url.Values{}
	set(q, "reason", reason)
	return s.c.call(ctx, request{op: "end session", method: http.MethodDelete, path: s.path, query: q}, nil)
}

// Extend gives it more time; 0 asks for as much as its policy allows.
func (s *Session) Extend(ctx context.Context, by time.Duration) (v1.Session, error) {
	var i v1.Session
	err := s.post(ctx, "extend session", "/extend", v1.ExtendRequest{By: v1.Duration(by)}, &i)
	return i, err
}

// Pause freezes it in memory.
func (s *Session) Pause(ctx context.Context) error {
	return s.post(ctx, "pause session", "/pause", nil, nil)
}

// Hibernate writes it to disk and gives its memory back.
func (s *Session) Hibernate(ctx context.Context) error {
	return s.post(ctx, "hibernate session", "/hibernate", nil, nil)
}

// Resume undoes both.
func (s *Session) Resume(ctx context.Context) error {
	return s.post(ctx, "resume session", "/resume", nil, nil)
}

// Token makes a secret that is good for this session alone, and ends with it. Scope is read or execute.
func (s *Session) Token(ctx context.Context, scope string, lasting time.Duration) (string, error) {
	var t v1.Token
	err := s.post(ctx, "make token", "/tokens", v1.TokenRequest{Scope: scope, For: v1.Duration(lasting)}, &t)
	return t.Token, err
}

// Guest asks the guest what it sees.
func (s *Session) Guest(ctx context.Context) (*v1.Guest, error) {
	g := &v1.Guest{}
	if err := s.get(ctx, "ask the guest", "/guest", g); err != nil {
		return nil, err
	}
	return g, nil
}

// Save takes a named snapshot.
func (s *Session) Save(ctx context.Context, name string) (v1.Snapshot, error) {
	var out v1.Snapshot
	r := request{
		op: "save snapshot", method: http.MethodPost, path: s.path + "/snapshots", body: v1.SaveRequest{Name: name}, again: true,
		header: map[string]string{v1.HeaderIdempotency: randomID("")},
	}
	err := s.c.call(ctx, r, &out)
	return out, err
}

// Restore puts the session back to a snapshot, "name" or "session@name".
func (s *Session) Restore(ctx context.Context, ref string) error {
	return s.post(ctx, "restore snapshot", "/restore", v1.RestoreRequest{Ref: ref}, nil)
}

// Snapshots lists the snapshots of a session, also of one that has ended and kept them; name "": of the whole tenant.
func (c *Client) Snapshots(ctx context.Context, name string) ([]v1.Snapshot, error) {
	path := "/v1/snapshots"
	if name != "" {
		path = c.Session(name).path + "/snapshots"
	}
	return pages(func(q url.Values) ([]v1.Snapshot, string, error) {
		var out v1.SnapshotPage
		err := c.call(ctx, request{op: "list snapshots", method: http.MethodGet, path: path, query: q, again: true}, &out)
		return out.Snapshots, out.Next, err
	})
}

// DeleteSnapshot removes a snapshot of a session; "*": all of them.
func (c *Client) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	path := c.Session(name).path + "/snapshots"
	if snapshot != "*" {
		path += "/" + url.PathEscape(snapshot)
	}
	return c.call(ctx, request{op: "delete snapshot", method: http.MethodDelete, path: path}, nil)
}

// Fork makes n live copies, named by names or NAME-1, NAME-2, …. All are made, or none.
func (s *Session) Fork(ctx context.Context, n int, names []string) ([]*Session, error) {
	if n < 1 {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "fork", Message: strconv.Itoa(n) + " copies"}
	}
	var out v1.Forked
	r := request{
		op: "fork", method: http.MethodPost, path: s.path + "/forks", body: v1.ForkRequest{Count: n, Names: names}, again: true,
		header: map[string]string{v1.HeaderIdempotency: randomID("")},
	}
	if err := s.c.call(ctx, r, &out); err != nil {
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
	_, err := pages(func(q url.Values) ([]string, string, error) {
		var page v1.VarPage
		err := s.c.call(ctx, request{op: "list variables", method: http.MethodGet, path: s.path + "/vars", query: q, again: true}, &page)
		maps.Copy(out, page.Vars)
		return nil, page.Next, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Var gives one.
func (s *Session) Var(ctx context.Context, name string) (string, error) {
	var out v1.Var
	err := s.get(ctx, "read variable", "/vars/"+url.PathEscape(name), &out)
	return out.Value, err
}

// SetVar sets one.
func (s *Session) SetVar(ctx context.Context, name, value string) error {
	return s.c.call(ctx, request{op: "set variable", method: http.MethodPut, path: s.path + "/vars/" + url.PathEscape(name), body: v1.Var{Value: value}, again: true}, nil)
}

// DeleteVar removes one.
func (s *Session) DeleteVar(ctx context.Context, name string) error {
	return s.c.call(ctx, request{op: "delete variable", method: http.MethodDelete, path: s.path + "/vars/" + url.PathEscape(name)}, nil)
}

// Operations lists what runs and what has ended lately, oldest first.
func (s *Session) Operations(ctx context.Context) ([]v1.Operation, error) {
	return pages(func(q url.Values) ([]v1.Operation, string, error) {
		var out v1.OperationPage
		err := s.c.call(ctx, request{op: "list operations", method: http.MethodGet, path: s.path + "/operations", query: q, again: true}, &out)
		return out.Operations, out.Next, err
	})
}

// Operation gives one of them.
func (s *Session) Operation(ctx context.Context, id string) (out v1.Operation, err error) {
	err = s.c.call(ctx, request{op: "find operation", method: http.MethodGet, path: s.path + "/operations/" + url.PathEscape(id), again: true}, &out)
	return out, err
}

// Contexts lists the live interpreters.
func (s *Session) Contexts(ctx context.Context) ([]v1.Context, error) {
	return pages(func(q url.Values) ([]v1.Context, string, error) {
		var page v1.ContextPage
		err := s.c.call(ctx, request{op: "list contexts", method: http.MethodGet, path: s.path + "/contexts", query: q, again: true}, &page)
		return page.Contexts, page.Next, err
	})
}

// CloseContext ends an interpreter and everything its cells left running.
func (s *Session) CloseContext(ctx context.Context, name string) error {
	return s.c.call(ctx, request{op: "close context", method: http.MethodDelete, path: s.path + "/contexts/" + url.PathEscape(name)}, nil)
}

func (s *Session) operation(id string) string { return "/operations/" + url.PathEscape(id) }

// Signal sends a signal to an operation's main process and its process group.
func (s *Session) Signal(ctx context.Context, id string, sig syscall.Signal, o v1.SignalOptions) error {
	return s.post(ctx, "signal", s.operation(id)+"/signal", v1.SignalRequest{Signal: strconv.Itoa(int(sig)), Tree: o.Tree}, nil)
}

// Cancel ends an operation and everything it started.
func (s *Session) Cancel(ctx context.Context, id string) error {
	return s.post(ctx, "cancel", s.operation(id)+"/cancel", nil, nil)
}

// Forget drops an ended operation and its spooled output.
func (s *Session) Forget(ctx context.Context, id string) error {
	return s.c.call(ctx, request{op: "forget", method: http.MethodDelete, path: s.path + s.operation(id)}, nil)
}
