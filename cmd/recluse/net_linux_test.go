package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/testneed"
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

	w.must("exec", "--session", "work", "--python", `socket.getaddrinfo("other.example", 80)`)
	w.await("the denied name is in the log", func() bool {
		return strings.Contains(w.must("net", "log", "work"), "lookup other.example")
	})
	if got := w.must("net", "log", "work"); strings.Count(got, "lookup other.example") != 1 || strings.Contains(got, " times") {
		t.Errorf("one question for both kinds of addresses: %s", got)
	}

	follower := w.command("net", "log", "work", "--follow")
	out := newHeard()
	var errs bytes.Buffer
	follower.Stdout, follower.Stderr = out, &errs
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "opened "+at)
	w.expect("deny "+host+"\nallow "+at+"\npreset none\ngeneration 3\n", "net", "set", "work", "--add", "--deny", host)
	if got := get(); !strings.Contains(got, "reset") {
		t.Errorf("a page that is no longer allowed: %s", got)
	}
	out.await(t, "denied "+at)
	if err := follower.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := status(t, follower.Wait()); got != 130 || errs.Len() > 0 {
		t.Errorf("net log --follow after Ctrl-C: status %d, %q", got, errs.String())
	}

	for what, c := range map[string]struct {
		args   []string
		status int
		text   string
	}{
		"an earlier generation": {[]string{"net", "set", "work", "--net", "none", "--generation", "2"}, statusFailure, string(v1.CodeNetworkChanged)},
		"another policy":        {[]string{"exec", "--session", "work", "--net", "packages", "--", "true"}, statusFailure, "recluse net set work"},
		"a denied destination":  {[]string{"net", "check", "--session", "work", "http://" + at + "/x"}, 1, `by \"deny ` + host + `\"`},
		"no session":            {[]string{"net", "show", "nowhere"}, statusMissing, string(v1.CodeSessionNotFound)},
		"metadata":              {[]string{"net", "check", "--session", "work", "http://169.254.169.254/x"}, 1, "network.floor_except"},
		"a public destination":  {[]string{"net", "check", "--net", "public", "example.com"}, 0, `"allow"`},
	} {
		if got := w.run("", append([]string{"--json"}, c.args...)...); got.status != c.status || !strings.Contains(got.stdout+got.stderr, c.text) {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

func TestANameWithoutAnAddressIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_NETWORK_MAX=all")
	got := w.run("", "exec", "--allow", "none.invalid", "--python", "import socket; socket.gethostbyname('none.invalid')")
	if got.status != 1 || !strings.Contains(got.stderr, "recluse: network: none.invalid is allowed, but this host ") {
		t.Errorf("%+v", got)
	}
}

// counting counts the bytes that it writes.
type counting struct {
	w io.Writer
	n *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// talkOnAndOn sends random bytes to a server that sends them back, until /tmp/stop exists.
const talkOnAndOn = `
import hashlib, os, random, socket, threading, time
live, sums = socket.create_connection((host, port), 20), [hashlib.sha256(), hashlib.sha256()]
live.settimeout(None)
def send():
    while not os.path.exists('/tmp/stop'):
        b = random.randbytes(1 << 16); sums[0].update(b); live.sendall(b); time.sleep(0.001)
    live.shutdown(socket.SHUT_WR)
def receive():
    while b := live.recv(1 << 16): sums[1].update(b)
threads = [threading.Thread(target=f) for f in (send, receive)]
for t in threads: t.start()
`

// While the server is stopped, nothing passes, and a new policy waits. Then everything continues and no byte is lost.
func TestNetworkWhileTheServerIsStopped(t *testing.T) {
	testneed.All(t, "the kernel stops the server, so that little of ours is involved")
	t.Parallel()
	host, port, addresses := greet(t)
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var passed atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(counting{c, &passed}, c)
			}()
		}
	}()
	_, echo, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "RECLUSE_NETWORK_FLOOR_EXCEPT="+addresses, "RECLUSE_NETWORK_MAX=all")
	w.must("session", "open", "work", "--allow", host+":"+echo)
	w.must("exec", "--session", "work", "--python", fmt.Sprintf("host, port = %q, %s\n", host, echo)+talkOnAndOn)
	more := func() {
		t.Helper()
		from := passed.Load()
		w.await("bytes pass", func() bool { return passed.Load() > from+1<<20 })
	}
	more()

	server := w.server()
	c, err := client.New(client.Options{Socket: server.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w.stop(server.PID)
	defer func() { _ = syscall.Kill(server.PID, syscall.SIGCONT) }()
	set := make(chan error, 1)
	go func() {
		rules := []v1.NetworkRule{v1.NetworkRule("allow " + host + ":" + echo), v1.NetworkRule("allow " + host + ":" + port)}
		n, err := c.Session("work").SetNetwork(t.Context(), v1.SessionNetwork{Network: v1.Network{Rules: rules}})
		if err == nil && n.Generation != 2 {
			err = fmt.Errorf("the generation is %d", n.Generation)
		}
		set <- err
	}()
	last := int64(-1)
	w.await("nothing passes", func() bool {
		now := passed.Load()
		same := now == last
		last = now
		return same
	})
	select {
	case err := <-set:
		t.Fatalf("a stopped server has set a policy: %v", err)
	default:
	}
	if err := syscall.Kill(server.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-set; err != nil {
		t.Error(err)
	}
	more()
	w.expect("True hello\n", "exec", "--session", "work", "--python", `
open('/tmp/stop', 'w').close()
for t in threads: t.join()
import urllib.request
print(sums[0].digest() == sums[1].digest(), urllib.request.urlopen("http://`+host+`:`+port+`", timeout=20).read().decode())`)
	if now := w.server(); now.PID != server.PID {
		t.Error("another server was started")
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
