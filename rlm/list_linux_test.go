package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

// listed returns the list of runs, by ID.
func listed(t *testing.T, e *Engine) map[string]*Info {
	t.Helper()
	out := map[string]*Info{}
	for info, err := range e.Runs() {
		if err != nil {
			t.Fatal(err)
		}
		out[info.ID] = info
	}
	return out
}

func TestTheListTellsWhatShowTells(t *testing.T) {
	d := newDesk(t, block("a = llm_query('one')"), block("FINAL(a)"))
	answered := d.answered(Question{Query: "first", Inputs: []Input{Text("x")}, Labels: map[string]string{"a": "b"}})
	d.root.answer = func(_ context.Context, n int, req llm.Request) (string, error) {
		if req.Tags["turn"] == "2" {
			return "", errors.New("503 overloaded")
		}
		return block("a = llm_query('two')"), nil
	}
	failed, err := d.run(Question{Query: "second", Inputs: []Input{Text("x")}})
	if err == nil {
		t.Fatal("the model failed, and the run did not")
	}
	ctx, leave := context.WithCancelCause(t.Context())
	d.root.answer = func(call context.Context, _ int, req llm.Request) (string, error) {
		if req.Tags["turn"] == "2" {
			leave(ErrSuspended)
			return "", call.Err()
		}
		return block("a = llm_query('three')"), nil
	}
	e := d.engine()
	r, err := e.Start(ctx, Question{Query: "third", Inputs: []Input{Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = r.Wait() // it was suspended
	same(t, "contexts that are held in memory", len(r.q.Inputs), 0)
	check := func() map[string]*Info {
		t.Helper()
		list := listed(t, e)
		same(t, "runs", len(list), 3)
		for _, id := range []string{answered.Run, failed.Run, r.ID()} {
			want, err := e.Show(id)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(list[id], want) {
				t.Errorf("listed\n%+v\nshown\n%+v", list[id], want)
			}
		}
		return list
	}
	check()
	note := filepath.Join(r.Dir(), listCacheFile)
	if _, err := os.Stat(note); err != nil {
		t.Errorf("the interrupted run has no cached Info: %v", err)
	}
	check()
	if err := os.WriteFile(note, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	check()
	// The cached Info is invalid after the log has changed.
	if res, err := d.resumed(r.ID(), v1.RunLimits{}); err == nil {
		t.Fatalf("%+v", res)
	}
	if info := check()[r.ID()]; info.Result == nil {
		t.Errorf("%+v", info)
	}
}

func TestWhoLooksAtARunIsNotTakenForOneWhoWorksOnIt(t *testing.T) {
	dir := t.TempDir()
	work := func() (unlock func()) {
		t.Helper()
		unlock, err := lockRun(dir)
		if err != nil {
			t.Fatal(err)
		}
		return unlock
	}
	same(t, "running before anybody has worked on it", running(dir), false)
	unlock := work()
	same(t, "running", running(dir), true)
	if _, err := lockRun(dir); v1.CodeOf(err) != v1.CodeBusy {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if running(dir) {
					t.Error("a caller of running is mistaken for a program that works on the run")
					return
				}
			}
		})
	}
	wg.Wait()
	look, err := filelock.TryShared(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, look.Release)
	work()() // it waits for callers of running
}

// BenchmarkListRuns lists 1,000 runs with logs of 256 KiB, a tenth of them interrupted.
func BenchmarkListRuns(b *testing.B) {
	dir := b.TempDir()
	filler, err := json.Marshal(v1.CallEnded{Call: v1.CallSub, Text: strings.Repeat("x", 8<<10)})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		at := filepath.Join(dir, fmt.Sprintf("20260101-000000-%08d", i))
		if err := os.Mkdir(at, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, runFile), []byte(`{"query":"q"}`), 0o600); err != nil {
			b.Fatal(err)
		}
		l, err := trajectory.Create(at)
		if err != nil {
			b.Fatal(err)
		}
		put := func(kind v1.RunEventKind, data any) {
			raw, err := json.Marshal(data)
			if err == nil {
				err = l.Append(v1.RunEvent{Node: "0", Kind: kind, Data: raw})
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		put(v1.KindRunStarted, v1.RunStarted{Query: "q"})
		for range 32 {
			put(v1.KindCallEnded, json.RawMessage(filler))
		}
		if i%10 != 0 {
			put(v1.KindRunEnded, &Result{Answer: "a", Wall: time.Second})
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	e, err := New(Options{Models: func(int, string) (llm.Model, error) { return nil, NoModel() }, Sandboxes: FromBackend(nil), Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		n := 0
		for _, err := range e.Runs() {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != 1000 {
			b.Fatal(n)
		}
	}
}
