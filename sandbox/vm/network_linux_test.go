package vm

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// here is a resolver whose names all lead to this machine.
type here struct{}

func (here) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func TestTheNetworkIsThatOfThePolicy(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "hello %s, %d bytes", strings.Split(r.Host, ":")[0], n)
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b := testBackend(t, func(o *Options) {
		o.Network = sandbox.NetworkOptions{Resolver: here{}, FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	})
	rules := []v1.NetworkRule{v1.NetworkRule("allow *.example.test:" + port)}
	sb := open(t, b, sandbox.Spec{Network: v1.Network{Rules: rules}})
	cell(t, sb, `
import socket, urllib.request
def get(host, port=`+port+`, data=None):
    try:
        return urllib.request.urlopen(f"http://{host}:{port}/", data, timeout=20).read().decode()
    except OSError as e:
        return repr(e)
def udp(host):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(20)
    try:
        s.connect((host, 443)); s.send(b'x'); s.recv(1)
    except OSError as e:
        return repr(e)
`)
	for code, want := range map[string]string{
		"get('api.example.test', data=b'x' * 300000)": "hello api.example.test, 300000 bytes",
		"get('other.test')":                           "eset",
		"get('api.example.test', 1)":                  "eset",
		"get('93.184.216.34')":                        "eset",
		"get('127.1.2.3')":                            "refused",
		"udp('93.184.216.34')":                        "not permitted",
	} {
		if got := cell(t, sb, code); !strings.Contains(got, want) {
			t.Errorf("%s is %s, want %s", code, got, want)
		}
	}
}
