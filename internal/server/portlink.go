package server

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

const (
	// portCookie holds the link of a browser on the host name of a port. Other host names do not receive it.
	portCookie = "recluse_port"
	// portQuery is the query parameter of a link.
	portQuery = "recluse_link"
	maxLabel  = 63 // of DNS
)

// portGrant is what a link allows. It is signed, not stored.
type portGrant struct {
	Tenant  string `json:"t"`
	Session string `json:"s"` // id
	Name    string `json:"n"`
	Port    uint16 `json:"p"`
	Key     string `json:"k,omitempty"` // id of the key that created it; empty: none
	Actor   string `json:"a"`
	Expires int64  `json:"e"` // UNIX time
}

// holder returns the caller that has the link.
func (g portGrant) holder() principal {
	return principal{
		actor:     "link of " + g.Actor,
		tenant:    g.Tenant,
		scope:     scopeExecute,
		key:       g.Key,
		session:   g.Name,
		sessionID: g.Session,
	}
}

// secret returns the secret that signs links.
func (s *Server) secret(ctx context.Context) (string, error) {
	if known := s.linkSecret.Load(); known != nil {
		return *known, nil
	}
	secret, err := s.opts.Store.Secret(ctx)
	if err != nil {
		return "", err
	}
	s.linkSecret.Store(&secret)
	return secret, nil
}

// sign returns the signature of a grant.
func sign(secret string, grant []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte("recluse link to a port\n"))
	h.Write(grant)
	return h.Sum(nil)
}

// grant checks the text of a link.
func (s *Server) grant(ctx context.Context, text string) (g portGrant, err error) {
	refused := &v1.Error{
		Code:    v1.CodeUnauthorized,
		Op:      "check access",
		Message: "the link is invalid, or has expired",
		Remedy:  "create another one with recluse port link SESSION PORT",
	}
	secret, err := s.secret(ctx)
	if err != nil {
		return g, err
	}
	body, mac, _ := strings.Cut(text, ".")
	grant, err1 := base64.RawURLEncoding.DecodeString(body)
	sum, err2 := base64.RawURLEncoding.DecodeString(mac)
	if err1 != nil || err2 != nil || !hmac.Equal(sum, sign(secret, grant)) || json.Unmarshal(grant, &g) != nil {
		return portGrant{}, refused
	}
	now := time.Now()
	if now.Unix() >= g.Expires || !s.access.goodKey(g.Key, now) {
		return portGrant{}, refused
	}
	return g, nil
}

// linkPort creates a link to a port.
func linkPort(c *call, ses *session.Session, in v1.PortLinkRequest) (v1.PortLink, error) {
	port, err := c.port()
	if err != nil {
		return v1.PortLink{}, err
	}
	if c.who.session != "" { // otherwise a token could create a link that outlives it
		return v1.PortLink{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "create link",
			Message: "a session token cannot create links",
			Remedy:  "use a key",
		}
	}
	life := cmp.Or(in.ExpiresIn.Std(), v1.DefaultPortLink)
	if life < time.Second || life > v1.MaxPortLink {
		return v1.PortLink{}, invalid("invalid expires_in: want 1s to %s", v1.MaxPortLink)
	}
	base, err := c.s.portBase()
	if err != nil {
		return v1.PortLink{}, err
	}
	secret, err := c.s.secret(c.ctx())
	if err != nil {
		return v1.PortLink{}, err
	}
	expires := time.Now().Add(life).Truncate(time.Second)
	g := portGrant{
		Tenant:  ses.Key().Tenant,
		Session: ses.ID(),
		Name:    ses.Key().Name,
		Port:    port,
		Key:     c.who.key,
		Actor:   c.who.actor,
		Expires: expires.Unix(),
	}
	grant, err := json.Marshal(g)
	if err != nil {
		return v1.PortLink{}, err
	}
	text := base64.RawURLEncoding.EncodeToString(grant) + "." + base64.RawURLEncoding.EncodeToString(sign(secret, grant))
	c.s.manager.Note(c.ctx(), session.Entry{
		Tenant:  g.Tenant,
		Session: g.Name,
		Action:  "port.link",
		Detail:  fmt.Sprintf("port %d, until %s", port, expires.UTC().Format(time.RFC3339)),
	})
	c.status = http.StatusCreated
	base.Host = portLabel(ses, port) + "." + base.Host
	base.RawQuery = url.Values{portQuery: {text}}.Encode()
	return v1.PortLink{URL: base.String(), Port: int(port), Session: g.Name, Expires: expires}, nil
}

