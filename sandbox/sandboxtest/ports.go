package sandboxtest

import (
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// portServer listens on a port that the kernel chooses, and answers each connection with the number of bytes received
// when the other side has ended its data.
const portServer = `
import socket, sys, threading
def serve(l):
    while True:
        c, _ = l.accept()
        threading.Thread(target=answer, args=(c,), daemon=True).start()
def answer(c):
    n = 0
    while got := c.recv(65536):
        n += len(got)
    c.sendall(b"%d bytes" % n)
    c.close()
`

var ports = []feature{
	{"ports inside are listed, awaited and connected to", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, portServer+"l = socket.create_server(('127.0.0.1', 0), backlog=64)")
		number, err := strconv.Atoi(okCell(t, sb, "l.getsockname()[1]").Result.Text())
		noError(t, err)
		port := uint16(number)
		okCell(t, sb, "threading.Thread(target=serve, args=(l,), daemon=True).start()")
		list, err := sb.Ports(t.Context())
		noError(t, err)
		found := sandbox.Port{}
		for _, p := range list {
			if p.Port == number {
				found = p
			}
		}
		if found.Address != "127.0.0.1" || found.PID == 0 || found.Command == "" {
			t.Errorf("port %d is listed as %+v, in %+v", port, found, list)
		}
		for range 3 {
			c, err := sb.DialPort(t.Context(), port)
			noError(t, err)
			_, err = c.Write(make([]byte, 1<<20))
			noError(t, err)
			noError(t, c.CloseWrite())
			got, err := io.ReadAll(c)
			noError(t, err)
			same(t, "the answer", string(got), "1048576 bytes")
			noError(t, c.Close())
		}

		okCell(t, sb, "l2 = socket.socket(); l2.bind(('0.0.0.0', 0))")
		next, err := strconv.Atoi(okCell(t, sb, "l2.getsockname()[1]").Result.Text())
		noError(t, err)
		_, err = sb.DialPort(t.Context(), uint16(next))
		fails(t, "a port on which nothing listens", err, v1.CodePortClosed)
		_, err = sb.WaitPort(t.Context(), uint16(next), 50*time.Millisecond)
		fails(t, "a wait that ends", err, v1.CodePortClosed)
		waited := make(chan sandbox.Port, 1)
		go func() {
			p, err := sb.WaitPort(t.Context(), uint16(next), maxWait)
			if err != nil {
				t.Error(err)
			}
			waited <- p
		}()
		okCell(t, sb, "l2.listen()")
		same(t, "the awaited port", await(t, "the port", waited).Port, next)
	}},
	{"a port shows the command that listens on it, also on ::1", onBackend, func(t *testing.T, s *suite) {
		s.needPython(t)
		sb := s.open(t)
		var out recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{
			Args: []string{"server.py"},
			Python: portServer + `
try:
    l = socket.create_server(("::1", 0), family=socket.AF_INET6)
except OSError:
    l = socket.create_server(("127.0.0.1", 0))
print("port", l.getsockname()[1], ".", flush=True)
serve(l)`,
			RunOptions: sandbox.RunOptions{ID: "server", Stdout: &out, Timeout: v1.NoLimit},
		})
		out.await(t, " .")
		number, err := strconv.Atoi(strings.Fields(out.String())[1])
		noError(t, err)
		p, err := sb.WaitPort(t.Context(), uint16(number), maxWait)
		noError(t, err)
		same(t, "its operation", p.Operation, "server")
		c, err := sb.DialPort(t.Context(), uint16(number))
		noError(t, err)
		noError(t, c.CloseWrite())
		got, err := io.ReadAll(c)
		noError(t, err)
		same(t, "the answer", string(got), "0 bytes")
		noError(t, c.Close())
		noError(t, sb.Cancel(t.Context(), "server"))
		await(t, "its end", done)
	}},
}
