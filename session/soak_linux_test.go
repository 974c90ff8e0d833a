package session

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// held counts the resources that a leak would increase.
type held struct{ files, mounts, goroutines, sandboxes int }

func (k *bench) held() held {
	k.t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		k.t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		k.t.Fatal(err)
	}
	files := 0
	for _, fd := range fds {
		// The store opens its connections as it needs them, up to a number.
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.HasPrefix(to, k.dir) {
			files++
		}
	}
	return held{files, strings.Count(string(mounts), shared), runtime.NumGoroutine(), k.sandboxes()}
}

func TestSessionsComeAndGoWithoutALeak(t *testing.T) {
	testneed.Alone(t) // the test counts resources of the whole program
	o := quick()
	o.NoPool, o.Pool, o.Warm = false, pool.Options{Min: 1, Target: 1, Max: 1}, []sandbox.Spec{{}}
	k := newBench(t, o)
	round := func(sessions, atOnce int) {
		var wg sync.WaitGroup
		names := make(chan string)
		for range atOnce {
			wg.Go(func() {
				for name := range names {
					s, opened, err := k.m.Open(t.Context(), Key{Name: name}, OpenOptions{})
					if err != nil || !opened.New {
						t.Errorf("%s: created %v, %v", name, opened.New, err)
						continue
					}
					if v, err := s.Cell(t.Context(), sandbox.Cell{Code: "x = 41; x + 1"}); err != nil || v.Result.Text() != "42" {
						t.Errorf("%s: %v, %v", name, v, err)
					}
					if err := s.End(t.Context(), ""); err != nil {
						t.Error(err)
					}
					<-s.disposed
				}
			})
		}
		for i := range sessions {
			names <- fmt.Sprint("s", i)
		}
		close(names)
		wg.Wait()
		await(t, "the pool is full again", func() bool {
			st := k.m.PoolStats()[k.b.Name()]
			return st.Ready == 1 && st.Making == 0 && k.sandboxes() == 1
		})
	}
	round(4, 2)
	before := k.held()
	round(rounds(12, number(40, 10)), number(8, 4))
	// Descriptors and goroutines of ended sandboxes disappear a moment later.
	await(t, fmt.Sprintf("no more than %+v is held, but %+v", before, k.held()), func() bool {
		now := k.held()
		return now.files <= before.files && now.mounts <= before.mounts && now.goroutines <= before.goroutines && now.sandboxes <= before.sandboxes
	})
}
