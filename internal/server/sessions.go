package server

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// states lists the valid values of the query parameter state.
var states = []session.State{
	v1.StateCreating, v1.StateReady, v1.StateExecuting, v1.StatePaused, v1.StateHibernated,
	v1.StateLost, v1.StateEnding, v1.StateEnded, v1.StateExpired,
}

func listSessions(c *call, _ none) (v1.SessionPage, error) {
	o := session.ListOptions{Tenant: c.who.tenant}
	for _, name := range c.query["state"] {
		if !slices.Contains(states, session.State(name)) {
			return v1.SessionPage{}, badQuery("state", "one of the states of a session")
		}
		o.States = append(o.States, session.State(name))
	}
	for _, pair := range c.query["label"] {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return v1.SessionPage{}, badQuery("label", "a name and a value, k=v")
		}
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[name] = value
	}
	var all []session.Info
	for i, err := range c.s.manager.List(c.ctx(), o) {
		if err != nil {
			return v1.SessionPage{}, err
		}
		all = append(all, i)
	}
	var out v1.SessionPage
	out.Sessions, out.Next = paged(c, all, func(i session.Info) string { return pageKey(i.Key.Name, i.Created, i.ID) })
	return out, nil
}

// createSession creates a session. It is an error if the session exists.
func createSession(c *call, in v1.OpenRequest) (session.Opened, error) {
	if in.Existing {
		return session.Opened{}, invalid("existing is not supported by POST; use PUT with the session's name")
	}
	if in.Name == "" {
		in.Name = "s-" + cmp.Or(c.request, ids.Hex(8))[:16]
	}
	in.New = true
	return open(c, in)
}

// openSession returns an existing session, or creates it. If the path has an id instead of a name, the session must
// exist.
func openSession(c *call, in v1.OpenRequest) (session.Opened, error) {
	if in.Name != "" && in.Name != c.r.PathValue("session") {
		return session.Opened{}, invalid("the name in the body differs from the name in the path")
	}
	in.Name = c.r.PathValue("session")
	in.Existing = in.Existing || c.byID
	return open(c, in)
}

func open(c *call, in v1.OpenRequest) (session.Opened, error) {
	if err := c.checkSettings(in.Settings); err != nil {
		return session.Opened{}, err
	}
	if err := c.checkSettings(in.IfNew); err != nil {
		return session.Opened{}, err
	}
	if c.who.session != "" { // a session token cannot create sessions
		in.Existing = true
		if _, err := c.session(); err != nil {
			return session.Opened{}, err
		}
	}
	began := time.Now()
	_, opened, err := c.s.manager.Open(c.making(), session.Key{Tenant: c.who.tenant, Name: in.Name}, in.OpenOptions)
	if err != nil {
		return session.Opened{}, err
	}
	if opened.New {
		c.s.metrics.created(opened.Backend, time.Since(began))
		c.status = http.StatusCreated
		c.w.Header().Set("Location", "/v1/sessions/"+url.PathEscape(opened.Key.Name))
	}
	return opened, nil
}

// checkSettings rejects invalid settings, and settings that only the host's own user may request.
func (c *call) checkSettings(in v1.Settings) error {
	p := in.Policy
	if p.Snapshots < 0 || p.Commands < 0 || p.Output < 0 {
		return invalid("a limit of the policy is negative")
	}
	if in.Spec == nil {
		return nil
	}
	l := in.Spec.Limits
	if l.Memory < 0 || l.CPUs < 0 || l.Processes < 0 || l.Disk < 0 || l.OpenFiles < 0 {
		return &v1.Error{
			Code:    v1.CodeInvalidSpec,
			Op:      "open session",
			Message: "a limit is negative",
			Remedy:  "leave the limit out to get the default",
		}
	}
	if c.who.host {
		return nil
	}
	spec := *in.Spec
	spec.Volumes = nil // the session manager accepts those of the tenant
	return CheckRemoteSpec(spec)
}

// CheckRemoteSpec returns an error for a spec with settings that only the host's own user may request.
func CheckRemoteSpec(spec v1.Spec) error {
	if len(spec.Mounts) > 0 || len(spec.Volumes) > 0 || spec.RootFS != "" || image.IsPath(spec.Image) ||
		!remoteOptions(spec.Options) {
		return &v1.Error{
			Code: v1.CodeMountRefused,
			Op:   "open session",
			Message: "callers over the network cannot use files, directories and volumes of the host, " +
				"and options of a backend such as a host config",
			Remedy: "use the server's UNIX socket as its user, or upload the files",
		}
	}
	return nil
}

// remoteOptions reports whether callers over the network may set these options of backends. It allows only those
// listed here, which give no access to the host.
func remoteOptions(options map[string]json.RawMessage) bool {
	allowed := map[string][]string{"docker": {"oom_score_adj"}}
	for backend, text := range options {
		var fields map[string]json.RawMessage
		if allowed[backend] == nil || json.Unmarshal(text, &fields) != nil {
			return false
		}
		for name := range fields {
			if !slices.Contains(allowed[backend], name) {
				return false
			}
		}
	}
	return true
}

func showSession(_ *call, ses *session.Session, _ none) (session.Info, error) {
	return ses.Info(), nil
}

func showGuest(c *call, ses *session.Session, _ none) (*sandbox.Guest, error) {
	return ses.Guest(c.ctx())
}

func endSession(c *call, ses *session.Session, _ none) (none, error) {
	return none{}, ses.End(c.ctx(), cmp.Or(c.query.Get("reason"), "ended by "+c.who.actor))
}

func extendSession(c *call, ses *session.Session, in v1.ExtendRequest) (session.Info, error) {
	return ses.Extend(c.ctx(), time.Duration(in.By))
}

// changing returns a handler that calls do and answers with the changed session.
func changing(
	do func(*session.Session, context.Context) error,
) func(*call, *session.Session, none) (session.Info, error) {
	return func(c *call, ses *session.Session, _ none) (session.Info, error) {
		if err := do(ses, c.ctx()); err != nil {
			return session.Info{}, err
		}
		return ses.Info(), nil
	}
}

// doing returns a handler that calls do with the named path parameter, and answers without a body.
func doing(
	do func(*session.Session, context.Context, string) error, name string,
) func(*call, *session.Session, none) (none, error) {
	return func(c *call, ses *session.Session, _ none) (none, error) {
		return none{}, do(ses, c.ctx(), c.r.PathValue(name))
	}
}
