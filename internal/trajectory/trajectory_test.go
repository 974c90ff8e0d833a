package trajectory

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func event(n int) v1.RunEvent {
	data, _ := json.Marshal(map[string]int{"n": n})
	return v1.RunEvent{Node: "0", Kind: "test", Data: data}
}

func number(t *testing.T, e v1.RunEvent) int {
	t.Helper()
	var d struct{ N int }
	if err := e.Decode(&d); err != nil {
		t.Fatal(err)
	}
	return d.N
}

func TestReportsReachWatchersOnly(t *testing.T) {
	dir := t.TempDir()
	l, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.Report(event(1)) // nobody watches
	arrived := make(chan v1.RunEvent)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(arrived)
		for e, err := range l.Watch(context.Background(), 0) {
			if err != nil {
				t.Error(err)
				return
			}
			arrived <- e
		}
	})
	wg.Go(func() {
		for e, err := range l.Follow(context.Background(), 0) {
			if err != nil || e.Seq == 0 {
				t.Errorf("a follower got %+v %v", e, err)
			}
		}
	})
	if !testneed.Eventually(l.Watched) {
		t.Fatal("no watcher")
	}
	if err := l.Append(event(2)); err != nil {
		t.Fatal(err)
	}
	if e := <-arrived; e.Seq != 1 || number(t, e) != 2 {
		t.Errorf("first: %+v", e)
	}
	l.Report(event(3))
	if e := <-arrived; e.Seq != 0 || number(t, e) != 3 || e.Time.IsZero() {
		t.Errorf("report: %+v", e)
	}
	// The watcher of this moment is waiting for us. It gets the latest of several reports, if it is slow.
	for n := range 100 {
		l.Report(event(n))
	}
	seen := 0
	for e := range arrived {
		if seen++; number(t, e) == 99 {
			break
		}
	}
	if seen > 3 {
		t.Errorf("a slow watcher got %d reports", seen)
	}
	l.Report(event(5))
	if err := l.Append(event(6)); err != nil { // the report is about the state before
		t.Fatal(err)
	}
	for e := range arrived {
		if n := number(t, e); n == 6 {
			break
		} else if n != 5 {
			t.Errorf("event %d", n)
		}
	}
	l.Close()
	for e := range arrived {
		t.Errorf("after the last event: %+v", e)
	}
	wg.Wait()
	if l.Watched() {
		t.Error("the watcher has left")
	}
	for e, err := range Read(dir) {
		if err != nil || e.Seq == 0 {
			t.Errorf("stored: %+v %v", e, err)
		}
	}
}

func TestWatchersSeeEveryEventInOrder(t *testing.T) {
	l, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 200
	var watch, write sync.WaitGroup
	for range 3 {
		watch.Go(func() {
			want := int64(1)
			for e, err := range l.Follow(context.Background(), 0) {
				if err != nil || e.Seq != want {
					t.Errorf("event %d, want %d: %v", e.Seq, want, err)
					return
				}
				want++
			}
			if want != writers*each+1 {
				t.Errorf("saw %d events of %d", want-1, writers*each)
			}
		})
	}
	for range writers {
		write.Go(func() {
			for i := range each {
				if err := l.Append(event(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	write.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	watch.Wait()
	if err := l.Append(event(1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
}

func TestATornLastLineIsPassedOverAndTakenAway(t *testing.T) {
	dir := t.TempDir()
	l, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := l.Append(event(i)); err != nil {
			t.Fatal(err)
		}
	}
	_ = l.Close()
	f, err := os.OpenFile(filepath.Join(dir, FileName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"seq":4,"node":"0","ki`)
	_ = f.Close()
	n := 0
	for e, err := range Read(dir) {
		if err != nil || number(t, e) != n {
			t.Fatalf("event %d: %v", n, err)
		}
		n++
	}
	if n != 3 {
		t.Fatalf("%d events", n)
	}
	l, err = Continue(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(event(3)); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	n = 0
	for e, err := range Read(dir) {
		if err != nil || e.Seq != int64(n+1) || number(t, e) != n {
			t.Fatalf("event %d: %+v %v", n, e, err)
		}
		n++
	}
	if n != 4 {
		t.Fatalf("%d events", n)
	}
}

func TestAWatcherCanLeave(t *testing.T) {
	l, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := l.Append(event(0)); err != nil {
		t.Fatal(err)
	}
	for _, err := range l.Follow(ctx, 0) {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			break
		}
		cancel()
	}
}
