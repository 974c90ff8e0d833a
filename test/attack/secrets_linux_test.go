package attack

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// TestHostEnvironmentStaysOutside searches for a secret of the environment of this process everywhere inside.
func TestHostEnvironmentStaysOutside(t *testing.T) {
	for name, sb := range map[string]*sandbox.Sandbox{"template": shared(t), "cold": fresh(t, func() sandbox.Spec { s := small(); s.Cold = true; return s }())} {
		t.Run(name, func(t *testing.T) {
			out := sh(t, sb, `env; cat /proc/*/environ | tr '\0' '\n'; cat /proc/*/cmdline | tr '\0' ' '; set; cat ~/.*history /etc/environment; true`)
			out += py(t, sb, "import os\nprint(dict(os.environ))\nprint(open('/proc/self/environ').read())")
			lacks(t, out, hostSecret, hostSecretEnv, "RECLUSE_ENGINE", "RECLUSE_GUEST", "SSH_AUTH_SOCK")
			// The memory of the interpreter also came through the template.
			out = py(t, sb, `
needle = 'secret'[::-1][::-1].encode() and ('host-' + 'secret-').encode()
hits = 0
for line in open('/proc/self/maps'):
    r, perm = line.split()[:2]
    if 'r' not in perm or 'vvar' in line or 'vsyscall' in line: continue
    a, b = (int(x, 16) for x in r.split('-'))
    if b - a > 64 << 20: continue
    try:
        with open('/proc/self/mem', 'rb', 0) as m: m.seek(a); data = m.read(b - a)
    except (OSError, ValueError): continue
    i = data.find(needle)
    while i >= 0:
        if data[i+12:i+16].isdigit(): hits += 1
        i = data.find(needle, i + 1)
print('hits', hits)`)
			contains(t, out, "hits 0")
		})
	}
}

func TestTokenIsUnreadable(t *testing.T) { tokenIsUnreadable(t, shared(t)) }

// tokenIsUnreadable searches inside for the token that opens the guest, which it takes from the host's record.
func tokenIsUnreadable(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	token := tokenOf(t, sb)
	if len(token) < 32 {
		t.Fatalf("the record has no token: %q", token)
	}
	out := sh(t, sb, `cat /proc/*/environ /proc/*/task/*/environ /proc/*/cmdline /proc/1/status /run/recluse/* /.recluse/config* /.recluse/run/* /proc/1/auxv 2>/dev/null | tr '\0' '\n' | head -c 900000; grep -rla `+token[:8]+` /run /tmp /home /etc /var /dev/shm /.recluse 2>/dev/null`)
	lacks(t, out, token, token[:16], "token")
}

