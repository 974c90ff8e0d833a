package e2b

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/session"
)

// The labels that keep what E2B knows about a sandbox and a session does not. Names that begin with ownLabels are not
// metadata.
const (
	ownLabels     = "e2b."
	labelTemplate = "e2b.template"
	labelResume   = "e2b.auto-resume"
	labelPublic   = "e2b.public-traffic"
	labelMemory   = "e2b.pause-memory" // "false": only files survive the pause after the timeout
)

// The templates that every server has. Both are the default sandbox.
var builtinTemplates = []string{"base", "code-interpreter-v1"}

// The timeouts of a request without one. The first version of the API has another one.
const (
	defaultTimeout   = 300 * time.Second
	defaultTimeoutV1 = 15 * time.Second
	// longestTimeout does not overflow a time.Time, however often it is set.
	longestTimeout = 10 * 365 * 24 * time.Hour
)

// idBytes is the number of random bytes of an id: nobody guesses it.
const idBytes = 10

// never is the end of a sandbox without one.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// controlPlane returns the routes that manage sandboxes.
func (h *Handler) controlPlane() *http.ServeMux {
	mux := http.NewServeMux()
	route := func(pattern string, scope Scope, f func(c *call) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { h.admit(w, r, scope, f) })
	}
	for prefix, timeout := range map[string]time.Duration{"": defaultTimeoutV1, "/v2": defaultTimeout} {
		route("POST "+prefix+"/sandboxes", Execute, func(c *call) error { return c.create(timeout) })
		route("POST "+prefix+"/sandboxes/{id}/connect", Execute, on((*call).connect))
		route("GET "+prefix+"/sandboxes", Read, func(c *call) error { return c.list(prefix == "") })
	}
	const sandbox = "/sandboxes/{id}"
	route("GET "+sandbox, Read, on((*call).show))
	route("DELETE "+sandbox, Execute, on((*call).kill))
	route("POST "+sandbox+"/resume", Execute, on((*call).connect))
	route("POST "+sandbox+"/pause", Execute, on((*call).pause))
	route("POST "+sandbox+"/timeout", Execute, on((*call).timeout))
	route("POST "+sandbox+"/refreshes", Execute, on((*call).refresh))
	route("PUT "+sandbox+"/network", Execute, on((*call).network))
	route("POST "+sandbox+"/fork", Execute, on((*call).fork))
	route("POST "+sandbox+"/snapshots", Execute, on((*call).snapshot))
	route("GET "+sandbox+"/metrics", Read, on((*call).metrics))
	for _, prefix := range []string{"", "/v2"} {
		first := prefix == ""
		logs := func(c *call, ses *session.Session) error { return c.logs(ses, first) }
		route("GET "+prefix+sandbox+"/logs", Read, on(logs))
	}
	route("GET /snapshots", Read, (*call).snapshots)
	route("GET /templates", Read, (*call).templates)
	route("DELETE /templates/{id}", Execute, (*call).removeTemplate)
	for what, path := range map[string]string{
		"building templates": "templates",
		"volumes":            "volumes",
		"volume content":     "volumecontent",
		"secrets":            "secrets",
	} {
		route("/"+path, Read, missing(what))
		route("/"+path+"/", Read, missing(what))
		route("/v2/"+path+"/", Read, missing(what))
		route("/v3/"+path, Read, missing(what))
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "this server does not have this path or method of the API")
	})
	return mux
}

// missing returns a handler for a part of the API that this server does not have.
func missing(what string) func(*call) error {
	return func(*call) error { return unsupported(what) }
}

// call is one request of the control plane.
type call struct {
	*Handler
	w      http.ResponseWriter
	r      *http.Request
	tenant string
}

