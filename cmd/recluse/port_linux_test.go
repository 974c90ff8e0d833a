package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// upperServer answers with what it has received in upper case, once the other side has ended its data.
const upperServer = `
import socketserver
class Upper(socketserver.StreamRequestHandler):
    def handle(self): self.wfile.write(self.rfile.read().upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Upper).serve_forever()`

// upper sends text to a local port, ends its data and returns the answer.
func upper(port, text string) (string, error) {
	c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Minute)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // the network is tcp
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	got, err := io.ReadAll(c)
	return string(got), err
}

func TestPortsAreForwarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "work")
	cmd := w.command("port", "work", "0:8000")
	out, errs := newHeard(), newHeard()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "→ port 8000 inside\n")
	errs.await(t, "nothing listens on port 8000 inside yet")
	port, _, _ := strings.Cut(strings.TrimPrefix(out.String(), "http://127.0.0.1:"), " ")
	if _, err := upper(port, "x"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port: %v", err)
	}
	works := func() bool { got, err := upper(port, "hello"); return err == nil && got == "HELLO" }
	id := strings.TrimSpace(w.must("exec", "--session", "work", "--background", "--wait-port", "8000", "--", "python3", "-c", upperServer))
	w.await("it is forwarded", works)
	long := strings.Repeat("a", 1<<20)
	if got, err := upper(port, long); got != strings.ToUpper(long) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got := w.must("ps", "work"); !strings.Contains(got, "PORTS") || !strings.Contains(got, " 8000 ") || !strings.Contains(got, id) {
		t.Errorf("ps: %s", got)
	}
	var ops []struct {
		ID    string
		Ports []int
	}
	decodeJSON(t, w.must("ps", "work", "--json"), &ops)
	if len(ops) != 1 || ops[0].ID != id || len(ops[0].Ports) != 1 || ops[0].Ports[0] != 8000 {
		t.Errorf("ps: %+v", ops)
	}
	if got := w.run("", "exec", "--session", "work", "--background", "--wait-port", "8000", "--", "true"); got.status != 125 || !strings.Contains(got.stderr, "already listens on port 8000") {
		t.Errorf("a port that is in use inside: %+v", got)
	}
	if got := w.run("", "port", "work", port+":8000"); got.status != 125 || !strings.Contains(got.stderr, "is in use by another program") || !strings.Contains(got.stderr, "recluse port work 0:8000") {
		t.Errorf("a local port that is in use: %+v", got)
	}

	w.must("session", "hibernate", "work")
	w.await("the session wakes", works)

	if err := syscall.Kill(w.server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.await("it is forwarded after the server was killed", works)

	w.must("kill", "work", id)
	w.await("it is refused again", func() bool { _, err := upper(port, "x"); return errors.Is(err, syscall.ECONNREFUSED) })
	w.must("exec", "--session", "work", "--background", "--wait-port", "8000", "--", "python3", "-c", upperServer)
	w.await("it is forwarded again", works)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := status(t, cmd.Wait()); got != 0 {
		t.Errorf("status %d, %s", got, errs)
	}
}

func TestPortsThatCannotBeForwarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "work")
	for _, c := range []struct {
		args string
		want string
	}{
		{"port work 0", "invalid port"},
		{"port work x", "invalid port"},
		{"port work 70000", "invalid port"},
		{"port work 1:2:3", "invalid port"},
		{"port work 0:8000 --wait 10ms", "nothing listens on port 8000 inside"},
		{"port work 0:8000 --address 203.0.113.1", "cannot use the address"},
		{"port link work 8000", "recluse port SESSION PORT"}, // the server has no address
		{"exec --session work --wait-port 8000 -- true", "--wait-port needs --background"},
		{"exec --session work --background --wait-port 8000 -- sh -c exit\t3", "ended (exit status 3) before a program listened on port 8000"},
	} {
		var args []string
		for _, a := range strings.Fields(strings.ReplaceAll(c.args, "\t", "_")) {
			args = append(args, strings.ReplaceAll(a, "_", " "))
		}
		if got := w.run("", args...); got.status != 125 || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%s: %+v, want %q", c.args, got, c.want)
		}
	}
	if got := w.run("", "port", "nowhere", "8000"); !strings.Contains(got.stderr, "nowhere") || got.status == 0 {
		t.Errorf("a session that does not exist: %+v", got)
	}
}

// A link is for browsers, through a server that listens on an address.
func TestALinkToAPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	serve := w.command("serve", "--listen", addr)
	errs := newHeard()
	serve.Stderr = errs
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serve.Process.Signal(os.Interrupt); _ = serve.Wait() }()
	errs.await(t, "listening on http://"+addr)
	w.must("exec", "--session", "work", "--background", "--wait-port", "8000", "--", "python3", "-m", "http.server", "8000", "--bind", "127.0.0.1")
	link := strings.TrimSpace(w.must("port", "link", "work", "8000", "--expires", "5m"))
	_, port, _ := net.SplitHostPort(addr)
	if n, err := strconv.Atoi(port); err != nil || !strings.HasPrefix(link, fmt.Sprintf("http://8000-work.localhost:%d/?recluse_link=", n)) {
		t.Fatal(link, err)
	}
	at := strings.Replace(link, "8000-work.localhost", "127.0.0.1", 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "8000-work.localhost:" + port
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusSeeOther || len(res.Cookies()) != 1 {
		t.Errorf("%s %v", res.Status, res.Header)
	}
}
