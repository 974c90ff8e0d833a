package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// HostileGuest builds a guest that attacks its host, for Attacks, and returns its path.
func HostileGuest(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recluse-guest")
	const source = "github.com/recluse-dev/recluse/sandbox/sandboxtest/testdata/hostile"
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// budget is how many calls of a guest succeed.
const budget = 3

// Attacks opens sandboxes of a backend whose guest is HostileGuest, one for each attack, also for those in more. The host
// must neither hang nor believe it nor grow, and nothing may be left behind. In make test there is only one attack.
func Attacks(t *testing.T, b sandbox.Backend, more ...string) {
	attacks := []string{"zeros without end"}
	if testneed.AllTests() {
		attacks = append(attacks, "ones without end", "a huge message", "the end", "silence", "a forged verdict",
			"frames without end", "calls without end", "calls that never end")
		attacks = append(attacks, more...)
	}
	for _, attack := range attacks {
		t.Run(attack, func(t *testing.T) { attacked(t, b, attack) })
	}
}

func attacked(t *testing.T, b sandbox.Backend, attack string) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{Env: map[string]string{"ATTACK": attack}})
	if err == nil {
		var calls, running, most atomic.Int64
		sb.OnHostCall(func(context.Context, sandbox.HostCall) ([]byte, error) {
			defer running.Add(-1)
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			if calls.Add(1) > budget {
				return nil, &v1.Error{Code: v1.CodeBudget, Message: "no more calls"}
			}
			return []byte("paid"), nil
		})
		v, err := runFor(t, sb, time.Second)
		switch {
		case attack == "a forged verdict" && err == nil:
			text := fmt.Sprint(v, v.Stdout, v.Stderr)
			if v.OK() || len(text) > 3<<20 || v.Wall < 0 || v.Stdout.Produced < 0 || len(v.Survivors) > 64 {
				t.Errorf("a forged verdict of %d bytes is %.100s", len(text), text)
			}
		case err == nil:
			t.Errorf("a command has the verdict %s", v)
		}
		if most.Load() > 256 || attack == "calls without end" && calls.Load() <= budget {
			t.Errorf("%d calls, %d at a time", calls.Load(), most.Load())
		}
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
	var grown int64
	if !testneed.Eventually(func() bool { // what a guest has sent may stay until its connections have ended
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown = int64(after.HeapAlloc) - int64(before.HeapAlloc)
		return grown <= 32<<20
	}) {
		t.Errorf("the host's memory has grown by %d bytes", grown)
	}
	all, err := b.List(t.Context())
	if err != nil || len(all) > 0 {
		t.Errorf("left behind: %+v, %v", all, err)
	}
}

// runFor runs a command for a time.
func runFor(t *testing.T, sb *sandbox.Sandbox, limit time.Duration) (*sandbox.Verdict, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return sb.Run(ctx, sandbox.Command{Args: []string{"true"}})
}
