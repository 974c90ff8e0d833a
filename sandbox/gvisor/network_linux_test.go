//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// zone is a resolver whose names all lead to this machine, except those below missing.test.
type zone struct{}

func (zone) LookupNetIP(_ context.Context, _, name string) ([]netip.Addr, error) {
	if strings.HasSuffix(strings.TrimSuffix(name, "."), "missing.test") {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// outside is a web server of the outside, and a backend whose sandboxes can reach it if their policy allows it.
type outside struct {
	b    *Backend
	port string
}

func newOutside(t *testing.T) outside {
	t.Helper()
	return outsideOf(t, testBackend(t))
}

func outsideOf(t *testing.T, b *Backend) outside {
	t.Helper()
	b.opts.Network = sandbox.NetworkOptions{
		Resolver:    zone{},
		FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "hello %s, %d bytes", strings.Split(r.Host, ":")[0], r.ContentLength)
	}))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return outside{b, port}
}

func (o outside) open(t *testing.T, rules ...v1.NetworkRule) *sandbox.Sandbox {
	t.Helper()
	return open(t, o.b, sandbox.Spec{Network: v1.Network{Rules: rules}})
}

// get is a function get(host, port) for cells, which returns the body of a page or the error.
const get = `
import urllib.request, urllib.error
def get(host, port=80, data=None):
    try:
        return urllib.request.urlopen(f"http://{host}:{port}/", data, timeout=20).read().decode()
    except urllib.error.HTTPError as e:
        return f"{e.code} {e.read().decode()}"
    except OSError as e:
        return repr(e)
`

func result(v *sandbox.Verdict) string {
	if v.Result == nil {
		return fmt.Sprintf("no result: %+v", v.Error)
	}
	return v.Result.Text()
}

func expect(t *testing.T, sb *sandbox.Sandbox, code, want string) *sandbox.Verdict {
	t.Helper()
	v := cell(t, sb, code)
	if got := result(v); !strings.Contains(got, want) {
		t.Errorf("%s: %s, want %s", code, got, want)
	}
	return v
}

func TestNamesAreReachedAsThePolicyAllows(t *testing.T) {
	for _, asUser := range []bool{false, true} {
		t.Run(fmt.Sprintf("as an ordinary user: %v", asUser), func(t *testing.T) {
			b := testBackend(t)
			b.opts.AsUser = asUser
			reachNames(t, outsideOf(t, b))
		})
	}
}

func reachNames(t *testing.T, o outside) {
	t.Helper()
	sb := o.open(t, v1.NetworkRule("allow *.example.test:"+o.port))
	cell(t, sb, get)
	v := expect(t, sb, "get('api.example.test', "+o.port+", b'x' * 300000)", "hello api.example.test, 300000 bytes")
	if len(v.Network) != 1 || v.Network[0].Host != "api.example.test" || v.Network[0].Action != v1.NetworkAllow ||
		v.Network[0].Sent < 300_000 || v.Network[0].Received == 0 || v.Network[0].Unattributed {
		t.Errorf("the verdict has %+v", v.Network)
	}
	v = expect(t, sb, "get('other.test', "+o.port+")", "eset") // connection reset
	if len(v.Network) != 1 || v.Network[0].Action != v1.NetworkDeny || !strings.Contains(v.Network[0].Reason, "--allow other.test:"+o.port) {
		t.Errorf("the verdict has %+v", v.Network)
	}
	expect(t, sb, "get('other.test')", "403 recluse: the network policy does not allow other.test:80")
	expect(t, sb, "get('api.example.test', 1)", "eset")
	expect(t, sb, "get('example.test', "+o.port+")", "eset") // *. does not include the apex
	expect(t, sb, "get('127.1.2.3', "+o.port+")", "refused")
	expect(t, sb, "get('93.184.216.34')", "eset")
	expect(t, sb, "get('[2606:2800:220:1::1]')", "unreachable")
}

func TestNamesThatDoNotExist(t *testing.T) {
	o := newOutside(t)
	sb := o.open(t, "allow *.missing.test")
	cell(t, sb, get)
	expect(t, sb, "get('a.missing.test')", "not known")
}

