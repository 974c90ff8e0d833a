//go:build linux

package synthetic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

var boxes *gvisor.Backend

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	engine, guest, err := testbin.Programs()
	if err == nil {
		err = errors.Join(os.Setenv("RECLUSE_ENGINE", engine.Path), os.Setenv("RECLUSE_GUEST", guest.Path))
	}
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp("", "recluse-synthetic-")
		defer func() { _ = os.RemoveAll(dir) }()
	}
	if err == nil {
		boxes, err = gvisor.New(gvisor.Options{DataDir: dir})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxes for tests:", err)
		return 1
	}
	code := m.Run()
	if left, err := boxes.List(context.Background()); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "sandboxes left behind:", left, err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestEveryTaskIsSolvedExactly(t *testing.T) {
	testneed.Sandboxes(t)
	testneed.Parallel(t)
	const mounted = 9_000_000
	tasks := All(100_000, 1) // streamed
	if testneed.AllTests() {
		tasks = append(tasks, All(mounted, 1)...)
	} else {
		tasks = append(tasks, Needles(mounted, 100, 1))
	}
	for _, task := range tasks {
		t.Run(fmt.Sprintf("%s of %d", task.Name, task.Size), func(t *testing.T) {
			t.Parallel()
			r, err := task.Solve(t.Context(), rlm.Options{Sandboxes: rlm.FromBackend(boxes), Dir: t.TempDir()}, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if !r.Correct {
				t.Errorf("answer %.300s, want %.300s", r.Answer, task.Answer)
			}
			if task.ReadsAll && r.Coverage < 99 {
				t.Errorf("%.2f%% of the context was read", r.Coverage)
			}
			t.Logf("%d calls, %d turns, %s, %.2f%% read", r.Calls, r.Turns, r.Wall, r.Coverage)
		})
	}
}

func TestATaskIsTheSameEachTime(t *testing.T) {
	for i, a := range All(20_000, 5) {
		b := All(20_000, 5)[i]
		c := All(20_000, 6)[i]
		if a.Answer != b.Answer || a.Answer == c.Answer {
			t.Errorf("%s: %.50s, %.50s, %.50s", a.Name, a.Answer, b.Answer, c.Answer)
		}
	}
}
