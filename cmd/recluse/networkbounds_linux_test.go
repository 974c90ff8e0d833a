package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// echoOutside starts an echo server on an address of this machine that is not in 127.0.0.0/8, which inside a sandbox is
// the sandbox itself. It returns address and port.
func echoOutside(t *testing.T) (address, port string) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLoopback() || n.IP.To4() == nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(n.IP.String(), "0"))
		if err != nil {
			continue
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
		return n.IP.String(), strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	testneed.Lacking(t, "the machine has no address but that of the loopback interface")
	return "", ""
}

func TestAPersonApprovesAConnection(t *testing.T) {
	address, port := echoOutside(t)
	w := newWorld(t, "RECLUSE_NETWORK_FLOOR_EXCEPT="+address)
	target := address + ":" + port
	code := fmt.Sprintf("import socket\nc = socket.create_connection((%q, %s), timeout=20); c.sendall(b'hello'); print(c.recv(5).decode())", address, port)
	connect := func() result {
		return w.run("", "exec", "--session", "s", "--ask", target, "--python", code)
	}
	got := connect()
	if got.status == 0 || !strings.Contains(got.stderr, "approval requested") {
		t.Fatalf("%+v", got)
	}
	var questions []gate.Approval
	decodeJSON(t, w.must("gate", "list", "--json"), &questions)
	if len(questions) != 1 || questions[0].Kind != v1.ApprovalConnection || questions[0].Connect.Host != address {
		t.Fatalf("%+v", questions)
	}
	if grant := "recluse gate grant " + questions[0].ID; !strings.Contains(got.stderr, grant) {
		t.Errorf("%q is missing in %s", grant, got.stderr)
	}
	if list := w.must("gate", "list"); !strings.Contains(list, "connect to "+target) || !strings.Contains(list, "rule: ask "+target) {
		t.Errorf("%s", list)
	}
	w.must("gate", "grant", questions[0].ID)
	for range 2 {
		if got := connect(); got.status != 0 || got.stdout != "hello\n" {
			t.Errorf("after the approval: %+v", got)
		}
	}
	if log := w.must("audit", "--action", "approval", "--json"); !strings.Contains(log, "connect to "+target) {
		t.Errorf("%s", log)
	}
	// A maximum of the tenant is stronger, at once.
	w.must("tenant", "set", "default", "--net-max", "deny "+address+":*, all", "--max-connections", "3")
	if got := connect(); got.status == 0 || !strings.Contains(got.stderr, "the maximum of tenant default denies "+target) {
		t.Errorf("beyond the maximum: %+v", got)
	}
	if show := w.must("session", "show", "s"); !strings.Contains(show, "the maximum of tenant default: deny "+address+":*") {
		t.Errorf("%s", show)
	}
	if show := w.must("tenant", "show", "default"); !strings.Contains(show, "deny "+address+":*, then all") || !strings.Contains(show, "max-connections") {
		t.Errorf("%s", show)
	}
	w.must("tenant", "set", "default", "--net-max", "")
	if got := connect(); got.status != 0 {
		t.Errorf("without the maximum: %+v", got)
	}
	if usage := w.must("usage"); !strings.Contains(usage, "network_bytes") {
		t.Errorf("%s", usage)
	}
	if got := w.run("", "exec", "--ask", target, "--", "true"); got.status == 0 || !strings.Contains(got.stderr, "only a session can do") {
		t.Errorf("without a session: %+v", got)
	}
	if got := w.run("", "tenant", "set", "default", "--net-max", "allow http://x"); got.status == 0 || !strings.Contains(got.stderr, "is a URL") {
		t.Errorf("an invalid policy: %+v", got)
	}
}

// A run's sandbox has the policy of --net and --allow, within the maximum of its tenant. Its prompt says so, and sandboxes
// of child runs inherit it.
func TestARunHasTheNetworkThatItsUserAllows(t *testing.T) {
	address, port := echoOutside(t)
	target := address + ":" + port
	dir := t.TempDir()
	code := fmt.Sprintf(`
      import socket
      try:
          c = socket.create_connection((%q, %s), timeout=20); c.sendall(b'hello'); r = c.recv(5).decode() or "closed"
      except OSError as e:
          r = "denied"`, address, port)
	script := strings.NewReplacer("¬", "```", "CODE", code).Replace(`
name: root
rules:
  - tags: {depth: "1"}
    reply: |
      ¬repl
CODE
      FINAL(r)
      ¬
  - reply: |
      ¬repl
CODE
      FINAL(r + " " + rlm_query("child", context="text " * 100000))
      ¬
`)
	file := filepath.Join(dir, "root.yaml")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "RECLUSE_NETWORK_FLOOR_EXCEPT="+address, "RECLUSE_MODELS_SCRIPTS="+file, "RECLUSE_MODELS_DEFAULT=scripted/root")
	ask := func(args ...string) string {
		t.Helper()
		return w.must(append([]string{"ask", "parent", "--plain-below", "0", "--depth", "2", "-q"}, args...)...)
	}
	if got := ask("--allow", target); got != "hello hello\n" {
		t.Errorf("with a policy: %q", got)
	}
	var runs []v1.Run
	decodeJSON(t, w.must("runs", "list", "--json"), &runs)
	if len(runs) != 1 || !strings.Contains(w.must("runs", "show", runs[0].ID, "--json", "--events"), `"network":true`) {
		t.Errorf("the run does not know that it has a network: %+v", runs)
	}
	if got := ask(); got != "denied denied\n" {
		t.Errorf("without a policy: %q", got)
	}
	w.must("tenant", "set", "default", "--net-max", "deny "+address+":*, all")
	if got := ask("--allow", target); got != "denied denied\n" {
		t.Errorf("beyond the maximum: %q", got)
	}
}
