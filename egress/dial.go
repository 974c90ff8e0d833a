package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"golang.org/x/net/http/httpproxy"
)

const (
	dialTimeout  = 15 * time.Second       // look-up included
	dialStagger  = 300 * time.Millisecond // until the next address is tried beside the previous one
	maxAddresses = 8                      // that are tried
)

// ProxyFunc returns the proxy for a URL; nil: none.
type ProxyFunc func(*url.URL) (*url.URL, error)

// HostProxy returns the proxy that this host is configured with (HTTPS_PROXY and NO_PROXY), or nil.
// Behind a proxy, the addresses of names cannot be checked, because the proxy resolves them.
func HostProxy(getenv func(string) string) ProxyFunc {
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := getenv(k); v != "" {
				return v
			}
		}
		return ""
	}
	config := httpproxy.Config{
		HTTPSProxy: first("HTTPS_PROXY", "https_proxy"),
		NoProxy:    first("NO_PROXY", "no_proxy"),
	}
	if config.HTTPSProxy == "" {
		return nil
	}
	return config.ProxyFunc()
}

// upstream is the connection to the destination.
type upstream interface {
	net.Conn
	CloseWrite() error
}

// proxyFor returns the proxy through which h is reached; nil: none.
func (g *Gateway) proxyFor(h host, port uint16) (*url.URL, error) {
	if g.options.Proxy == nil {
		return nil, nil
	}
	return g.options.Proxy(&url.URL{Scheme: "https", Host: net.JoinHostPort(h.String(), strconv.Itoa(int(port)))})
}

func (g *Gateway) proxies(h host, port uint16) bool {
	u, err := g.proxyFor(h, port)
	return u != nil || err != nil
}

// dial connects to h. It refuses addresses that the floor or the policy denies.
func (g *Gateway) dial(
	ctx context.Context, p *Policy, h host, port uint16, approved bool,
) (upstream, netip.AddrPort, *Refusal) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if proxy, err := g.proxyFor(h, port); proxy != nil || err != nil {
		if h.literal() {
			if refusal := g.checkAddress(p, h, h.addr, port, approved); refusal != nil {
				return nil, netip.AddrPort{}, refusal
			}
		}
		if err == nil {
			var up upstream
			if up, err = dialProxy(ctx, proxy, net.JoinHostPort(h.String(), strconv.Itoa(int(port)))); err == nil {
				return up, netip.AddrPort{}, nil
			}
		}
		return nil, netip.AddrPort{}, failed(h, port, fmt.Errorf("proxy of the host: %w", err))
	}
	addrs := []netip.Addr{h.addr}
	if !h.literal() {
		var err error
		if addrs, err = g.names.resolve(ctx, g.life, h.name); err != nil {
			return nil, netip.AddrPort{}, failed(h, port, err)
		}
	}
	var good []netip.AddrPort
	var refusal *Refusal
	for _, a := range addrs {
		if r := g.checkAddress(p, h, a, port, approved); r != nil {
			refusal = r
			continue
		}
		if len(good) < maxAddresses {
			good = append(good, netip.AddrPortFrom(a.Unmap().WithZone(""), port))
		}
	}
	switch {
	case len(good) == 0 && refusal != nil:
		return nil, netip.AddrPort{}, refusal
	case len(good) == 0:
		return nil, netip.AddrPort{}, failed(h, port, errors.New("the name has no address"))
	}
	conn, addr, err := g.connect(ctx, good)
	if err != nil {
		return nil, addr, failed(h, port, err)
	}
	return conn, addr, nil
}

// checkAddress compares an address of h with the floor and with the rules for addresses. A person may have approved the
// connection.
func (g *Gateway) checkAddress(p *Policy, h host, addr netip.Addr, port uint16, approved bool) *Refusal {
	addr = addr.Unmap().WithZone("")
	if why := g.floor.Denied(addr, port); why != "" {
		d := Decision{
			Action: v1.NetworkDeny,
			Rule:   "floor",
			Reason: fmt.Sprintf("%s is denied: %s", hostPort(h, port), why),
			Remedy: "only the operator can allow it, with network.floor_except",
		}
		return &Refusal{Kind: RefusedByFloor, Decision: d}
	}
	for _, a := range []netip.Addr{addr, embedded(addr)} {
		if d := p.decide(h, a, port); !permits(d, approved) {
			return &Refusal{Kind: RefusedByPolicy, Decision: d}
		}
	}
	return nil
}

// dialAny connects to the first address that accepts. It starts with one, and adds the next when dialStagger has passed
// or all others have failed.
func dialAny(ctx context.Context, addrs []netip.AddrPort) (upstream, netip.AddrPort, error) {
	type result struct {
		conn net.Conn
		addr netip.AddrPort
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	start := func(a netip.AddrPort) {
		go func() {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", a.String())
			results <- result{conn, a, err}
		}()
	}
	timer := time.NewTimer(dialStagger)
	defer timer.Stop()
	start(addrs[0])
	next, pending := 1, 1
	var firstErr error
	for pending > 0 {
		select {
		case <-timer.C:
		case r := <-results:
			pending--
			if r.err == nil {
				cancel()
				for range pending { // a dial ends at once when its ctx does
					if other := <-results; other.conn != nil {
						other.conn.Close()
					}
				}
				return r.conn.(*net.TCPConn), r.addr, nil
			}
			if firstErr == nil {
				firstErr = r.err
			}
		}
		if next < len(addrs) {
			start(addrs[next])
			next++
			pending++
			timer.Reset(dialStagger)
		}
	}
	return nil, addrs[0], firstErr
}

// dialProxy connects to target through an HTTP proxy.
func dialProxy(ctx context.Context, proxy *url.URL, target string) (upstream, error) {
	port, ok := map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	if !ok {
		return nil, fmt.Errorf("unsupported scheme %q in HTTPS_PROXY", proxy.Scheme)
	}
	port = cmp.Or(proxy.Port(), port)
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	var conn upstream = raw.(*net.TCPConn)
	if proxy.Scheme == "https" {
		conn = tls.Client(raw, &tls.Config{ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12})
	}
	req := &http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Opaque: target},
		Host:   target,
		Header: http.Header{},
	}
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		req.Header.Set("Proxy-Authorization", "Basic "+credentials)
	}
	err = req.Write(conn)
	reader := bufio.NewReaderSize(conn, 4096)
	if err == nil {
		var resp *http.Response
		//nolint:bodyclose // what follows the head is the connection
		if resp, err = http.ReadResponse(reader, req); err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("the answer to CONNECT is %s", resp.Status)
		}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return &proxied{conn, reader}, nil
}

// proxied is a connection of which the first bytes may already be in a buffer.
type proxied struct {
	upstream
	r *bufio.Reader
}

func (p *proxied) Read(b []byte) (int, error) { return p.r.Read(b) }