func TestOtherTrafficIsRefusedAtOnce(t *testing.T) {
	o := newOutside(t)
	sb := o.open(t, "allow *.example.test:*")
	for _, c := range []struct{ name, code, want string }{
		{"UDP", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(('93.184.216.34', 443)); s.send(b'x'); s.recv(1)", "ConnectionRefusedError"},
		{"UDP to a name", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect((socket.gethostbyname('a.example.test'), 443)); s.send(b'x'); s.recv(1)", "ConnectionRefusedError"},
		{"raw sockets", "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)", "PermissionError"},
	} {
		code := "import socket\ntry:\n    " + c.code + "\n    r = 'ok'\nexcept OSError as e:\n    r = repr(e)\nr"
		t.Run(c.name, func(t *testing.T) { expect(t, sb, code, c.want) })
	}
	// DNS over UDP to any server is answered by the guest.
	expect(t, sb, `
import socket, struct
q = struct.pack(">6H", 7, 256, 1, 0, 0, 0) + b"\x01a\x07example\x04test\x00" + struct.pack(">2H", 1, 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.sendto(q, ("8.8.8.8", 53))
socket.inet_ntoa(s.recv(512)[-4:])`, "198.18.")
}

func TestWithoutAPolicyTheVerdictNamesWhatWasDenied(t *testing.T) {
	o := newOutside(t)
	sb := o.open(t)
	cell(t, sb, get)
	v := expect(t, sb, "get('pypi.org')", "not known")
	if len(v.Network) != 1 || v.Network[0].Host != "pypi.org" || !strings.Contains(v.Network[0].Reason, "--net packages") {
		t.Errorf("the verdict has %+v", v.Network)
	}
	expect(t, sb, "get('93.184.216.34')", "unreachable")
}

// A copy of a sandbox, and one that is restored, have the policy before code inside can connect, and a connection that
// the original had open ends in them.
func TestCopiesHaveTheNetworkOfTheirOriginal(t *testing.T) {
	o := newOutside(t)
	sb := o.open(t, v1.NetworkRule("allow a.example.test:"+o.port))
	cell(t, sb, get+"\nimport socket\nlive = socket.create_connection(('a.example.test', "+o.port+"), 20)\nlive.sendall(b'GET / HTTP/1.1\\r\\n')")
	copies, err := sb.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		t.Cleanup(func() { _ = c.Close() })
		expect(t, c, "get('a.example.test', "+o.port+")", "hello a.example.test")
		expect(t, c, "get('b.example.test', "+o.port+")", "eset")
		expect(t, c, "proxied = urllib.request.build_opener(urllib.request.ProxyHandler({'http': 'http://127.0.0.1:3128'}))\n"+
			"proxied.open('http://a.example.test:"+o.port+"', timeout=20).read().decode()", "hello a.example.test")
		expect(t, c, "live.settimeout(20)\ntry:\n    live.sendall(b'Host: a\\r\\n\\r\\n'); r = live.recv(100)\nexcept OSError as e:\n    r = repr(e)\nr", "Error")
	}
	expect(t, sb, "live.sendall(b'Host: a\\r\\n\\r\\n'); live.recv(15).decode()", "200 OK")
}

func TestANetworkAfterAttachingAgain(t *testing.T) {
	o := newOutside(t)
	sb, err := sandbox.Open(t.Context(), o.b, sandbox.Spec{
		Persist: true,
		Network: v1.Network{Rules: []v1.NetworkRule{v1.NetworkRule("allow a.example.test:" + o.port)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cell(t, sb, get)
	sb.Detach()
	if sb, err = sandbox.Attach(t.Context(), o.b, sb.ID()); err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	expect(t, sb, "get('a.example.test', "+o.port+")", "hello a.example.test")
	expect(t, sb, "get('b.example.test', "+o.port+")", "eset")
}

func TestPoliciesThatAreRefused(t *testing.T) {
	b := testBackend(t)
	for rule, code := range map[v1.NetworkRule]v1.Code{
		"allow http://x.test": v1.CodeInvalidSpec,
		"allow *":             v1.CodeInvalidSpec,
		"permit x.test":       v1.CodeInvalidSpec,
		"ask x.test":          v1.CodeNotSupported,
	} {
		sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{Network: v1.Network{Rules: []v1.NetworkRule{rule}}})
		if v1.CodeOf(err) != code {
			t.Errorf("%s: %v", rule, err)
		}
		if sb != nil {
			_ = sb.Close()
		}
	}
}

func TestANewPolicyIsInForceAtOnce(t *testing.T) {
	b := testBackend(t)
	b.opts.AsUser = true // redirection is set up while code runs, also without root
	o := outsideOf(t, b)
	sb := o.open(t)
	cell(t, sb, get)
	set := func(generation uint64, rules ...v1.NetworkRule) {
		t.Helper()
		if err := sb.SetNetwork(t.Context(), v1.Network{Rules: rules}, generation); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, sb, "get('a.example.test', "+o.port+")", "not known")
	set(2, v1.NetworkRule("allow a.example.test:"+o.port))
	expect(t, sb, "get('a.example.test', "+o.port+")", "hello a.example.test")
	if err := sb.SetNetwork(t.Context(), v1.Network{}, 2); v1.CodeOf(err) != v1.CodeNetworkChanged {
		t.Errorf("a policy of the same generation: %v", err)
	}
	if err := sb.SetNetwork(t.Context(), v1.Network{Preset: "some"}, 3); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("an unknown preset: %v", err)
	}
	// A snapshot has the policy that the sandbox has now, not that of its spec.
	copies, err := sb.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = copies[0].Close() })
	expect(t, copies[0], "get('a.example.test', "+o.port+")", "hello a.example.test")
	expect(t, copies[0], "get('b.example.test', "+o.port+")", "eset")

	var events []string
	var mu sync.Mutex
	sb.OnNetwork(func(e v1.NetworkEvent) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf("%s %s", e.Kind, e.Host))
	})
	set(3)
	expect(t, sb, "get('a.example.test', "+o.port+")", "not known")
	mu.Lock()
	defer mu.Unlock()
	events = slices.Compact(events) // glibc looks a name up twice
	if want := []string{"lookup a.example.test", "opened a.example.test", "closed a.example.test", "lookup a.example.test"}; !slices.Equal(events, want) {
		t.Errorf("the events are %q", events)
	}
}

// The certificates that the host trusts are added to those of a root file system.
func TestARootFileSystemTrustsTheAuthoritiesOfTheHost(t *testing.T) {
	host, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		testneed.Lacking(t, "the certificates of ca-certificates")
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("of the root")})
	root := bareRoot(t)
	dir := filepath.Join(root, "etc/ssl/certs")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "ca-certificates.crt"), own, 0o644)); err != nil {
		t.Fatal(err)
	}
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{RootFS: root, Network: v1.Network{Preset: v1.NetworkPackages}})
	got, err := sb.Files().ReadAll(t.Context(), guestState+"/"+launch.CertificatesName)
	if err != nil {
		t.Fatal(err)
	}
	for what, part := range map[string][]byte{"own": own, "the host's first": host[:bytes.Index(host, []byte("-----END"))]} {
		if !bytes.Contains(got, part) {
			t.Errorf("the certificate is missing: %s", what)
		}
	}
}