// tokenOf reads the token from the record: a file that only this user may read, or the data of the Docker engine.
func tokenOf(t *testing.T, sb *sandbox.Sandbox) string {
	t.Helper()
	if dockertest.Chosen() {
		return containerToken(t, sb)
	}
	dir := filepath.Join(dataDir, backend.Name(), "sandboxes", sb.ID())
	raw, err := os.ReadFile(filepath.Join(dir, "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ Token string }
	if err := json.Unmarshal(raw, &record); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("other users of the host may read the sandbox's directory: %v, %v", info, err)
	}
	return record.Token
}

// TestSpecEnvironmentIsPrivate checks that the environment of one sandbox is in no other sandbox of the same template,
// nor in the template.
func TestSpecEnvironmentIsPrivate(t *testing.T) {
	testneed.Parallel(t)
	spec := small()
	spec.Env = map[string]string{"API_KEY": "spec-secret-42"}
	a := fresh(t, spec)
	contains(t, sh(t, a, "echo $API_KEY"), "spec-secret-42")
	b := fresh(t, small())
	lacks(t, sh(t, b, "env; cat /proc/*/environ"), "spec-secret-42", "API_KEY")
	lacks(t, py(t, b, "import os\nprint(dict(os.environ))"), "spec-secret-42", "API_KEY")
}

// TestResidue checks that a sandbox from the same template or pool as an ended one contains nothing of it.
func TestResidue(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	p := pool.New(backend, pool.Options{Min: 1, Target: 2, Max: 2})
	t.Cleanup(p.Close)
	for name, get := range map[string]func(t *testing.T) (*sandbox.Sandbox, error){
		"of a template": func(t *testing.T) (*sandbox.Sandbox, error) { t.Helper(); return open(t, small()) },
		"of a pool": func(t *testing.T) (*sandbox.Sandbox, error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), openWait)
			defer cancel()
			if err := p.Warm(ctx, small()); err != nil {
				return nil, err
			}
			return p.Get(ctx, small())
		},
	} {
		t.Run(name, func(t *testing.T) {
			used := map[string]bool{}
			for range 4 { // more than a pool holds at once
				sb, err := get(t)
				if err != nil {
					t.Fatal(err)
				}
				if used[sb.ID()] {
					t.Errorf("the pool returned %s twice", sb.ID())
				}
				used[sb.ID()] = true
				noResidue(t, sb)
				leaveResidue(t, sb)
				if err := sb.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if st := p.Stats(); st.Hits == 0 {
		t.Errorf("none came from the pool: %+v", st)
	}
}

func leaveResidue(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	py(t, sb, "left = 'residue-77'\nimport os\nos.environ['LEFT'] = 'residue-77'")
	sh(t, sb, `for d in ~ /tmp /var/tmp /dev/shm; do echo residue-77 > $d/residue-77; done; echo 'echo residue-77' >> ~/.bashrc; (setsid sleep 7777 &) ; echo residue-77`)
}

func noResidue(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	out := sh(t, sb, `ls -la ~ /tmp /var/tmp /dev/shm /run/recluse; cat ~/.bashrc; env; cat /proc/*/cmdline | tr '\0' ' '`)
	out += py(t, sb, "import os\nprint(sorted(globals()), dict(os.environ))")
	lacks(t, out, "residue-77", "sleep 7777", "'left'")
	ops, err := sb.Operations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range ops {
		if strings.Contains(o.Command, "residue") {
			t.Errorf("it has the operation %q of an earlier sandbox", o.Command)
		}
	}
}

// TestNoCoreDumps checks that a crash leaves no memory on disk.
func TestNoCoreDumps(t *testing.T) {
	sb := shared(t)
	out := sh(t, sb, `cd /tmp; ulimit -c unlimited; ulimit -c; python3 -c 'import os; os.abort()'; ls -la /tmp; find / \( -path /proc -o -path /usr -o -path /etc \) -prune -o -name 'core*' -type f -print 2>/dev/null`)
	lacks(t, out, "core.", " core\n")
}

// family is a sandbox and two forks of it.
func family(t *testing.T, sb *sandbox.Sandbox) []*sandbox.Sandbox {
	t.Helper()
	copies, err := sb.Fork(t.Context(), 2)
	for _, c := range copies {
		t.Cleanup(func() { _ = c.Close() })
	}
	if err != nil {
		t.Fatal(err)
	}
	return append([]*sandbox.Sandbox{sb}, copies...)
}

func TestForks(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	py(t, sb, `
import random, uuid, secrets, os, time, socket, ssl, tempfile
try: import numpy.random
except ImportError: numpy = None
random.seed(1)
random.random(); r = random.SystemRandom()
rng = numpy.random.default_rng() if numpy else None
def draw():
    out = [random.random(), random.getrandbits(64), uuid.uuid4().hex, secrets.token_hex(8), os.urandom(8).hex(), r.random(), ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names())]
    if numpy: out += [float(numpy.random.rand())]
    return out`)
	began := time.Now()
	all := family(t, sb)
	seen := map[string]int{}
	names := map[string]bool{}
	for i, c := range all {
		out := strings.Fields(py(t, c, "print(*draw(), sep='\\n')"))
		t.Logf("copy %d: %v", i, out)
		for j, v := range out {
			if k, ok := seen[v]; ok {
				t.Errorf("copies %d and %d drew the same number %d: %s", k, i, j, v)
			}
			seen[v] = i
		}
		// Random numbers of the shell and of a new interpreter, the clock, the hostname.
		for _, script := range []string{"bash -c 'echo $RANDOM$RANDOM$RANDOM'", "python3 -c 'import random; print(random.random())'", "cat /proc/sys/kernel/random/uuid", "mktemp -u XXXXXXXXXX"} {
			v := strings.TrimSpace(sh(t, c, script))
			if _, ok := seen[v]; ok {
				t.Errorf("%s gave %q twice", script, v)
			}
			seen[v] = i
		}
		var now float64
		if err := json.Unmarshal([]byte(py(t, c, "print(time.time())")), &now); err != nil {
			t.Fatal(err)
		}
		if off := time.Since(time.UnixMilli(int64(now * 1000))); off < -2*time.Second || off > 5*time.Second {
			t.Errorf("copy %d: the clock is wrong by %s", i, off)
		}
		name := strings.TrimSpace(sh(t, c, "hostname"))
		if names[name] || name == "" {
			t.Errorf("copy %d has the hostname %q of another copy", i, name)
		}
		names[name] = true
		if c.ID() == sb.ID() && i > 0 {
			t.Error("a copy has its parent's id")
		}
	}
	t.Log("forked and checked in ", time.Since(began))
	// A copy is a separate machine: changes in it do not affect its parent.
	py(t, all[1], "rng2 = 'changed'")
	sh(t, all[1], "echo x > /tmp/only-here")
	lacks(t, sh(t, sb, "ls /tmp")+py(t, sb, "print(sorted(globals()))"), "only-here", "rng2")
}

// TestForksInheritNoTies checks that a copy has the variables and everything else of its parent, but none of its
// connections to others.
func TestForksInheritNoTies(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, sandbox.Spec{Limits: small().Limits, User: small().User, Env: map[string]string{"WHO": "parent"}})
	sb.OnHostCall(func(context.Context, sandbox.HostCall) ([]byte, error) { return []byte("the parent's key"), nil })
	// A server listens on a socket, and the interpreter is connected to it when the copies are made.
	echo, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"python3", "-c", `
import socket
s = socket.socket(socket.AF_UNIX); s.bind('\0echo'); s.listen()
open('/tmp/listens', 'w').close()
while True:
    c = s.accept()[0]
    while c.recv(1): c.sendall(open('/tmp/who', 'rb').read())`}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, sb, "test -e /tmp/listens")
	py(t, sb, `
import os, recluse, socket
c = socket.socket(socket.AF_UNIX); c.connect('\0echo')
def asked():
    c.sendall(b'?')
    return c.recv(100).decode()
def key():
    try: return recluse.call('key').decode()
    except recluse.CallError as e: return e.code`)
	all := family(t, sb)
	for _, c := range all {
		if err := c.Files().WriteAll(t.Context(), "/tmp/who", []byte(c.ID()), sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range all {
		calls := "host_call_undefined"
		if i == 0 {
			calls = "the parent's key"
		}
		if got, want := py(t, c, "print(asked(), key(), os.environ['WHO'])"), c.ID()+" "+calls+" parent\n"; got != want {
			t.Errorf("copy %d: %q, want %q", i, got, want)
		}
		tokenIsUnreadable(t, c)
	}
	// A process in a copy is ended only in that copy.
	if err := all[1].Cancel(t.Context(), echo); err != nil {
		t.Fatal(err)
	}
	if v, err := all[1].Follow(t.Context(), echo, sandbox.FollowOptions{}); err != nil || v.Ended != v1.EndedCancelled {
		t.Errorf("its own: %v, %v", v, err)
	}
	if got, want := py(t, sb, "print(asked())"), sb.ID()+"\n"; got != want {
		t.Errorf("after the process of a copy was ended, that of the parent printed %q, want %q", got, want)
	}
}
