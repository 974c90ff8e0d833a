package session

import (
	"bufio"
	"fmt"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// echoServer answers each line with the same line.
const echoServer = `
import socketserver, threading
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile: self.wfile.write(line)
server = socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Echo)
threading.Thread(target=server.serve_forever, daemon=True).start()`

// echo sends a line over a connection to echoServer.
func echo(t *testing.T, c sandbox.PortConn, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(c).ReadString('\n'); got != line+"\n" {
		t.Fatalf("%q, %v", got, err)
	}
}

func dialPort(t *testing.T, s *Session, port uint16) sandbox.PortConn {
	t.Helper()
	c, err := s.DialPort(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAConnectionKeepsItsSessionInUse(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, echoServer)
	c := dialPort(t, s, 8000)
	if i := s.Info(); i.State != v1.StateExecuting || i.Running != 1 {
		t.Errorf("%s, %d running", i.State, i.Running)
	}
	testneed.Await(t, "the idle timeout", func() bool { i := s.Info(); return i.IdleAt == nil || time.Since(*i.IdleAt) > time.Second })
	wantCode(t, "hibernation with an open connection", s.Hibernate(t.Context()), v1.CodeBusy)
	echo(t, c, "still here")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	k.awaitState(s, v1.StateHibernated)

	// Listing and waiting do not wake the session, a connection does.
	ports, err := s.Ports(t.Context())
	if err != nil || len(ports) != 1 || ports[0].Port != 8000 {
		t.Errorf("%+v %v", ports, err)
	}
	if _, err := s.WaitPort(t.Context(), 8000, time.Minute); err != nil {
		t.Error(err)
	}
	_, err = s.WaitPort(t.Context(), 9000, time.Millisecond)
	wantCode(t, "a port that is closed", err, v1.CodePortClosed)
	want(t, "state", string(s.Info().State), string(v1.StateHibernated))
	waited := make(chan error, 1)
	go func() {
		_, err := s.WaitPort(t.Context(), 9000, time.Minute)
		waited <- err
	}()
	c = dialPort(t, s, 8000)
	echo(t, c, "awake")
	py(t, s, "import socket; l = socket.create_server(('', 9000))")
	if err := <-waited; err != nil {
		t.Errorf("a wait during which the session woke: %v", err)
	}

	if err := s.End(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives its session")
	}
	c.Reset()
	_, err = s.DialPort(t.Context(), 8000)
	wantCode(t, "a port of an ended session", err, v1.CodeSessionEnded)
}

func TestAWaitForAPortDoesNotKeepASessionAwake(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := s.WaitPort(t.Context(), 8000, time.Minute)
		waited <- err
	}()
	k.awaitState(s, v1.StateHibernated)
	py(t, s, echoServer)
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