// admit authenticates the caller and runs f.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request, scope Scope, f func(*call) error) {
	ctx, err := h.opts.Access.AdmitKey(r, r.Header.Get(headerKey), string(scope))
	if err != nil {
		failWith(w, err)
		return
	}
	c := &call{Handler: h, w: w, r: r.WithContext(ctx), tenant: session.ActorOf(ctx).Tenant}
	if err := f(c); err != nil {
		failWith(w, err)
	}
}

// on adapts a handler that needs the session that the path names.
func on(f func(*call, *session.Session) error) func(*call) error {
	return func(c *call) error {
		ses, err := c.manager.Get(c.r.Context(), session.Key{Tenant: c.tenant, Name: c.r.PathValue("id")})
		if err != nil {
			if v1.CodeOf(err) == v1.CodeInvalidKey {
				err = &v1.Error{Code: v1.CodeSessionNotFound, Op: "find sandbox", Message: notFound}
			}
			return err
		}
		return f(c, ses)
	}
}

func (c *call) reply(status int, body any) error {
	reply(c.w, status, body)
	return nil
}

func (c *call) done() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// The messages, which the client of sandbox/e2b uses, too.
type (
	newSandbox     = wire.NewSandbox
	access         = wire.Access
	details        = wire.Details
	lifecycle      = wire.Lifecycle
	networkOptions = wire.NetworkOptions
	snapshotInfo   = wire.SnapshotInfo
	failure        = wire.Failure
)

func (c *call) access(ses *session.Session) access {
	i := ses.Info()
	return access{
		Sandbox:      i.Key.Name,
		Template:     templateOf(i),
		Client:       "recluse",
		Version:      envdVersion,
		Token:        c.token(envdToken, i.Key, i.ID),
		TrafficToken: c.token(trafficToken, i.Key, i.ID),
		Domain:       c.domain(c.r),
	}
}

// domain returns the domain of the host names of ports, with the port of this server.
func (h *Handler) domain(r *http.Request) string {
	domain := cmp.Or(h.opts.Domain, "localhost")
	if _, _, err := net.SplitHostPort(domain); err == nil {
		return domain
	}
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return net.JoinHostPort(domain, port)
	}
	return domain
}

// ours reports whether a session was created as a sandbox of E2B.
func ours(i session.Info) bool { return i.Labels[labelTemplate] != "" }

func templateOf(i session.Info) string {
	return cmp.Or(i.Labels[labelTemplate], i.Spec.Image, builtinTemplates[0])
}

// create makes a sandbox.
func (c *call) create(timeout time.Duration) error {
	var in newSandbox
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if in.Secure != nil && !*in.Secure {
		return unsupported("secure: false, access to a sandbox without a token,")
	}
	filesOnly := in.AutoPauseMemory != nil && !*in.AutoPauseMemory
	if filesOnly && (!in.AutoPause || in.AutoResume.Enabled) {
		return invalid("autoPauseMemory: false requires autoPause, and excludes autoResume")
	}
	if in.AutoResume.Enabled && !in.AutoPause {
		return invalid("autoResume requires autoPause")
	}
	timeout, err := timeoutOf(in.Timeout, timeout)
	if err != nil {
		return err
	}
	network, err := policyOf(in.Network, in.Internet)
	if err != nil {
		return err
	}
	labels := map[string]string{labelTemplate: cmp.Or(in.Template, builtinTemplates[0])}
	for name, value := range in.Metadata {
		if strings.HasPrefix(name, ownLabels) {
			return invalid("names of metadata that begin with " + ownLabels + " are reserved")
		}
		labels[name] = value
	}
	if in.AutoResume.Enabled {
		labels[labelResume] = "true"
	}
	if filesOnly {
		labels[labelMemory] = "false"
	}
	if in.Network.Public != nil && !*in.Network.Public {
		labels[labelPublic] = "false"
	}
	o := session.OpenOptions{New: true, Settings: session.Settings{Labels: labels, Policy: v1.Policy{
		Expires: v1.Duration(timeout),
		Idle:    v1.NoLimit,
		OnIdle:  v1.IdleKeep,
	}}}
	if in.AutoPause {
		o.Policy.OnExpiry = v1.ExpiryHibernate
	}
	if err := c.fromTemplate(&o.Settings, in.Template); err != nil {
		return err
	}
	if o.From != "" && len(in.Env) > 0 {
		return unsupported("envs for a sandbox that is made from a snapshot")
	}
	if o.Spec != nil {
		o.Spec.Env = in.Env
		if network != nil {
			o.Spec.Network = *network
		}
	}
	ses, _, err := c.manager.Open(c.r.Context(), session.Key{Tenant: c.tenant, Name: ids.Hex(idBytes)}, o)
	if err != nil {
		return err
	}
	if network != nil && o.Spec == nil { // the policy of a snapshot stays until it is replaced
		if _, err := ses.SetNetwork(c.r.Context(), v1.SessionNetwork{Network: *network}); err != nil {
			_ = ses.End(context.WithoutCancel(c.r.Context()), "its network policy was refused")
			return err
		}
	}
	return c.reply(http.StatusCreated, c.access(ses))
}

