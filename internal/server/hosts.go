package server

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// A page in a browser may make any name of its owner lead to this machine (DNS rebinding), and then belongs to the same
// origin as the API. Therefore requests over TCP must name a host that is ours.

// localDomain is the domain that browsers resolve to loopback without DNS (RFC 6761).
const localDomain = "localhost"

// hosts are the names of this server.
type hosts struct {
	names  []string // in lower case, without port
	domain string   // of ports: PORT-SESSION.domain; in addition to localDomain
	api    bool     // api.domain is a name of the server, too
	// scheme and port are those with which browsers reach the domain; empty: those of the listener.
	scheme, port string
}

// CheckHosts returns an error if one of the names of a server, or its domain of ports, is invalid.
func CheckHosts(names []string, domain string) error {
	_, err := newHosts(names, domain)
	return err
}

func newHosts(names []string, domain string) (hosts, error) {
	h := hosts{domain: localDomain}
	invalidHost := func(name, remedy string) error {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "set the names of the server",
			Message: fmt.Sprintf("invalid host name %q", name),
			Remedy:  remedy,
		}
	}
	if domain != "" {
		text := domain
		if !strings.Contains(text, "://") {
			text = "//" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" || !validHost(u.Hostname()) ||
			net.ParseIP(u.Hostname()) != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return h, invalidHost(domain, "write a domain, such as preview.example, or https://preview.example:8443")
		}
		h.domain, h.scheme, h.port = hostName(u.Hostname()), u.Scheme, u.Port()
	}
	for _, name := range names {
		if !validHost(name) {
			return h, invalidHost(name, "write a name or an address, without a port and without *")
		}
		name = hostName(name)
		if _, below := h.label(name); below {
			return h, invalidHost(name, "choose a name that is not below the domain of ports")
		}
		h.names = append(h.names, name)
	}
	return h, nil
}

func validHost(name string) bool {
	return name != "" && !strings.ContainsAny(name, "*/@?# ") &&
		(!strings.Contains(name, ":") || net.ParseIP(strings.Trim(name, "[]")) != nil)
}

// hostName returns the name in a Host header: in lower case, without the port and the dot at its end.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// known reports whether a request names this server.
func (h *hosts) known(r *http.Request) bool {
	name := hostName(r.Host)
	if r.Host == "" || loopback(name) || slices.Contains(h.names, name) {
		return true
	}
	// An address cannot be rebound, but only the address of the listener is ours.
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, ip := net.ParseIP(hostName(local.String())), net.ParseIP(name)
	return ip != nil && at.Equal(ip)
}

// apiLabel precedes the domain of ports in the name that clients of E2B use for the API.
const apiLabel = "api"

// foreign reports whether a request names neither this server nor a port of a session.
func (h *hosts) foreign(r *http.Request) bool {
	if label, below := h.label(hostName(r.Host)); below {
		to, _ := h.portOf(r.Host)
		return to.port == 0 && (!h.api || label != apiLabel)
	}
	return !h.known(r)
}

// portHost is what the host name of a port says.
type portHost struct {
	port    uint16
	session string // name or id
}

// label returns what precedes a domain of ports in a name, and whether the name is below one.
func (h *hosts) label(name string) (label string, below bool) {
	for _, domain := range []string{h.domain, localDomain} {
		if label, below = strings.CutSuffix(name, "."+domain); below {
			return label, true
		}
	}
	return "", false
}

// portOf returns the port that a Host header names. below reports whether the name is in a domain of ports.
func (h *hosts) portOf(host string) (p portHost, below bool) {
	label, below := h.label(hostName(host))
	number, name, _ := strings.Cut(label, "-")
	if port, ok := parsePort(number); ok && name != "" {
		p = portHost{port, name}
	}
	return p, below
}

// unknownHost is the error for a request to a name that is not ours.
func unknownHost(host string) error {
	return &v1.Error{
		Code:    v1.CodeHostUnknown,
		Op:      "find server",
		Message: fmt.Sprintf("this server does not have the name %.100q", hostName(host)),
		Remedy:  "use its address, or add the name to server.hosts",
	}
}