// portLabel returns the first label of the host name of a port: with the name of the session if it fits into a label
// and no other tenant has it, else with its id.
func portLabel(ses *session.Session, port uint16) string {
	number, name := strconv.Itoa(int(port))+"-", ses.Key().Name
	plain := !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	})
	fits := plain && !strings.HasSuffix(name, "-") && len(number+name) <= maxLabel
	if fits && ses.Key().Tenant == session.DefaultTenant {
		return number + name
	}
	return number + ses.ID()
}

// portBase returns the URL of the domain of ports.
func (s *Server) portBase() (*url.URL, error) {
	u := &url.URL{Scheme: s.hosts.scheme, Host: s.hosts.domain, Path: "/"}
	if u.Scheme != "" {
		if s.hosts.port != "" {
			u.Host += ":" + s.hosts.port
		}
		return u, nil
	}
	addr := s.tcp.Load()
	if addr == nil {
		return nil, &v1.Error{
			Code:    v1.CodeNotSupported,
			Op:      "create link",
			Message: "the server listens on its UNIX socket only, which browsers cannot use",
			Remedy:  "forward the port with recluse port SESSION PORT, or start the server with recluse serve --listen 127.0.0.1:7070",
		}
	}
	u.Scheme = "http"
	if s.opts.TLS != nil {
		u.Scheme = "https"
	}
	port := s.hosts.port
	if port == "" {
		_, port, _ = net.SplitHostPort(*addr) // an address of a listener is valid
	}
	u.Host = net.JoinHostPort(u.Host, port)
	return u, nil
}

// portHostRoute is the name of requests to host names of ports in the log and the metrics.
const portHostRoute = "{port}-{session}"

// servePort answers a request to the host name of a port.
func (s *Server) servePort(w http.ResponseWriter, r *http.Request, to portHost) {
	s.dispatch(w, r, &route{
		method: "any",
		path:   portHostRoute,
		long:   true,
		proxy:  true,
		handle: func(c *call) error { return c.portHost(to) },
	})
}

// portHost sends a request to a port, if the caller has a link, a key or a token.
func (c *call) portHost(to portHost) error {
	c.r.SetPathValue("session", to.session)
	if text := c.r.URL.Query().Get(portQuery); text != "" {
		return c.openLink(to, text)
	}
	if err := c.admitToPort(to); err != nil {
		return err
	}
	if wait, err := c.s.rates.take(c.who.rate); err != nil {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return err
	}
	c.r = c.r.WithContext(session.WithActor(c.r.Context(), c.who.asActor()))
	ses, err := c.namedSession()
	if err != nil {
		return err
	}
	return c.proxyHost(ses, to.port)
}

// proxyHost sends a request that names a port by its host name to the port.
func (c *call) proxyHost(ses *session.Session, port uint16) error {
	escaped := c.r.URL.EscapedPath()
	return c.proxy(ses, port, func(pr *httputil.ProxyRequest) {
		setPath(pr.Out.URL, cmp.Or(escaped, "/"))
		pr.Out.Host = pr.In.Host
	}, ownCookies)
}

// namedSession returns the session that the host name names, if the caller may use it.
func (c *call) namedSession() (*session.Session, error) {
	if err := c.resolveSession(); err != nil {
		return nil, err
	}
	if c.who.session != "" && c.r.PathValue("session") != c.who.session {
		return nil, c.unknownSession()
	}
	return c.session()
}

