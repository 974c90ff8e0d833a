package session

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// here is a resolver whose names all lead to this machine.
type here struct{}

func (here) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// greet starts a web server whose page is "hello", and returns its port.
func greet(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// getPage is a function get(at) for cells, which returns a page or the name of the error.
const getPage = `
import urllib.request, urllib.error, socket
def get(at):
    try:
        return urllib.request.urlopen(f"http://{at}/", timeout=20).read().decode()
    except urllib.error.URLError as e:
        return type(e.reason).__name__
    except OSError as e:
        return type(e).__name__
def waits(c):
    try:
        return c.recv(1)
    except OSError as e:
        return type(e).__name__
`

// page returns what getPage's get returns.
func page(t *testing.T, s *Session, at string) string {
	t.Helper()
	return strings.Trim(py(t, s, "get('"+at+"')"), "'")
}

func setNetwork(t *testing.T, s *Session, rules ...v1.NetworkRule) v1.SessionNetwork {
	t.Helper()
	n, err := s.SetNetwork(t.Context(), v1.SessionNetwork{Network: v1.Network{Rules: rules}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func networkBench(t *testing.T) *bench {
	t.Helper()
	k := newBench(t, quick())
	if k.b.Capabilities(t.Context()).Egress != sandbox.EgressAllPorts {
		t.Skip("the backend does not filter connections")
	}
	return k
}

// networkEvents returns the network log without the times.
func networkEvents(t *testing.T, s *Session) (out []string) {
	t.Helper()
	for e, err := range s.NetworkLog(t.Context(), v1.NetworkLogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %s %s %d", e.Kind, e.Action, e.Host, e.Generation))
	}
	return out
}

func TestAFloodOfFailedLookupsMakesFewEntries(t *testing.T) {
	s := networkBench(t).open("work")
	const most = 10
	for range 100 * most {
		s.observeNetwork(v1.NetworkEvent{Time: time.Now(), Kind: v1.NetworkEventFailed, Action: v1.NetworkAllow, Host: "a.test", Count: 1})
	}
	if list := networkEvents(t, s); len(list) == 0 || len(list) > most {
		t.Errorf("%d entries", len(list))
	}
}

func TestANetworkPolicyChangesWhileTheSessionLives(t *testing.T) {
	k := networkBench(t)
	port := greet(t)
	s := k.open("work")
	py(t, s, getPage)
	retries := func() string {
		v, err := s.Run(t.Context(), sandbox.Command{Shell: "echo ${PIP_RETRIES-unset} ${SSL_CERT_FILE:+trusts}"})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(v.Stdout.Head))
	}
	want(t, "without a policy", page(t, s, "a.test:"+port), "gaierror")
	want(t, "the environment without a policy", retries(), "0")

	n := setNetwork(t, s, v1.NetworkRule("allow a.test:"+port))
	if n.Generation != 2 || n.Preset != v1.NetworkNone || len(n.Rules) != 1 {
		t.Errorf("the new policy is %+v", n)
	}
	want(t, "an allowed name", page(t, s, "a.test:"+port), "hello")
	want(t, "the environment with a policy", retries(), "unset trusts")
	py(t, s, "live = socket.create_connection(('a.test', "+port+"), 20); live.sendall(b'GET / HTTP/1.1\\r\\nHost: a.test:"+port+"\\r\\n\\r\\n')")
	want(t, "an open connection", py(t, s, "waits(live)"), "b'H'")
	py(t, s, "live.setblocking(True); live.settimeout(20); _ = live.recv(1000)")

	setNetwork(t, s, v1.NetworkRule("allow b.test:"+port))
	want(t, "the open connection when it is no longer allowed", py(t, s, "waits(live)"), "'ConnectionResetError'")
	want(t, "a name that is no longer allowed", page(t, s, "a.test:"+port), "ConnectionResetError")
	want(t, "a name that is allowed now", page(t, s, "b.test:"+port), "hello")

	old := v1.SessionNetwork{Network: v1.Network{Preset: v1.NetworkPublic}, Generation: 2}
	_, err := s.SetNetwork(t.Context(), old)
	wantCode(t, "a policy for an earlier generation", err, v1.CodeNetworkChanged)
	_, err = s.SetNetwork(t.Context(), v1.SessionNetwork{Network: v1.Network{Rules: []v1.NetworkRule{"allow http://x"}}})
	wantCode(t, "an invalid rule", err, v1.CodeInvalidSpec)
	d, err := s.CheckNetwork(t.Context(), "http://b.test:"+port+"/x")
	if err != nil || d.Action != v1.NetworkAllow || d.Generation != 3 {
		t.Errorf("the decision is %+v, %v", d, err)
	}
	d, err = s.CheckNetwork(t.Context(), "a.test")
	if err != nil || d.Action != v1.NetworkDeny || d.Remedy != "to allow it: --allow a.test" {
		t.Errorf("the decision is %+v, %v", d, err)
	}

	present, err := s.Network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if present, err = s.SetNetwork(t.Context(), present); err != nil || present.Generation != 4 {
		t.Errorf("the present policy, set again: %+v, %v", present, err)
	}
	setNetwork(t, s)
	want(t, "a name when nothing is allowed", page(t, s, "b.test:"+port), "gaierror")
	want(t, "the environment when nothing is allowed", retries(), "0")

	log := networkEvents(t, s)
	for _, entry := range []string{
		"lookup deny a.test 1", "opened allow a.test 2", "closed deny a.test 2", "denied deny a.test 3", "opened allow b.test 3",
		"closed allow b.test 3", "lookup deny b.test 5",
	} {
		if !slices.Contains(log, entry) {
			t.Errorf("the log lacks %q: %q", entry, log)
		}
	}
	var audited []string
	for e, err := range k.m.Audit(t.Context(), AuditOptions{Session: "work"}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(e.Action, actionNetwork) {
			audited = append(audited, e.Action+" "+e.Detail+" "+e.Error)
		}
	}
	for _, entry := range []string{
		"network.set allow a.test:" + port + ", then none ", "network.set public network_changed",
		"network.allow a.test:" + port + ` by "allow a.test:` + port + `" `, `network.deny a.test by "preset none" `,
	} {
		if !slices.Contains(audited, entry) {
			t.Errorf("the audit log lacks %q: %q", entry, audited)
		}
	}
	if st := k.m.NetworkStats(); st.Allowed < 3 || st.Denied < 1 || st.Lookups < 2 || st.Received == 0 {
		t.Errorf("the counters are %+v", st)
	}
	kinds := map[string]int{}
	for e, err := range s.Events(t.Context(), EventsOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds[e.Kind]++
	}
	if kinds["network"] != 4 || kinds["denied"] == 0 {
		t.Errorf("the events are %v", kinds)
	}
}

func TestThePolicyOfASessionIsNotThatOfItsSnapshots(t *testing.T) {
	k := networkBench(t)
	port := greet(t)
	s := k.open("work")
	py(t, s, getPage)
	a, b, c := v1.NetworkRule("allow a.test:"+port), v1.NetworkRule("allow b.test:"+port), v1.NetworkRule("allow c.test:"+port)
	reaches := func(s *Session, allowed string) {
		t.Helper()
		for _, name := range []string{"a", "b", "c"} {
			result := "ConnectionResetError"
			if name == allowed {
				result = "hello"
			}
			want(t, s.Key().Name+" from "+name, page(t, s, name+".test:"+port), result)
		}
	}
	setNetwork(t, s, a)
	save(t, s, "one")
	setNetwork(t, s, b)
	if err := s.Restore(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	reaches(s, "b")
	forks, err := s.Fork(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	reaches(forks[0], "b")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d, err := s.CheckNetwork(t.Context(), "b.test:"+port); err != nil || d.Action != v1.NetworkAllow {
		t.Errorf("the decision of a hibernated session is %+v, %v", d, err)
	}
	if n := setNetwork(t, s, c); n.Generation != 4 || s.Info().State != v1.StateHibernated {
		t.Errorf("the policy of a hibernated session is %+v, and it is %s", n, s.Info().State)
	}
	reaches(s, "c")
	k.restart()
	s = k.get("work")
	reaches(s, "c")

	from := func(name string, n v1.Network) *Session {
		t.Helper()
		o := OpenOptions{Settings: Settings{From: "work@one", Spec: &sandbox.Spec{Network: n}}}
		s, _, err := k.m.Open(t.Context(), Key{Name: name}, o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	reaches(from("its-own", v1.Network{}), "a")
	reaches(from("given", v1.Network{Rules: []v1.NetworkRule{c}}), "c")

	open := func(n v1.Network) error {
		_, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Network: n}}})
		return err
	}
	err = open(v1.Network{Preset: v1.NetworkPackages})
	wantCode(t, "a session with another policy", err, v1.CodeSpecConflict)
	if err != nil && !strings.Contains(err.Error(), "recluse net set work") {
		t.Errorf("%v does not say how to change it", err)
	}
	wantCode(t, "a session without a policy", open(v1.Network{Preset: v1.NetworkNone}), v1.CodeSpecConflict)
	wantCode(t, "the same policy", open(v1.Network{Rules: []v1.NetworkRule{c}}), "")
	wantCode(t, "a spec without a policy", open(v1.Network{}), "")
}

// Code that looks up one name after another cannot fill the audit log.
func TestAFloodOfLookupsIsSummedUp(t *testing.T) {
	k := networkBench(t)
	s := k.open("work")
	began := time.Now()
	py(t, s, `
import socket
for n in range(500):
    try:
        socket.getaddrinfo(f"{n}.test", 443, socket.AF_INET)
    except OSError:
        pass`)
	if st := k.m.NetworkStats(); st.Lookups < 500 {
		t.Errorf("%d look-ups were counted", st.Lookups)
	}
	s.network.flush() // otherwise at the end of a minute
	entries, last := 0, ""
	for e, err := range k.m.Audit(t.Context(), AuditOptions{Session: "work", Action: "network.deny"}) {
		if err != nil {
			t.Fatal(err)
		}
		entries++
		last = e.Detail
	}
	if entries < auditDestinations || entries > 2*auditDestinations+1 || !strings.Contains(last, "several destinations, ") {
		t.Errorf("%d entries in the audit log, the last of which is %q", entries, last)
	}
	// A window has an entry for each destination, one for the others, and at its end as many again.
	windows := int(time.Since(began)/logWindow) + 1
	if n := len(networkEvents(t, s)); n > windows*2*(logDestinations+1) {
		t.Errorf("%d entries in the network log in %d windows", n, windows)
	}
}
