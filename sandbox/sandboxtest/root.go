package sandboxtest

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// rootSpecs are the two ways to let code become root.
func (s *suite) rootSpecs() map[string]sandbox.Spec {
	user, sudo := s.opts.Spec, s.opts.Spec
	user.User, sudo.Sudo = "root", true
	return map[string]sandbox.Spec{"user": user, "sudo": sudo}
}

// needBecomeRoot skips the test if code cannot become root.
func (s *suite) needBecomeRoot(t *testing.T) {
	t.Helper()
	if !s.caps.Root {
		t.Skip("code cannot become root")
	}
}

// asRoot returns a command of the user root.
func asRoot(script string) sandbox.Command {
	return sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{User: "root"}}
}

// sudoAtTheLimit starts processes up to the limit, and then sends the request that sudo sends. The runtime of sudo itself
// needs threads, whose number differs from run to run.
const sudoAtTheLimit = `python3 -c '
import json, os, socket, struct, time
kids = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        kids.append(pid)
except OSError: pass
c = socket.socket(socket.AF_UNIX)
c.connect("\0recluse-sudo")
request = json.dumps({"argv": ["dHJ1ZQ=="], "user": "root"}).encode()
socket.send_fds(c, [struct.pack("<I", len(request)) + request], [0, 1, 2])
print(c.recv(1000)[4:].decode())
for pid in kids: os.kill(pid, 9)'`