// admitToPort authenticates the caller. A key, a token or the UNIX socket counts as for the API. Otherwise the cookie
// counts that a link has set: the browser sends it with every request, so those of other pages are refused.
func (c *call) admitToPort(to portHost) error {
	if isOurKey(c.r.Header.Get("Authorization")) || peerOf(c.r.Context()).unix {
		plain := c.r
		if !isOurKey(c.r.Header.Get("Authorization")) { // it is for the program inside
			plain = c.r.Clone(c.ctx())
			plain.Header.Del("Authorization")
		}
		who, err := c.s.authenticate(plain)
		if err != nil {
			return err
		}
		if c.who = who; who.scope < scopeExecute {
			return &v1.Error{
				Code:    v1.CodeForbidden,
				Op:      "check access",
				Message: "ports require the scope execute; the key has the scope " + who.scope.String(),
			}
		}
		return nil
	}
	cookies := c.r.CookiesNamed(portCookie)
	if len(cookies) == 0 {
		return &v1.Error{
			Code:    v1.CodeUnauthorized,
			Op:      "check access",
			Message: "this is a port of a sandbox, and opens with a link",
			Remedy:  "create one with recluse port link SESSION PORT, or send a key as Authorization: Bearer KEY",
		}
	}
	var g portGrant
	var err error
	for _, cookie := range cookies { // a page below the same domain may have set others
		if g, err = c.s.grant(c.ctx(), cookie.Value); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if g.Port != to.port {
		return c.unknownSession()
	}
	if c.ofAnotherPage(to) {
		return &v1.Error{
			Code:    v1.CodeOrigin,
			Op:      "check access",
			Message: "pages of another origin cannot use this port",
		}
	}
	c.who = g.holder()
	return nil
}

// ofAnotherPage reports whether a page of another origin sent the request. It is allowed to lead the user here, and the
// pages of other ports of the same session may do everything, because the same code serves them.
func (c *call) ofAnotherPage(to portHost) bool {
	if origin := c.r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil {
			return true
		}
		from, _ := c.s.hosts.portOf(u.Host)
		return from.session != to.session
	}
	site := c.r.Header.Get("Sec-Fetch-Site")
	if site == "" || site == "none" || site == "same-origin" {
		return false
	}
	visit := c.r.Header.Get("Sec-Fetch-Mode") == "navigate" && c.r.Header.Get("Sec-Fetch-Dest") == "document"
	return !visit || c.r.Method != http.MethodGet
}

// openLink sets the cookie of a link, and redirects to the same page without the link.
func (c *call) openLink(to portHost, text string) error {
	g, err := c.s.grant(c.ctx(), text)
	if err != nil {
		return err
	}
	c.who = g.holder()
	ses, err := c.namedSession()
	if err != nil {
		return err
	}
	// Sessions of different tenants must not share an origin, even if they have the same name.
	if label, _ := c.s.hosts.label(hostName(c.r.Host)); g.Port != to.port || label != portLabel(ses, to.port) {
		return c.unknownSession()
	}
	if c.r.Method != http.MethodGet && c.r.Method != http.MethodHead {
		return invalid("a link must be opened with GET")
	}
	u := *c.r.URL
	q := u.Query()
	q.Del(portQuery)
	u.Scheme, u.Host, u.RawQuery = "", "", q.Encode()
	// Two slashes at the beginning would name another host.
	target := "/" + strings.TrimLeft(u.RequestURI(), `/\`)
	http.SetCookie(c.w, &http.Cookie{
		Name:     portCookie,
		Value:    text,
		Path:     "/",
		Expires:  time.Unix(g.Expires, 0),
		HttpOnly: true,
		Secure:   c.r.TLS != nil || c.s.hosts.scheme == "https",
		SameSite: http.SameSiteLaxMode,
	})
	h := c.w.Header()
	h.Set("Location", target)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	c.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// ownCookies makes the cookies of a response apply to its host name only, so that a sandbox cannot set those of another
// one, and leaves the cookie of the link alone.
func ownCookies(h http.Header) {
	lines := h["Set-Cookie"]
	h.Del("Set-Cookie")
	for _, line := range lines {
		parts := strings.Split(line, ";")
		if name, _, _ := strings.Cut(parts[0], "="); strings.TrimSpace(name) == portCookie {
			continue
		}
		kept := parts[:1]
		for _, p := range parts[1:] {
			name, _, _ := strings.Cut(p, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "domain") {
				kept = append(kept, p)
			}
		}
		h.Add("Set-Cookie", strings.Join(kept, ";"))
	}
}

// noteListener remembers the address of the first TCP listener, for links.
func (s *Server) noteListener(ln net.Listener) {
	if ln.Addr().Network() == "tcp" {
		addr := ln.Addr().String()
		s.tcp.CompareAndSwap(nil, &addr)
	}
}
