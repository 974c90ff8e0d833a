package attack

import (
	"os"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestProcessBombs(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	for _, b := range []bomb{
		{name: "fork bomb", common: true, script: `:(){ :|:& };:; sleep 60`, timeout: 2 * time.Second},
		{name: "vfork and exec storm", variant: true, timeout: 2 * time.Second, script: `while :; do setsid /bin/true & done`},
		{name: "thread bomb", common: true, timeout: 2 * time.Second, python: `
import threading, time
n = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(); n += 1
except RuntimeError as e: print(n, 'threads', e, flush=True)
time.sleep(1000)`},
		{name: "zombies", timeout: 2 * time.Second, python: `
import os, time
try:
    while True:
        if os.fork() == 0: os._exit(0)
except OSError as e: print(e, flush=True)
time.sleep(1000)`},
		{name: "a spin on every core", variant: true, timeout: 2 * time.Second, script: `for i in $(seq 100); do (while :; do :; done) & done; wait`},
		{name: "system calls without end", timeout: 2 * time.Second, python: `
import os
for i in range(16):
    if os.fork() == 0: break
while True: os.stat('/usr/bin'); os.getppid(); os.listdir('/proc')`},
	} {
		if b.left() {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			sb := fresh(t, small())
			siege(t, sb, func() {
				v := b.run(t, sb)
				if v.Ended != v1.EndedTimeout {
					t.Errorf("ended by %s", v)
				}
				// All its processes are gone, so others can be started.
				allGone(t, sb)
			})
		})
	}
}

// strangers returns the processes inside that belong neither to the guest nor to the interpreter, including zombies. A
// machine also shows threads of its kernel.
const strangers = `
import os
def _name(p):
    try: name, rest = open('/proc/%s/stat' % p).read().rsplit(')', 1)
    except OSError: return None # it has gone
    return None if int(rest.split()[6]) & 0x200000 else name.split('(', 1)[1]
print([(p, n) for p, n in ((p, _name(p)) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()) if n not in (None, 'recluse-guest')])`

// allGone waits until only the guest and the interpreter are left.
func allGone(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	testneed.Await(t, "the end of all of it", func() bool { return py(t, sb, strangers) == "[]\n" })
}

// TestProcessBombWhileOthersWork keeps the bomb alive. Commands of the host must still be told why they cannot start,
// and the bomb can be cancelled.
func TestProcessBombWhileOthersWork(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	for name, c := range map[string]sandbox.Command{
		// After its start, its parent cannot fork any more, and does not need to in order to see that the bomb runs.
		"one that boils": {Shell: `( :(){ :|:& };: ) 2>/dev/null &
until set -- /proc/[0-9]*; [ $# -gt 60 ]; do true; done
> /tmp/on; exec sleep 60`},
		"one that has all there is": {Args: []string{"python3", "-c", `
import os, time
while True:
    try: os.posix_spawn('/bin/sleep', ['sleep', '1000'], {})
    except OSError: open('/tmp/on', 'w').close(); time.sleep(0.01)`}},
	} {
		t.Run(name, func(t *testing.T) {
			sb := fresh(t, small())
			siege(t, sb, func() {
				id, err := sb.Start(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				testneed.Await(t, "the bomb", func() bool {
					_, err := sb.Files().Stat(t.Context(), "/tmp/on") // the guest answers without a new process
					return err == nil
				})
				v := run(t, sb, sandbox.Command{Args: []string{"true"}})
				t.Log("a command meanwhile:", v)
				if !v.OK() && (v.Ended != v1.EndedStart || v.StartError == "") {
					t.Errorf("a command meanwhile neither ran nor failed with a reason: %s", v)
				}
				if v := cell(t, sb, sandbox.Cell{Code: "print('heard', end='')\n40+2"}); v.Result.Text() != "42" || v.Stdout.String() != "heard" {
					t.Errorf("a cell meanwhile: %s, %q %q", v, v.Stdout, v.Stderr)
				}
				if err := sb.Files().WriteAll(t.Context(), "/tmp/meanwhile", []byte("x"), sandbox.WriteOptions{}); err != nil {
					t.Errorf("a write meanwhile: %v", err)
				}
				if err := sb.Cancel(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				if v, err := sb.Follow(t.Context(), id, sandbox.FollowOptions{}); err != nil || v.Ended != v1.EndedCancelled {
					t.Errorf("the bomb: %v, %v", v, err)
				}
				allGone(t, sb)
			})
		})
	}
}

// TestForkBombThatDetaches uses a bomb that continues after its verdict, so that no operation that needs a process can
// run. The sandbox survives. In a container, where the engine gives the guest no CPU share of its own, it may be lost;
// the loss is reported.
func TestForkBombThatDetaches(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	bomb := bomb{timeout: 4 * time.Second, python: `
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass`}
	sb := fresh(t, small())
	underSiege(t, nil, func() {
		v, err := sb.Run(t.Context(), bomb.command())
		if err == nil {
			t.Logf("%s, %d killed for memory, %d survivors", v, v.MemoryKills, v.SurvivorsTotal)
			return
		}
		if code := v1.CodeOf(err); os.Getenv(dockertest.RuntimeVariable) == "" || code != v1.CodeSandboxLost && code != v1.CodeGuestLost {
			t.Errorf("reported as %s: %v", code, err)
		}
	})
}