var roots = []feature{
	{"a request to become root is refused where that is impossible", onBackend | overHTTP, func(t *testing.T, s *suite) {
		if s.caps.Root {
			t.Skip("code can become root")
		}
		for name, spec := range s.rootSpecs() {
			_, err := sandbox.Open(t.Context(), s.backend(t), spec)
			if code := v1.CodeOf(err); code != v1.CodeNotSupported && code != v1.CodeConsentMissing {
				t.Errorf("%s: %v", name, err)
			}
		}
	}},
	{"code is root where the spec says so", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needBecomeRoot(t)
		sb := s.open(t, func(x *sandbox.Spec) { x.User = "root" })
		same(t, "user", shell(t, sb, "id -u; id -g; id -G; echo $HOME $USER; mkdir -m 700 /tmp/r && touch /tmp/r/x && stat -c %u:%g /tmp/r/x"), "0\n0\n0\n/root root\n0:0\n")
		same(t, "capabilities", shell(t, sb, "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f 2"),
			"0000000000000000\n00000000000405db\n00000000000405db\n00000000000405db\n0000000000000000\n")
		same(t, "another user's file", shell(t, sb, "echo text > /tmp/f; chown 33:34 /tmp/f; chmod 0 /tmp/f; cat /tmp/f; stat -c %u:%g /tmp/f"), "text\n33:34\n")
		same(t, "as another user", shell(t, sb, "python3 -c 'import os; os.setgroups([]); os.setgid(34); os.setuid(33); print(os.getuid())'"), "33\n")
		if s.caps.WritableRoot {
			same(t, "the system", shell(t, sb, "echo text > /usr/bin/x; cat /usr/bin/x; rm /usr/bin/x"), "text\n")
		}
		noError(t, sb.Files().WriteAll(t.Context(), "/tmp/r/y", []byte("text"), sandbox.WriteOptions{}))
		same(t, "an uploaded file", shell(t, sb, "cat /tmp/r/y; stat -c %u:%g /tmp/r/y"), "text0:0\n")
		v := run(t, sb, sandbox.Command{Shell: "id -u", RunOptions: sandbox.RunOptions{User: "1000"}})
		same(t, "a command of another user", v.Stdout.String(), "1000\n")
		c := sandbox.Command{Shell: "id -u; echo more > $(tty)", PTY: &sandbox.Size{Rows: 24, Cols: 80}}
		same(t, "a terminal", run(t, sb, c).Stdout.String(), "0\r\nmore\r\n")
	}},
	{"a command runs as root where the spec allows it", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needBecomeRoot(t)
		sb := s.open(t, func(x *sandbox.Spec) { x.Sudo = true })
		same(t, "the usual user", shell(t, sb, "id -u; grep CapEff /proc/self/status | cut -f 2"), "1000\n0000000000000000\n")
		same(t, "root", run(t, sb, asRoot("id -u; echo $HOME; mkdir -m 700 /tmp/r; echo text > /tmp/r/x; cat /tmp/r/x")).Stdout.String(), "0\n/root\ntext\n")
		contains(t, "the usual user", shell(t, sb, "cat /tmp/r/x 2>&1; true"), "denied")
		v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "import os; os.getuid()", Context: "root", RunOptions: sandbox.RunOptions{User: "root"}})
		noError(t, err)
		same(t, "a cell", v.Result.Text(), "0")
		_, err = sb.Files().ReadAll(t.Context(), "/tmp/r/x")
		if v1.CodeOf(err) != v1.CodeFilePermission {
			t.Errorf("the files of root: %v", err)
		}
	}},
	{"the limit of processes binds root, whatever its uids", onBackend, func(t *testing.T, s *suite) {
		s.needBecomeRoot(t)
		for name, change := range map[string]func(*sandbox.Spec){
			"user": func(x *sandbox.Spec) { x.User = "root" },
			"sudo": func(x *sandbox.Spec) { x.Sudo = true },
		} {
			sb := s.open(t, change, func(x *sandbox.Spec) { x.Limits.Processes = 40 })
			v := run(t, sb, asRoot(`python3 -c '
import os, time
n = 0
try:
    while n < 1000:
        if os.fork() == 0:
            os.setuid(2000 + n)
            time.sleep(1000)
        n += 1
except OSError as e: print(n)'`))
			if n := strings.TrimSpace(v.Stdout.String()); len(n) != 2 || n < "20" || n > "40" {
				t.Errorf("%s: %s processes, %s", name, n, v)
			}
		}
	}},
	{"sudo runs a program as root in the tree of its command", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needBecomeRoot(t)
		sb := s.open(t, func(x *sandbox.Spec) { x.Sudo = true })
		same(t, "who", shell(t, sb, `id -u; sudo id -u; sudo -u 33 id -u; sudo sudo id -u; sudo X=of-the-call sh -c 'echo $X $HOME $SUDO_UID'; cd /etc; sudo pwd; sudo -i pwd`),
			"1000\n0\n33\n0\nof-the-call /root 1000\n/etc\n/root\n")
		same(t, "streams", shell(t, sb, "echo in | sudo cat; sudo sh -c 'echo err >&2' 2>&1; sudo sh -c 'exit 7'; echo $?; sudo sh -c 'kill -9 $$'; echo $?; sudo no-such-program 2>&1; echo $?"),
			"in\nerr\n7\n137\nsudo: no-such-program: command not found\n1\n")
		same(t, "a signal", shell(t, sb, "sudo sleep 1000 & until pgrep -x sleep; do :; done > /dev/null; sleep 0.1; kill -TERM $!; wait $!; echo $?"), "143\n")
		c := sandbox.Command{Shell: "sudo sleep 1001; true", RunOptions: sandbox.RunOptions{Timeout: 500 * time.Millisecond}}
		same(t, "its end", run(t, sb, c).Ended, v1.EndedTimeout)
		same(t, "what is left", shell(t, sb, "pgrep -fx 'sleep 1001'; true"), "")
		v := run(t, sb, sandbox.Command{Shell: "sudo sleep 1002 & until pgrep -fx 'sleep 1002' > /dev/null; do :; done; sleep 0.1"})
		if v.SurvivorsTotal == 0 {
			t.Errorf("the process of root is no survivor: %s", v)
		}
		few := s.open(t, func(x *sandbox.Spec) { x.Sudo, x.Limits.Processes = true, 40 })
		contains(t, "at the limit of processes", shell(t, few, sudoAtTheLimit), "{\"error\":\"the limit of 40 processes is reached\"}")
		without := s.open(t)
		link := "ln -s $(tr '\\0' '\\n' < /proc/1/cmdline | head -n 1) /tmp/sudo; /tmp/sudo id 2>&1; true"
		contains(t, "without permission", shell(t, without, link), "does not let code become root")
	}},
}
