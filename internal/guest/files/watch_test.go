//go:build linux

package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watching starts a watch and returns a function that waits for an event and skips others.
func watching(t *testing.T, f *FS, root, path string, opts WatchOptions) (expect func(Event), events chan Event) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events = make(chan Event, 100_000)
	done := make(chan error, 1)
	go func() {
		done <- f.Watch(ctx, root, path, opts, func(ev Event) error { events <- ev; return nil })
		close(events)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			wantKind(t, err, Cancelled)
		}
	})
	expect = func(want Event) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		var passed []Event
		for {
			select {
			case ev, ok := <-events:
				if !ok {
					t.Fatalf("watch ended without %+v, after %+v", want, passed)
				}
				if ev == want {
					return
				}
				passed = append(passed, ev)
			case <-timeout:
				t.Fatalf("no event %+v, but %+v", want, passed)
			}
		}
	}
	return expect, events
}

func TestWatch(t *testing.T) {
	f, d := switched(t), dir(t)
	outside := dir(t)
	expect, _ := watching(t, f, d, "/", WatchOptions{Recursive: true})
	expect(Event{Op: EventReady, Path: "/"})
	put(t, d+"/file", "x")
	expect(Event{Op: EventCreate, Path: "/file"})
	expect(Event{Op: EventModify, Path: "/file"})
	must(t, os.Rename(d+"/file", d+"/renamed"))
	expect(Event{Op: EventRename, Path: "/renamed", From: "/file"})
	must(t, os.MkdirAll(d+"/a/b/c", 0o755))
	put(t, d+"/a/b/c/file", "x")
	expect(Event{Op: EventCreate, Path: "/a/b/c/file"})
	put(t, d+"/a/b/c/later", "x")
	expect(Event{Op: EventModify, Path: "/a/b/c/later"})
	must(t, os.Rename(d+"/a", d+"/z"))
	expect(Event{Op: EventRename, Path: "/z", From: "/a", Dir: true})
	must(t, os.Remove(d+"/z/b/c/file"))
	expect(Event{Op: EventRemove, Path: "/z/b/c/file"})
	must(t, os.Rename(d+"/z/b", outside+"/b"))
	expect(Event{Op: EventRemove, Path: "/z/b", Dir: true})
	put(t, outside+"/b/c/unseen", "x")
	must(t, os.Rename(outside+"/b", d+"/back"))
	expect(Event{Op: EventCreate, Path: "/back", Dir: true})
	expect(Event{Op: EventCreate, Path: "/back/c/later"})
	must(t, os.Remove(d+"/back/c/later"))
	expect(Event{Op: EventRemove, Path: "/back/c/later"})
}

func TestWatchFile(t *testing.T) {
	f, d := switched(t), dir(t)
	put(t, d+"/file", "x")
	expect, events := watching(t, f, "/", d+"/file", WatchOptions{Recursive: true})
	expect(Event{Op: EventReady, Path: d})
	put(t, d+"/neighbour", "x")
	must(t, f.writeString(d, "file", "replaced", WriteOptions{}))
	if ev := <-events; ev.Op != EventCreate || ev.Path != d+"/file" {
		t.Errorf("%+v", ev)
	}
	put(t, d+"/file", "changed")
	expect(Event{Op: EventModify, Path: d + "/file"})
	must(t, os.Rename(d+"/file", d+"/elsewhere"))
	expect(Event{Op: EventRemove, Path: d + "/file"})
}

func TestWatchEndsWithItsDirectory(t *testing.T) {
	f, d := switched(t), dir(t)
	must(t, os.Mkdir(d+"/sub", 0o755))
	expect, events := watching(t, f, d, "sub", WatchOptions{})
	expect(Event{Op: EventReady, Path: "/sub"})
	must(t, os.Remove(d+"/sub"))
	expect(Event{Op: EventRemove, Path: "/sub", Dir: true})
	if ev, ok := <-events; ok {
		t.Errorf("%+v", ev)
	}
}

func TestWatchOverflow(t *testing.T) {
	t.Parallel()
	f, d := plain(), dir(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	overflow := false
	err := f.Watch(ctx, d, "", WatchOptions{}, func(ev Event) error {
		switch ev.Op { //nolint:exhaustive // the other events are not what is tested
		case EventReady:
			for i := range 2 * watchQueue { // while no event is received
				must(t, os.WriteFile(fmt.Sprintf("%s/%d", d, i), nil, 0o644))
			}
		case EventOverflow:
			overflow = true
			cancel()
		}
		return nil
	})
	if wantKind(t, err, Cancelled); !overflow {
		t.Error("no overflow event")
	}
}

func TestWatchIsBounded(t *testing.T) {
	d := dir(t)
	for i := range 10 {
		must(t, os.Mkdir(filepath.Join(d, fmt.Sprint(i)), 0o755))
	}
	f := New(Options{MaxWatches: 10})
	wantKind(t, f.Watch(context.Background(), d, "", WatchOptions{Recursive: true}, func(Event) error { return nil }), TooMany)
	f = New(Options{MaxWatches: 11})
	expect, _ := watching(t, f, d, "", WatchOptions{Recursive: true})
	expect(Event{Op: EventReady, Path: "/"})
	must(t, os.Mkdir(d+"/more", 0o755))
	expect(Event{Op: EventOverflow})
}
