package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// loopback is a resolver whose names all lead to this machine.
type loopback struct{}

func (loopback) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// newNetworkBench returns a bench whose sandboxes can reach an echo server on this machine, and the port of the server.
func newNetworkBench(t *testing.T, opts Options) (k *bench, port string) {
	t.Helper()
	if dockertest.Chosen() {
		t.Skip("the network of containers is tested in package docker")
	}
	testneed.Sandboxes(t)
	testneed.Parallel(t)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	b, err := gvisor.New(gvisor.Options{
		DataDir:  shared,
		CacheDir: filepath.Join(shared, "cache"),
		Engine:   engine.Path,
		Guest:    guest.Path,
		Network: sandbox.NetworkOptions{
			Resolver:    loopback{},
			FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	k = &bench{t: t, dir: t.TempDir(), b: b, opts: opts}
	k.opts.Backends, k.opts.DataDir = []sandbox.Backend{b}, k.dir
	k.start()
	t.Cleanup(k.close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return k, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func (k *bench) openWith(ctx context.Context, name string, n v1.Network) *Session {
	k.t.Helper()
	s, _, err := k.m.Open(ctx, Key{Name: name}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Network: n}}})
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

// dial is code that connects to a host and makes a round trip. The connection stays open. It prints ok, or the error.
func dial(host, port string) string {
	return fmt.Sprintf(`
import socket
try:
    c = socket.create_connection((%q, %s), timeout=20)
    c.sendall(b"ping")
    r = "ok" if c.recv(4) == b"ping" else "closed"
except OSError as e:
    r = repr(e)
print(r)`, host, port)
}

// denied runs dial, which must fail, and returns what the verdict says about the connection.
func denied(t *testing.T, s *Session, host, port string) v1.NetworkUse {
	t.Helper()
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: dial(host, port)})
	if err != nil {
		t.Fatal(err)
	}
	if out := v.Stdout.String(); v.Error != nil || strings.TrimSpace(out) == "ok" {
		t.Errorf("the connection to %s:%s was not denied: %s %+v", host, port, out, v.Error)
	}
	for _, u := range v.Network {
		if u.Host == host && u.Port != 0 {
			return u
		}
	}
	t.Errorf("the verdict says nothing about %s: %+v", host, v.Network)
	return v1.NetworkUse{}
}

func (k *bench) usage(ctx context.Context) v1.QuotaReport {
	k.t.Helper()
	u, err := k.m.Usage(ctx, UsageQuery{Tenant: DefaultTenant, Server: true})
	if err != nil {
		k.t.Fatal(err)
	}
	return u
}

func TestSessionsOfAKeyShareTheirNetworkQuota(t *testing.T) {
	k, port := newNetworkBench(t, quick())
	ctx := withKey(t.Context(), "k")
	err := k.m.store.AddKey(ctx, store.APIKey{ID: "k", Tenant: DefaultTenant, Hash: []byte("1"), Quota: v1.Quota{
		Connections: new(1), NetworkBytes: new(int64(1 << 20)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	n := v1.Network{Rules: []v1.NetworkRule{"allow *.acme.org:*"}}
	one, two := k.openWith(ctx, "one", n), k.openWith(ctx, "two", n)
	want(t, "the first connection", py(t, one, dial("a.acme.org", port)), "ok")
	u := denied(t, two, "a.acme.org", port)
	if u.Action != v1.NetworkDeny || !strings.Contains(u.Reason, "quota of key k, network_connections: limit 1, 0 left, 1 requested") {
		t.Errorf("the second connection: %+v", u)
	}
	other := k.openWith(withKey(t.Context(), ""), "other", n)
	want(t, "a connection of another key", py(t, other, dial("a.acme.org", port)), "ok")
	use := k.usage(ctx)
	if *use.Key.Used.Connections != 1 || *use.Server.Used.Connections != 2 || *use.Key.Used.NetworkBytes != 8 {
		t.Errorf("used by the key %+v, by the server %+v", use.Key.Used, use.Server.Used)
	}
	py(t, one, "c.close()")
	await(t, "the place is free again", func() bool { return *k.usage(ctx).Key.Used.Connections == 0 })
	want(t, "the next connection", py(t, two, dial("a.acme.org", port)), "ok")

	k.restart() // bytes are counted again, and limited
	use = k.usage(ctx)
	if *use.Key.Used.NetworkBytes != 16 || *use.Tenant.Used.NetworkBytes != 24 || *use.Key.Used.Connections != 0 {
		t.Errorf("used after a restart: %+v, %+v", use.Key.Used, use.Tenant.Used)
	}
	over := dial("b.acme.org", port) + `
try:
    c.sendall(bytes(2 << 20))
    while c.recv(1 << 16): pass
    print("end")
except OSError as e:
    print(repr(e))`
	one = k.get("one")
	if got := py(t, one, over); strings.HasSuffix(got, "end") {
		t.Error("the connection was not reset")
	}
	u = denied(t, k.get("two"), "a.acme.org", port)
	if !strings.Contains(u.Reason, "quota of key k, network_bytes: limit 1m, 0 left") {
		t.Errorf("a connection after too many bytes: %+v", u)
	}
}

func TestTheConnectionRateOfATenant(t *testing.T) {
	k, port := newNetworkBench(t, quick())
	set := func(q v1.Quota) {
		t.Helper()
		err := errors.Join(
			k.m.store.SaveTenant(t.Context(), store.Tenant{Name: DefaultTenant, Quota: q}),
			k.m.NetworkChanged(t.Context(), DefaultTenant),
		)
		if err != nil {
			t.Fatal(err)
		}
	}
	s := k.openWith(t.Context(), "one", v1.Network{Rules: []v1.NetworkRule{"allow *.acme.org:*"}})
	want(t, "a connection without a limit", py(t, s, dial("a.acme.org", port)), "ok")
	set(v1.Quota{ConnectionRate: new(0.001)}) // a burst of one
	want(t, "the first one", py(t, s, dial("a.acme.org", port)), "ok")
	if u := denied(t, s, "a.acme.org", port); !strings.Contains(u.Reason, "quota of tenant default, network_rate: limit 0.001 per second") {
		t.Errorf("the second one: %+v", u)
	}
	set(v1.Quota{ConnectionRate: new(0.0)})
	if u := denied(t, s, "a.acme.org", port); !strings.Contains(u.Reason, "limit 0 per second") {
		t.Errorf("zero means zero: %+v", u)
	}
	set(v1.Quota{})
	want(t, "without a limit again", py(t, s, dial("a.acme.org", port)), "ok")
}

func TestMaximaAndDefaultsOfKeyAndTenant(t *testing.T) {
	opts := quick()
	opts.NoPool = false // a sandbox of the pool gets the maxima when it is handed out
	opts.NetworkDefault = &v1.Network{Rules: []v1.NetworkRule{"allow server.acme.org:*"}}
	k, port := newNetworkBench(t, opts)
	ctx := withKey(t.Context(), "k")
	policy := func(rules ...v1.NetworkRule) *v1.Network { return &v1.Network{Rules: rules} }
	saveTenant := func(b v1.NetworkBounds) error {
		return k.m.store.SaveTenant(ctx, store.Tenant{Name: DefaultTenant, Network: b})
	}
	err := k.m.store.AddKey(ctx, store.APIKey{ID: "k", Tenant: DefaultTenant, Hash: []byte("1"), Network: v1.NetworkBounds{
		Default: policy("allow key.acme.org:*"),
		Max:     policy("allow *.acme.org:*"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	wide := k.openWith(ctx, "wide", v1.Network{Preset: v1.NetworkPublic})
	want(t, "inside the maximum", py(t, wide, dial("a.acme.org", port)), "ok")
	if u := denied(t, wide, "a.example.com", port); !strings.Contains(u.Reason, "the maximum of key k does not allow a.example.com:"+port) ||
		!strings.Contains(u.Reason, "only the operator can allow it") {
		t.Errorf("outside the maximum: %+v", u)
	}
	want(t, "the rules", strings.Join(wide.Info().NetworkRules, "; "),
		"preset public; the maximum of key k: allow *.acme.org:*; the maximum of key k: preset none")

	// The most specific default counts.
	for _, c := range []struct {
		name, want string
		ctx        context.Context
	}{{"server", "server", t.Context()}, {"tenant", "tenant", t.Context()}, {"key", "key", ctx}} {
		if c.name == "tenant" {
			if err := saveTenant(v1.NetworkBounds{Default: policy("allow tenant.acme.org:*")}); err != nil {
				t.Fatal(err)
			}
		}
		s, _, err := k.m.Open(c.ctx, Key{Name: c.name}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{}}})
		if err != nil {
			t.Fatal(err)
		}
		want(t, "the default of "+c.name, py(t, s, dial(c.want+".acme.org", port)), "ok")
		denied(t, s, "a.acme.org", port)
		for _, again := range []sandbox.Spec{{}, {Network: s.Info().Spec.Network}} {
			if _, _, err := k.m.Open(c.ctx, Key{Name: c.name}, OpenOptions{Settings: Settings{Spec: &again}}); err != nil {
				t.Errorf("%s, opened again: %v", c.name, err)
			}
		}
		none := sandbox.Spec{Network: v1.Network{Preset: v1.NetworkNone}}
		_, _, err = k.m.Open(c.ctx, Key{Name: c.name}, OpenOptions{Settings: Settings{Spec: &none}})
		wantCode(t, "another policy", err, v1.CodeSpecConflict)
	}
	none := k.openWith(ctx, "none", v1.Network{Preset: v1.NetworkNone})
	if got := py(t, none, dial("key.acme.org", port)); got == "ok" {
		t.Error("the default replaces the policy none")
	}

	// A new maximum applies at once, also to open connections, and to a session that is attached again.
	py(t, wide, dial("a.acme.org", port))
	if err := errors.Join(saveTenant(v1.NetworkBounds{Max: policy("allow b.acme.org:*")}), k.m.NetworkChanged(ctx, DefaultTenant)); err != nil {
		t.Fatal(err)
	}
	closed := "try:\n    print(c.recv(1))\nexcept OSError as e:\n    print(repr(e))"
	if got := py(t, wide, closed); got != "b''" && !strings.Contains(got, "reset") {
		t.Errorf("the open connection: %s", got)
	}
	for range 2 {
		want(t, "what both maxima allow", py(t, k.get("wide"), dial("b.acme.org", port)), "ok")
		if u := denied(t, k.get("wide"), "a.acme.org", port); !strings.Contains(u.Reason, "the maximum of tenant default does not allow") {
			t.Errorf("with a maximum of the tenant: %+v", u)
		}
		k.restart()
	}
}

func TestAConnectionSucceedsOnceItIsApproved(t *testing.T) {
	opts := quick()
	opts.Approvals = gate.NewApprovals(time.Hour)
	k, port := newNetworkBench(t, opts)
	n := v1.Network{Rules: []v1.NetworkRule{v1.NetworkRule("ask *.acme.org:" + port)}}
	s := k.openWith(t.Context(), "one", n)
	u := denied(t, s, "a.acme.org", port)
	if u.Action != v1.NetworkAsk || u.Approval == "" || !strings.Contains(u.Reason, "approval requested") || strings.Contains(u.Reason, v1.GrantCommand) {
		t.Errorf("before the approval: %+v", u)
	}
	if again := denied(t, s, "a.acme.org", port); again.Approval != u.Approval {
		t.Errorf("asked twice: %s and %s", again.Approval, u.Approval)
	}
	list := opts.Approvals.List(DefaultTenant)
	if len(list) != 1 || list[0].Kind != v1.ApprovalConnection || list[0].Text() != "connect to a.acme.org:"+port || list[0].Request.Session != "one" {
		t.Fatalf("approvals: %+v", list)
	}
	if _, err := opts.Approvals.Resolve(u.Approval, gate.Answer{Grant: true, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a grant is not used up
		want(t, "after the approval", py(t, s, dial("a.acme.org", port)), "ok")
	}
	refused := denied(t, s, "b.acme.org", port) // a grant is for one destination
	if _, err := opts.Approvals.Resolve(refused.Approval, gate.Answer{By: "ann", Note: "not that one"}); err != nil {
		t.Fatal(err)
	}
	if u := denied(t, s, "b.acme.org", port); u.Action != v1.NetworkDeny || !strings.Contains(u.Reason, "ann has refused b.acme.org:"+port+": not that one") {
		t.Errorf("after the refusal: %+v", u)
	}
	k.restart()
	s = k.get("one")
	want(t, "after a restart", py(t, s, dial("a.acme.org", port)), "ok")
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	s = k.openWith(t.Context(), "one", n)
	if u := denied(t, s, "a.acme.org", port); u.Action != v1.NetworkAsk {
		t.Errorf("the grant is good for a later session of the name: %+v", u)
	}
	later := v1.SessionNetwork{Network: v1.Network{Rules: []v1.NetworkRule{v1.NetworkRule("ask c.acme.org:" + port)}}}
	if _, err := s.SetNetwork(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if u := denied(t, s, "c.acme.org", port); u.Action != v1.NetworkAsk || u.Approval == "" {
		t.Errorf("a later policy that asks: %+v", u)
	}
}

func TestAskNeedsApprovals(t *testing.T) {
	k, _ := newNetworkBench(t, quick())
	spec := sandbox.Spec{Network: v1.Network{Rules: []v1.NetworkRule{"ask a.acme.org"}}}
	_, _, err := k.m.Open(t.Context(), Key{Name: "one"}, OpenOptions{Settings: Settings{Spec: &spec}})
	wantCode(t, "a session without approvals", err, v1.CodeNotSupported)
	_, err = sandbox.Open(t.Context(), k.b, spec)
	wantCode(t, "a sandbox without a session", err, v1.CodeNotSupported)
}
