package server

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// What programs in a sandbox answer is hostile. A browser must not take it for content of the API: therefore the path
// form (/v1/sessions/S/ports/8000/http/) refuses browsers, and browsers use host names, which are origins of their own.

// portSegments is the number of segments of a path of the path form, the rest being one of them.
const portSegments = 8

// portPath returns the route for a request of the path form, or nil. The mux is not asked, because it would redirect
// paths such as /a/../b, which belong to the program inside.
func (s *Server) portPath(r *http.Request) *route {
	seg := strings.SplitN(r.URL.EscapedPath(), "/", portSegments)
	if len(seg) < portSegments-1 || seg[1] != "v1" || seg[2] != "sessions" || seg[4] != "ports" || seg[6] != "http" {
		return nil
	}
	name, err := url.PathUnescape(seg[3])
	if err != nil {
		return nil
	}
	r.SetPathValue("session", name)
	r.SetPathValue("port", seg[5])
	r.SetPathValue("path", strings.Join(seg[portSegments-1:], ""))
	var found *route
	for i := range s.routes {
		rt := &s.routes[i]
		if rt.proxy && (rt.method == r.Method || found == nil) { // the first one is for all other methods
			found = rt
		}
	}
	return found
}

// fromBrowser reports whether a page in a browser, or its user, sent the request.
func fromBrowser(h http.Header) bool {
	if h.Get("Origin") != "" {
		return true
	}
	for name := range h {
		if strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// proxyPort sends a request of the path form to a port.
func proxyPort(c *call, ses *session.Session) error {
	port, err := c.port()
	if err != nil {
		return err
	}
	if fromBrowser(c.r.Header) {
		return &v1.Error{
			Code:    v1.CodeOrigin,
			Op:      "send request to a port",
			Message: "browsers cannot use this path, because it is on the origin of the API",
			Remedy:  "open a link (recluse port link SESSION PORT), or forward the port with recluse port",
		}
	}
	prefix := "/v1/sessions/" + url.PathEscape(ses.Key().Name) + "/ports/" + strconv.Itoa(int(port)) + "/http"
	return c.proxy(ses, port, func(pr *httputil.ProxyRequest) {
		setPath(pr.Out.URL, "/"+c.r.PathValue("path"))
		pr.Out.Host = "localhost:" + strconv.Itoa(int(port))
		pr.Out.Header.Set("X-Forwarded-Prefix", prefix)
		pr.Out.Header.Del("Authorization")
	}, func(h http.Header) {
		h.Add("Content-Security-Policy", "sandbox")
		h.Set("X-Content-Type-Options", "nosniff")
	})
}

// setPath sets an escaped path verbatim.
func setPath(u *url.URL, escaped string) {
	u.RawPath, u.Path = escaped, escaped
	if p, err := url.PathUnescape(escaped); err == nil {
		u.Path = p
	}
}

// maxPortHeader bounds the headers of a response. There are no timeouts, because the program inside may take long to
// answer.
const maxPortHeader = 1 << 20

// proxy sends the request to a port, and its response to the caller. rewrite changes the request, and mark the headers
// of the response. Each request has a connection of its own: an idle one would keep the session from hibernating.
func (c *call) proxy(
	ses *session.Session, port uint16, rewrite func(*httputil.ProxyRequest), mark func(http.Header),
) error {
	ctx, cancel := c.untilDrain()
	defer cancel()
	own := c.w.Header().Clone()
	clear(c.w.Header()) // the headers of the response are those of the program
	var failed error
	p := &httputil.ReverseProxy{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := ses.DialPort(ctx, port)
				if err != nil {
					return nil, err
				}
				return &proxyConn{conn}, nil
			},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxPortHeader,
		},
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "inside"
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // also if it is not a valid form
			removeCredentials(pr.Out.Header)
			pr.SetXForwarded()
			rewrite(pr)
		},
		ModifyResponse: func(res *http.Response) error {
			mark(res.Header)
			return nil
		},
		FlushInterval: -1, // a stream of events must not wait in a buffer
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p.ServeHTTP(c.w, c.r.WithContext(ctx))
	if failed == nil {
		return nil
	}
	for name, values := range own { // a problem has the headers of the API
		c.w.Header()[name] = values
	}
	return c.drained(portError(ctx, port, failed))
}

// portError returns the error for a request that the program at a port has not answered.
func portError(ctx context.Context, port uint16, err error) error {
	if _, ok := errors.AsType[*v1.Error](err); ok || ctx.Err() != nil {
		return err
	}
	return &v1.Error{
		Code:    v1.CodePortResponse,
		Op:      "send request to a port",
		Message: "the program on port " + strconv.Itoa(int(port)) + " inside sent no valid HTTP response",
		Remedy:  "check the output of the program; for other protocols use recluse port",
		Err:     err,
	}
}

// removeCredentials removes what authenticates the caller to us from a request for a program inside.
func removeCredentials(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "Recluse-") {
			h.Del(name)
		}
	}
	if isOurKey(h.Get("Authorization")) {
		h.Del("Authorization")
	}
	lines := h["Cookie"]
	h.Del("Cookie")
	for _, line := range lines {
		var kept []string
		for part := range strings.SplitSeq(line, ";") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), "=")
			if name != portCookie && strings.TrimSpace(part) != "" {
				kept = append(kept, strings.TrimSpace(part))
			}
		}
		if len(kept) > 0 {
			h.Add("Cookie", strings.Join(kept, "; "))
		}
	}
}

// isOurKey reports whether the value of an Authorization header is a key or a token of ours. Others belong to the
// program inside.
func isOurKey(authorization string) bool {
	kind, secret, _ := strings.Cut(authorization, " ")
	secret = strings.TrimSpace(secret)
	return strings.EqualFold(kind, "bearer") &&
		(strings.HasPrefix(secret, keyPrefix+"_") || strings.HasPrefix(secret, tokenPrefix+"_"))
}

// proxyConn makes a connection to a port a net.Conn. Package http sets no deadlines, and shows no addresses.
type proxyConn struct{ sandbox.PortConn }

type portAddr struct{}

func (portAddr) Network() string { return "port" }
func (portAddr) String() string  { return "inside" }

// LocalAddr implements net.Conn.
func (*proxyConn) LocalAddr() net.Addr { return portAddr{} }

// RemoteAddr implements net.Conn.
func (*proxyConn) RemoteAddr() net.Addr { return portAddr{} }

// SetDeadline implements net.Conn.
func (*proxyConn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.Conn.
func (*proxyConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.Conn.
func (*proxyConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
