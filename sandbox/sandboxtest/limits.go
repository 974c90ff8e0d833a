package sandboxtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// needLimit skips the test if the backend does not have the capability.
func needLimit(t *testing.T, has bool) {
	t.Helper()
	if !has {
		t.Skip("the backend does not enforce this limit")
	}
}

var limits = []feature{
	{"a limit that is not kept is said, with the reason", onBackend, func(t *testing.T, s *suite) {
		c := s.caps
		if c.MemoryLimit && c.CPULimit && c.ProcessLimit && c.DiskLimit && c.OpenFileLimit {
			return
		}
		contains(t, "notes", strings.Join(c.Notes, "\n"), "limit")
	}},
	{"reaching the memory limit costs the command, not the session", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.MemoryLimit && s.caps.Python)
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.Memory = 256 << 20 })
		okCell(t, sb, "x = 42")
		unharmed := bystander(t, sb)
		v := run(t, sb, sandbox.Command{Args: []string{"python3", "-c", "x = []\nwhile True: x.append(bytearray(8 << 20))"}})
		same(t, "ended", v.Ended, v1.EndedMemory)
		if v.MemoryKills < 1 {
			t.Errorf("memory kills: %d", v.MemoryKills)
		}
		same(t, "state", okCell(t, sb, "x").Result.Text(), "42")
		unharmed()
		v = cell(t, sb, "y = []\nwhile True: y.append(bytearray(8 << 20))")
		if v.Ended != v1.EndedMemory && (v.Error == nil || v.Error.Name != "MemoryError") {
			t.Errorf("a cell: %s", v)
		}
		okCell(t, sb, "1")
		unharmed()
	}},
	{"reaching the process limit costs the command, not the session", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.ProcessLimit)
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.Processes = 64 })
		unharmed := bystander(t, sb)
		v := run(t, sb, sandbox.Command{Shell: `f() { f | f & }; f; sleep 1; echo alive`, RunOptions: sandbox.RunOptions{Timeout: 5 * time.Second, KillSurvivors: true}})
		t.Logf("the bomb: %s", v)
		same(t, "after it", shell(t, sb, "echo fine"), "fine\n")
		unharmed()
	}},
	{"about as many processes run as the limit says", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.ProcessLimit && s.caps.Python)
		const limit = 64
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.Processes = limit })
		v := run(t, sb, sandbox.Command{Args: []string{"python3", "-c", `
import errno, os, resource
n = 0
try:
    while n < 1000: os.posix_spawn('/bin/sleep', ['sleep', '1000'], {}); n += 1
except OSError as e: assert e.errno == errno.EAGAIN, e
print(n, *resource.getrlimit(resource.RLIMIT_NPROC))`}, RunOptions: sandbox.RunOptions{KillSurvivors: true}})
		succeeded(t, v)
		got := numbers(t, v.Stdout.String())
		t.Logf("%d processes, limits %d", got[0], got[1:])
		most := limit + limit/8 // not every kernel counts the calling process
		if s.caps.Isolation == sandbox.IsolationContainer {
			most *= 3 // the engine's limit includes the guest's processes, for which there is a reserve
		} else if got[1] != limit || got[2] != limit {
			t.Errorf("the process sees the limits %d", got[1:])
		}
		if n := got[0]; n < limit*3/4 || n > most {
			t.Errorf("%d processes with a limit of %d", n, limit)
		}
		same(t, "after it", shell(t, sb, "echo fine"), "fine\n")
	}},
	{"the disk limit is an error of the writer", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.DiskLimit)
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.Memory, x.Limits.Disk = 256<<20, 32<<20 })
		v := run(t, sb, sandbox.Command{Shell: "head -c 200000000 /dev/zero > big; s=$?; rm -f big; exit $s"})
		if v.OK() {
			t.Error("200 MB were written to a disk of 32 MB")
		}
		contains(t, "stderr", strings.ToLower(v.Stderr.String()), "no space")
		f := files(sb, home(t, sb))
		_, err := f.Write(t.Context(), "big", &endless{left: 2_000_000_000}, sandbox.WriteOptions{})
		fails(t, "an upload", err, v1.CodeDiskFull)
		same(t, "after it", shell(t, sb, "echo fine > small; cat small"), "fine\n")
	}},
	{"the limit of open files holds", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.OpenFileLimit)
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.OpenFiles = 100 })
		same(t, "soft and hard", shell(t, sb, "ulimit -Sn; ulimit -Hn"), "100\n100\n")
	}},
	{"the CPU limit slows down", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.CPULimit && s.caps.Python)
		// Both work at the same time, so that a busy machine slows both down; the verdict's CPU time is the sandbox's
		// own account, which may count the time in which it was held back. A machine that has little time left for the
		// sandbox with one core shows no difference, so there are many tries: the first one that shows it is enough.
		work := func(cpus float64) func() (rounds func() int) {
			sb := s.open(t, func(x *sandbox.Spec) { x.Limits.CPUs = cpus })
			okCell(t, sb, "import time")
			code := "end, n = time.monotonic() + 2, 0\nwhile time.monotonic() < end: n += 1\nn"
			return func() func() int {
				done := inBackground(t.Context(), sb.Cell, sandbox.Cell{Code: code})
				return func() int {
					n, err := strconv.Atoi(verdictOf(t, done).Result.Text())
					noError(t, err)
					return n
				}
			}
		}
		limited, free := work(0.1), work(1)
		var slow, fast int
		for range 30 {
			slowly, quickly := limited(), free()
			if slow, fast = slowly(), quickly(); slow <= fast/2 {
				return
			}
		}
		t.Errorf("%d rounds with a tenth of a core, %d with one core", slow, fast)
	}},
	{"code sees the share it has", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.CPULimit)
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.CPUs = 2 })
		variables := strings.Fields("OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMEXPR_NUM_THREADS GOMAXPROCS RAYON_NUM_THREADS PYTHON_CPU_COUNT")
		want := "nproc=2\n"
		for _, v := range variables {
			want += v + "=2\n"
		}
		same(t, "nproc and threads", shell(t, sb, "echo nproc=$(nproc); for v in "+strings.Join(variables, " ")+"; do eval \"echo $v=\\$$v\"; done"), want)
	}},
	{"the machine's memory is the limit", onBackend, func(t *testing.T, s *suite) {
		needLimit(t, s.caps.MemoryLimit)
		if s.caps.Isolation != sandbox.IsolationKernel {
			t.Skip("SKIPPED: the sandbox shows the host's memory")
		}
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.Memory = 384 << 20 })
		same(t, "memory", shell(t, sb, "grep MemTotal: /proc/meminfo | tr -d ' '"), fmt.Sprintf("MemTotal:%dkB\n", 384<<10))
	}},
	{"a guest answers while code spins on every core", onBackend, func(t *testing.T, s *suite) {
		sb := s.open(t)
		id, err := sb.Start(t.Context(), sandbox.Command{Shell: "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; echo on; wait"})
		noError(t, err)
		testneed.Await(t, "the spin", func() bool { return operation(t, sb, id).Stdout > 0 })
		fastest := maxWait // a busy machine may be slow sometimes
		for range 5 {
			began := time.Now()
			noError(t, sb.Ping(t.Context()))
			fastest = min(fastest, time.Since(began))
		}
		if fastest > time.Second {
			t.Errorf("the fastest ping took %s", fastest)
		}
		noError(t, sb.Cancel(t.Context(), id))
		_, err = sb.Follow(t.Context(), id, sandbox.FollowOptions{})
		noError(t, err)
	}},
}

// endless is a reader of zeros that fails after left bytes.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, fmt.Errorf("all data was read")
	}
	n := min(len(p), e.left)
	clear(p[:n])
	e.left -= n
	return n, nil
}
