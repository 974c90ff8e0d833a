package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// greet starts a web server whose page is "hello". It returns its name and port, and the addresses of the name.
func greet(t *testing.T) (host, port, addresses string) {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	list, err := net.LookupHost(host)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return host, port, strings.Join(list, ",")
}

func TestNetworkOfASession(t *testing.T) {
	t.Parallel()
	host, port, addresses := greet(t)
	w := newWorld(t, "RECLUSE_NETWORK_FLOOR_EXCEPT="+addresses, "RECLUSE_NETWORK_MAX=all")
	at := host + ":" + port
	get := func() string {
		t.Helper()
		return strings.TrimSpace(w.must("exec", "--session", "work", "--python", `
import urllib.request
try: r = urllib.request.urlopen("http://`+at+`", timeout=20).read().decode()
except OSError as e: r = str(e)
print(r)`))
	}
	w.must("session", "open", "work")
	if got := get(); !strings.Contains(got, "not known") {
		t.Errorf("without a policy: %s", got)
	}
	w.expect("preset none\ngeneration 1\n", "net", "show", "work")
	w.expect("allow "+at+"\npreset none\ngeneration 2\n", "net", "set", "work", "--allow", at)
	if got := get(); got != "hello" {
		t.Errorf("an allowed page: %s", got)
	}
	w.must("exec", "--session", "work", "--python", `
import socket
live = socket.create_connection(("`+host+`", `+port+`), 20)
live.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"); assert live.recv(4000).startswith(b"HTTP/1.1 200")`)

	if err := syscall.Kill(w.server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := get(); got != "hello" {
		t.Errorf("the page after the server was killed: %s", got)
	}
	const end = "try: r = repr(live.recv(10))\nexcept OSError as e: r = type(e).__name__\nprint(r)"
	w.expect("ConnectionResetError\n", "exec", "--session", "work", "--python", end)

	follower := w.command("net", "log", "work", "--follow")
	out := newHeard()
	follower.Stdout = out
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "opened "+at)
	w.expect("deny "+host+"\nallow "+at+"\npreset none\ngeneration 3\n", "net", "set", "work", "--add", "--deny", host)
	if got := get(); !strings.Contains(got, "reset") {
		t.Errorf("a page that is no longer allowed: %s", got)
	}
	out.await(t, "denied "+at)
	if err := follower.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = follower.Wait() // ended by the signal

	for what, c := range map[string]struct {
		args   []string
		status int
		text   string
	}{
		"an earlier generation": {[]string{"net", "set", "work", "--net", "none", "--generation", "2"}, statusFailure, string(v1.CodeNetworkChanged)},
		"another policy":        {[]string{"exec", "--session", "work", "--net", "packages", "--", "true"}, statusFailure, "recluse net set work"},
		"a denied destination":  {[]string{"net", "check", "--session", "work", "http://" + at + "/x"}, 1, `by \"deny ` + host + `\"`},
		"no session":            {[]string{"net", "show", "nowhere"}, statusMissing, string(v1.CodeSessionNotFound)},
		"a public destination":  {[]string{"net", "check", "--net", "public", "example.com"}, 0, `"allow"`},
	} {
		if got := w.run("", append([]string{"--json"}, c.args...)...); got.status != c.status || !strings.Contains(got.stdout+got.stderr, c.text) {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// An operator who excepts an address of this host does not open the API on it.
func TestNoPolicyOpensOurOwnListener(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_NETWORK_FLOOR_EXCEPT=127.0.0.0/8", "RECLUSE_NETWORK_MAX=all")
	_, errs := w.serveByHand("--listen", "127.0.0.1:0")
	_, own, found := strings.Cut(errs.String(), "listening on http://")
	if own, _, _ = strings.Cut(own, "\n"); !found {
		t.Fatalf("no address: %s", errs)
	}
	w.must("session", "open", "work", "--allow", "127.0.0.1:*")
	w.must("exec", "--session", "work", "--", "true") // a sandbox is attached
	if got := w.run("", "net", "check", "--session", "work", own); got.status != 1 || !strings.Contains(got.stdout, "deny") {
		t.Errorf("our own listener: %+v", got)
	}
	w.must("net", "check", "--session", "work", "127.0.0.1:9")
}
