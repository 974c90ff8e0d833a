package sandboxtest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// manyLater is the number of later operations in a test. It is more than the number of operations without survivors
// that a guest remembers.
const manyLater = 66

// leftBehind are the features of processes that outlive their command or cell.
var leftBehind = []feature{
	{"what an old command or cell left behind can still be asked to end", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		// Each process makes a file when it is ready, and another when it receives SIGTERM.
		waits := func(name string) string {
			return fmt.Sprintf("trap 'echo TERM > heard-%[1]s; exit' TERM; touch ready-%[1]s; while :; do sleep 0.02; done", name)
		}
		c := run(t, sb, sandbox.Command{Shell: "(" + waits("command") + ") > /dev/null 2>&1 &"})
		x := okCell(t, sb, fmt.Sprintf("import subprocess\np = subprocess.Popen(['sh', '-c', %q], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)", waits("cell")))
		testneed.Await(t, "both are ready", func() bool { return run(t, sb, sandbox.Command{Shell: "test -e ready-command -a -e ready-cell"}).OK() })
		for range manyLater {
			runCell(t, sb, sandbox.Cell{Code: "1", Context: "another"})
		}
		for name, v := range map[string]*sandbox.Verdict{"command": c, "cell": x} {
			if err := sb.Signal(t.Context(), v.ID, syscall.SIGTERM, sandbox.SignalOptions{Tree: true}); err != nil {
				t.Fatalf("signal the survivor of the %s: %v", name, err)
			}
			testneed.Await(t, "the survivor of the "+name+" receives SIGTERM", func() bool { return run(t, sb, sandbox.Command{Shell: "grep -q TERM heard-" + name}).OK() })
		}
		testneed.Await(t, "it is forgotten once nothing is left", func() bool {
			run(t, sb, sandbox.Command{Args: []string{"true"}})
			_, err := sb.Follow(t.Context(), c.ID, sandbox.FollowOptions{NoWait: true})
			return v1.CodeOf(err) == v1.CodeNotFound
		})
	}},
	{"orphans leave no zombies", onBackend, func(t *testing.T, s *suite) {
		for _, o := range []struct {
			name  string
			start func(t *testing.T, sb Machine, script string)
		}{
			{"while their command runs", func(t *testing.T, sb Machine, script string) {
				t.Helper()
				// sleep does not wait for children.
				_, err := sb.Start(t.Context(), sandbox.Command{Shell: script + "; exec sleep 1000"})
				noError(t, err)
			}},
			{"after their command", func(t *testing.T, sb Machine, script string) {
				t.Helper()
				run(t, sb, sandbox.Command{Shell: script})
			}},
			{"of a cell", func(t *testing.T, sb Machine, script string) {
				t.Helper()
				s.needPython(t)
				okCell(t, sb, fmt.Sprintf("import subprocess\nsubprocess.run(['sh', '-c', %q], check=True)", script))
			}},
		} {
			t.Run(o.name, func(t *testing.T) {
				sb := s.open(t)
				// Three processes that lose their parent at once, each in a session of its own. They end when the file
				// go exists.
				o.start(t, sb, `for i in 1 2 3; do sh -c 'setsid sh -c "echo \$\$ >> pids; until [ -e go ]; do sleep 0.02; done" >/dev/null 2>&1 &'; done`)
				pids := pidsIn(t, sb, "pids", 3)
				same(t, "orphans alive", len(livingPIDs(t, sb, pids)), 3)
				shell(t, sb, "touch go")
				testneed.Await(t, "the end of all orphans, zombies included", func() bool {
					return len(unreapedPIDs(t, sb, pids)) == 0
				})
			})
		}
	}},
}

// unreapedPIDs returns those of the pids inside the sandbox that exist, including zombies.
func unreapedPIDs(t *testing.T, sb Machine, pids []int) []int {
	t.Helper()
	return numbers(t, shell(t, sb, fmt.Sprintf("for p in %s; do [ ! -e /proc/$p ] || echo $p; done", strings.Trim(fmt.Sprint(pids), "[]"))))
}