// timeoutOf returns a timeout in seconds as a duration.
func timeoutOf(seconds *int64, byDefault time.Duration) (time.Duration, error) {
	switch {
	case seconds == nil:
		return byDefault, nil
	case *seconds < 1 || *seconds > int64(longestTimeout/time.Second):
		return 0, invalid("the timeout is out of range: want 1 second to 10 years")
	}
	return time.Duration(*seconds) * time.Second, nil
}

// connect returns the token of a sandbox, and wakes it. The end of a running sandbox is only ever moved further away.
func (c *call) connect(ses *session.Session) error {
	var in struct {
		Timeout   *int64 `json:"timeout"`
		Memory    *bool  `json:"memory"`
		AutoPause *bool  `json:"autoPause"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	i := ses.Info()
	reboot := in.Memory != nil && !*in.Memory || i.Labels[labelMemory] == "false" && !pausedWithMemory(c.r.Context(), ses)
	if in.AutoPause != nil && *in.AutoPause != (i.Policy.OnExpiry == v1.ExpiryHibernate) {
		return unsupported("changing autoPause of a sandbox")
	}
	timeout, err := timeoutOf(in.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	status := http.StatusOK
	end := time.Now().Add(timeout)
	if i.State == v1.StateHibernated {
		status = http.StatusCreated
	}
	// A paused sandbox has no end. That of a session which was created otherwise is not made earlier, either.
	if i.Expires == nil && ours(i) && i.State == v1.StateHibernated || i.Expires != nil && i.Expires.Before(end) {
		err = ses.SetExpiry(c.r.Context(), end)
	}
	if err == nil {
		err = ses.Resume(c.r.Context())
	}
	if err == nil && reboot && i.State == v1.StateHibernated {
		err = endProcesses(c.r.Context(), ses)
	}
	if err == nil && i.Labels[labelMemory] == "false" {
		if err = ses.DeleteVar(c.r.Context(), pausedVar); v1.CodeOf(err) == v1.CodeVarNotFound {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return c.reply(status, c.access(ses))
}

const (
	stateRunning = wire.StateRunning
	statePaused  = wire.StatePaused
)

func describe(i session.Info) details {
	d := details{
		Sandbox:  i.Key.Name,
		Template: templateOf(i),
		Client:   "recluse",
		Started:  i.Created,
		End:      never,
		Version:  envdVersion,
		State:    stateRunning,
		CPUs:     i.Spec.Limits.CPUs,
		Memory:   i.Spec.Limits.Memory >> 20,
		Disk:     i.Spec.Limits.Disk >> 20,
		Metadata: map[string]string{},
	}
	if i.Expires != nil {
		d.End = *i.Expires
	}
	if i.State == v1.StateHibernated || i.State == v1.StatePaused {
		d.State = statePaused
	}
	for name, value := range i.Labels {
		if !strings.HasPrefix(name, ownLabels) {
			d.Metadata[name] = value
		}
	}
	return d
}

func (c *call) show(ses *session.Session) error {
	i := ses.Info()
	d := describe(i)
	d.Domain = c.domain(c.r)
	network, internet := networkOf(i)
	d.Network, d.Internet = &network, &internet
	d.Lifecycle = &lifecycle{OnTimeout: "kill", AutoResume: i.Labels[labelResume] == "true"}
	if i.Policy.OnExpiry == v1.ExpiryHibernate {
		d.Lifecycle.OnTimeout = "pause"
	}
	return c.reply(http.StatusOK, d)
}

// list returns a page of the sandboxes of the tenant, newest first. The first version of the API has running ones only,
// on one page.
func (c *call) list(first bool) error {
	q := c.r.URL.Query()
	for name := range q {
		if !slices.Contains(
			[]string{"metadata", "state", "startedAfter", "template", "order", "limit", "nextToken"}, name,
		) {
			return unsupported("the query parameter " + strconv.Quote(name))
		}
	}
	labels, err := metadataQuery(q.Get("metadata"))
	if err != nil {
		return err
	}
	states := []string{stateRunning, statePaused}
	if first {
		states = states[:1]
	}
	if given := q["state"]; len(given) > 0 {
		states = strings.Split(strings.Join(given, ","), ",")
	}
	var after time.Time
	if text := q.Get("startedAfter"); text != "" {
		if after, err = time.Parse(time.RFC3339, text); err != nil {
			return invalid("startedAfter is not a time")
		}
	}
	found := []details{}
	running := 0
	for i, err := range c.manager.List(c.r.Context(), session.ListOptions{Tenant: c.tenant, Labels: labels}) {
		if err != nil {
			return err
		}
		d := describe(i)
		if i.State == v1.StateCreating || i.State == v1.StateEnding || i.State == v1.StateLost {
			continue
		}
		if d.State == stateRunning {
			running++
		}
		if slices.Contains(states, d.State) && (after.IsZero() || d.Started.After(after)) &&
			(q.Get("template") == "" || q.Get("template") == d.Template) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b details) int {
		return cmp.Or(b.Started.Compare(a.Started), strings.Compare(a.Sandbox, b.Sandbox))
	})
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		slices.Reverse(found)
	default:
		return invalid("order is neither asc nor desc")
	}
	c.w.Header().Set("X-Total-Running", strconv.Itoa(running))
	if first {
		return c.reply(http.StatusOK, found)
	}
	page, err := page(c, found, func(d details) string { return d.Sandbox })
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, page)
}

// metadataQuery parses a query in a query parameter, whose names and values are encoded once more.
func metadataQuery(text string) (map[string]string, error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid("metadata is not a query string")
	}
	labels := map[string]string{}
	for name := range values {
		n, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(values.Get(name))
		if err1 != nil || err2 != nil {
			return nil, invalid("metadata is not a query string")
		}
		labels[n] = value
	}
	return labels, nil
}

// maxPage is the number of entries of a page.
const maxPage = 100

// page returns the requested page of a sorted list, and announces the next one. A token names the last entry before the
// page.
func page[T any](c *call, all []T, name func(T) string) ([]T, error) {
	q := c.r.URL.Query()
	limit := maxPage
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return nil, invalid("limit is not a number from 1 to 100")
		}
		limit = n
	}
	if after := q.Get("nextToken"); after != "" {
		at := slices.IndexFunc(all, func(e T) bool { return name(e) == after })
		if at < 0 {
			return nil, invalid("the entry that nextToken names has ended; start with the first page")
		}
		all = all[at+1:]
	}
	if len(all) > limit {
		all = all[:limit]
		c.w.Header().Set(wire.HeaderNext, name(all[limit-1]))
	}
	return all, nil
}

func (c *call) kill(ses *session.Session) error {
	if err := ses.End(c.r.Context(), "killed over the API of E2B"); err != nil {
		return err
	}
	return c.done()
}

// pause hibernates a sandbox; without memory it ends its processes first. It then has no end: the operator's limit for
// hibernated sessions applies.
func (c *call) pause(ses *session.Session) error {
	var in struct {
		Memory *bool `json:"memory"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if ses.Info().State == v1.StateHibernated {
		fail(c.w, http.StatusConflict, "the sandbox is paused already")
		return nil
	}
	switch {
	case in.Memory != nil && !*in.Memory:
		if err := endProcesses(c.r.Context(), ses); err != nil {
			return err
		}
	case ses.Info().Labels[labelMemory] == "false":
		if err := ses.SetVar(c.r.Context(), pausedVar, "with memory"); err != nil {
			return err
		}
	}
	if err := ses.Hibernate(c.r.Context()); err != nil {
		return err
	}
	if ours(ses.Info()) {
		if err := ses.SetExpiry(c.r.Context(), time.Time{}); err != nil {
			return err
		}
	}
	return c.done()
}

func (c *call) timeout(ses *session.Session) error {
	var in struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if in.Timeout == nil {
		return invalid("the timeout is missing")
	}
	if *in.Timeout == 0 {
		return c.kill(ses)
	}
	timeout, err := timeoutOf(in.Timeout, 0)
	if err != nil {
		return err
	}
	if err := ses.SetExpiry(c.r.Context(), time.Now().Add(timeout)); err != nil {
		return err
	}
	return c.done()
}

// refresh moves the end of a sandbox further away.
func (c *call) refresh(ses *session.Session) error {
	var in struct {
		Duration *int64 `json:"duration"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	timeout, err := timeoutOf(in.Duration, defaultTimeoutV1)
	if err != nil {
		return err
	}
	end := time.Now().Add(timeout)
	if i := ses.Info(); i.Expires != nil && i.Expires.Before(end) {
		if err := ses.SetExpiry(c.r.Context(), end); err != nil {
			return err
		}
	}
	return c.done()
}

// forkResult is a copy, or why there is none.
type forkResult struct {
	Sandbox *access  `json:"sandbox,omitempty"`
	Error   *failure `json:"error,omitempty"`
}

// maxForks is the number of copies of a request.
const maxForks = 100

// fork makes live copies of a sandbox.
func (c *call) fork(ses *session.Session) error {
	var in struct {
		Count   *int   `json:"count"`
		Timeout *int64 `json:"timeout"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	left := 1
	if in.Count != nil {
		left = *in.Count
	}
	if left < 1 || left > maxForks {
		return invalid("count is not a number from 1 to 100")
	}
	timeout, err := timeoutOf(in.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	var out []forkResult
	for left > 0 {
		n := min(left, session.MaxForks)
		left -= n
		made, err := c.forkOnce(ses, n, timeout)
		switch {
		case err != nil && len(out) == 0:
			return err
		case err != nil: // some copies exist already
			for range n + left {
				out = append(out, forkResult{Error: &failure{Code: statusOf(err), Message: text(err)}})
			}
			return c.reply(http.StatusCreated, out)
		}
		for _, f := range made {
			a := c.access(f)
			out = append(out, forkResult{Sandbox: &a})
		}
	}
	return c.reply(http.StatusCreated, out)
}

// forkOnce makes n copies, or none.
func (c *call) forkOnce(ses *session.Session, n int, timeout time.Duration) ([]*session.Session, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = ids.Hex(idBytes)
	}
	made, err := ses.Fork(c.r.Context(), n, names)
	if err != nil {
		return nil, err
	}
	for _, f := range made {
		if err := f.SetExpiry(c.r.Context(), time.Now().Add(timeout)); err != nil {
			ctx := context.WithoutCancel(c.r.Context())
			for _, f := range made {
				_ = f.End(ctx, "the timeout of the copy was refused")
			}
			return nil, err
		}
	}
	return made, nil
}
