//go:build linux

package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A rename comes as two events, the second one right after the first unless the file has left the watched
	// directories. The kernel queues both in one go; the pause only covers a read that cut between them.
	renamePause = 20 * time.Millisecond
	watchQueue  = 1024 // events that wait for a slow receiver

	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_ATTRIB |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

// EventOp says what happened.
type EventOp string

// What happens to files.
const (
	EventReady    EventOp = "ready" // always the first: from now on nothing is missed
	EventCreate   EventOp = "create"
	EventModify   EventOp = "modify" // content, permissions or times
	EventRemove   EventOp = "remove" // or moved to where we do not look
	EventRename   EventOp = "rename"
	EventOverflow EventOp = "overflow" // events were lost, or there are directories too many to watch: look for yourself
)

// Event is one change.
type Event struct {
	Op   EventOp
	Path string // below the root, as in Info
	From string // of a rename: the old path
	Dir  bool   // it is a directory
}

// WatchOptions say what Watch watches.
type WatchOptions struct {
	Recursive bool // also the directories below, and those that come to be
}

// Watch calls fn for each change of a file, or in a directory, until ctx ends (Kind Cancelled), fn fails, or the watched
// directory is gone (nil, after its remove event). Links are followed in path only.
//
// Runs of modify events for one file are told once. What appears in a new directory before it can be watched is found by looking, so
// a create may be told twice, but is not missed. If fn is slow, events are dropped and an overflow event says so. More directories
// than Options.MaxWatches are Kind TooMany at the start and an overflow event later.
func (f *FS) Watch(ctx context.Context, root, path string, opts WatchOptions, fn func(Event) error) error {
	return fail("watch", path, f.watch(ctx, root, path, opts, fn))
}

type watcher struct {
	f         *FS
	ctx       context.Context
	file      *os.File // of inotify
	fd        int      // the same; its File must stay non-blocking, which Fd would change
	recursive bool
	root      string // the top directory, by which it is found again. Holding it open would keep its removal from being told
	id        inode
	only      string // the name watched, if it is a file: of the top directory, only this is told
	top       int32
	paths     map[int32]string // by watch descriptor; used by the reader alone once it runs

	events chan Event
	lost   chan struct{} // holds one: there is an overflow to tell

	last    Event  // told last in this batch
	moved   *Event // a rename's first half
	cookie  uint32
	removed bool // the top is gone
}

func (f *FS) watch(ctx context.Context, root, p string, opts WatchOptions, fn func(Event) error) error {
	if p == "" {
		p = "/"
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w := &watcher{
		f: f, ctx: ctx, file: os.NewFile(uintptr(fd), "inotify"), fd: fd, recursive: opts.Recursive,
		paths: map[int32]string{}, events: make(chan Event, watchQueue), lost: make(chan struct{}, 1),
	}
	if err := w.start(root, p); err != nil {
		_ = w.file.Close()
		return err
	}
	top := w.paths[w.top]
	read := make(chan error, 1)
	go func() {
		err := w.read()
		close(w.events)
		read <- err
	}()
	err = w.deliver(top, fn)
	_ = w.file.Close() // ends the reader
	if rerr := <-read; err == nil && !errors.Is(rerr, fs.ErrClosed) {
		err = rerr
	}
	return err
}

// deliver gives events to fn until there are no more.
func (w *watcher) deliver(top string, fn func(Event) error) error {
	if err := fn(Event{Op: EventReady, Path: top}); err != nil {
		return err
	}
	for {
		var ev Event
		var ok bool
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-w.lost:
			ev = Event{Op: EventOverflow}
		case ev, ok = <-w.events:
			if !ok {
				return nil
			}
		}
		if err := fn(ev); err != nil {
			return err
		}
	}
}

func (w *watcher) start(root, p string) error {
	var dir *os.File
	var at string
	err := w.f.at(w.ctx, root, p, how{follow: true}, func(place *place) error {
		st, err := lstatAt(place.dir, place.base)
		if err != nil {
			return err
		}
		at = place.path()
		name := place.base
		if !isDir(st) {
			// Not the file but its directory is watched: a file that is replaced, as Write does it, is another file.
			w.only, name, at = place.base, ".", path.Dir(at)
			w.recursive = false
		}
		if dir, err = openDirAt(place.dir, name); err != nil {
			return err
		}
		st, err = fstat(dir)
		w.root, w.id = root, inodeOf(st)
		return err
	})
	if dir != nil {
		defer func() { _ = dir.Close() }()
	}
	if err != nil {
		return err
	}
	w.top, err = w.add(dir, at)
	if err != nil || !w.recursive {
		return err
	}
	return w.addBelow(dir, at, false)
}

// add watches one directory. That the user may read it was seen when it was opened as the user.
func (w *watcher) add(dir *os.File, at string) (int32, error) {
	wd, err := unix.InotifyAddWatch(w.fd, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), watchMask)
	if errors.Is(err, unix.ENOSPC) {
		return 0, errWatches
	}
	if err != nil {
		return 0, err
	}
	if _, known := w.paths[int32(wd)]; !known && len(w.paths) >= w.f.opts.MaxWatches {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		return 0, errWatches
	}
	w.paths[int32(wd)] = at
	return int32(wd), nil
}

// addBelow watches all directories below dir, and with tell says of everything it finds that it was created.
func (w *watcher) addBelow(dir *os.File, at string, tell bool) error {
	prefix := at
	if prefix == "/" {
		prefix = ""
	}
	var tour *walk
	err := w.f.asUser(func() error {
		again, err := openDirAt(dir, ".")
		if err != nil {
			return err
		}
		tour, err = newWalk(w.ctx, again, nil, nil)
		return err
	})
	if err != nil {
		return err
	}
	defer tour.close()
	for {
		var e *entry
		var sub *os.File
		err := w.f.asUser(func() (err error) {
			for e, err = tour.next(); err == nil && e != nil; e, err = tour.next() {
				if isDir(e.st) {
					sub, _ = openDirAt(tour.top().dir, e.name) // one that the user may not read is not watched
				}
				if tell || sub != nil {
					return nil
				}
			}
			return err
		})
		if err != nil || e == nil {
			return err
		}
		if sub != nil {
			_, err = w.add(sub, prefix+"/"+e.path)
			_ = sub.Close()
			if err != nil {
				return err
			}
		}
		if tell {
			w.tell(Event{Op: EventCreate, Path: prefix + "/" + e.path, Dir: isDir(e.st)})
		}
	}
}

// tell queues an event, or notes that it could not.
func (w *watcher) tell(ev Event) {
	if ev.Op == EventModify && ev == w.last {
		return
	}
	w.last = ev
	if ev.Op != EventOverflow {
		select {
		case w.events <- ev:
			return
		default:
		}
	}
	select {
	case w.lost <- struct{}{}:
	default: // is to be told already
	}
}

// read takes events from the kernel until the file is closed or the top is gone.
func (w *watcher) read() error {
	buf := make([]byte, 64<<10)
	for !w.removed {
		deadline := time.Time{}
		if w.moved != nil {
			deadline = time.Now().Add(renamePause)
		}
		if err := w.file.SetReadDeadline(deadline); err != nil {
			return err
		}
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.leave()
			continue
		}
		if err != nil {
			return err
		}
		w.last = Event{}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			cookie := binary.NativeEndian.Uint32(b[8:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
			b = b[size:]
			w.handle(wd, mask, cookie, string(name))
		}
	}
	return nil
}

// leave tells that what was moved has not come back under another name.
func (w *watcher) leave() {
	ev := w.moved
	w.moved = nil
	if ev == nil {
		return
	}
	if ev.Dir {
		w.rebase(ev.Path, "")
	}
	w.tell(Event{Op: EventRemove, Path: ev.Path, Dir: ev.Dir})
}

// rebase gives the watches at and below a path their new one, or ends them.
func (w *watcher) rebase(old, now string) {
	for wd, p := range w.paths {
		rest, ok := strings.CutPrefix(p, old)
		if !ok || (rest != "" && rest[0] != '/') {
			continue
		}
		if now == "" {
			delete(w.paths, wd)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		} else {
			w.paths[wd] = now + rest
		}
	}
}

func (w *watcher) handle(wd int32, mask, cookie uint32, name string) {
	if mask&unix.IN_MOVED_TO == 0 || cookie != w.cookie {
		w.leave()
	}
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.tell(Event{Op: EventOverflow})
		if w.recursive { // directories made meanwhile; one too many is covered by the event
			w.enter(w.paths[w.top], false)
		}
		return
	}
	at, ok := w.paths[wd]
	if !ok {
		return
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(w.paths, wd)
	}
	if name == "" {
		gone := mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0
		if wd == w.top && gone && !w.removed {
			w.removed = true
			if w.only != "" {
				at = strings.TrimSuffix(at, "/") + "/" + w.only
			}
			w.tell(Event{Op: EventRemove, Path: at, Dir: w.only == ""})
		}
		return
	}
	ev := Event{Path: strings.TrimSuffix(at, "/") + "/" + name, Dir: mask&unix.IN_ISDIR != 0}
	if w.only != "" && name != w.only {
		// A neighbour; but what is moved to or from it may be ours.
		if mask&unix.IN_MOVED_TO != 0 {
			w.leave()
		}
		return
	}
	switch {
	case mask&unix.IN_MOVED_FROM != 0:
		w.moved, w.cookie = &ev, cookie
		return
	case mask&unix.IN_MOVED_TO != 0 && w.moved != nil:
		ev.Op, ev.From = EventRename, w.moved.Path
		w.moved = nil
		if ev.Dir {
			w.rebase(ev.Path, "") // an empty directory that was there and is replaced
			w.rebase(ev.From, ev.Path)
		}
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		ev.Op = EventCreate
	case mask&unix.IN_DELETE != 0:
		ev.Op = EventRemove
	case mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		ev.Op = EventModify
	default:
		return
	}
	w.tell(ev)
	if ev.Op == EventCreate && ev.Dir && w.recursive {
		w.enter(ev.Path, true)
	}
}

// enter watches a directory and those below it, and with tell tells what is in them already. One that is gone again, or
// unreadable, is passed over.
func (w *watcher) enter(at string, tell bool) {
	var dir *os.File
	top := w.paths[w.top]
	err := w.f.at(w.ctx, w.root, top, how{}, func(p *place) (err error) {
		if st, err := lstatAt(p.dir, p.base); err != nil || inodeOf(st) != w.id {
			return errChanged
		}
		dir, err = openBelow(p.dir, p.base+strings.TrimPrefix(at, strings.TrimSuffix(top, "/")))
		return err
	})
	if err == nil {
		if _, err = w.add(dir, at); err == nil {
			err = w.addBelow(dir, at, tell)
		}
		_ = dir.Close()
	}
	if errors.Is(err, errWatches) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		w.tell(Event{Op: EventOverflow})
	}
}

// openBelow opens a directory name by name and follows no links.
func openBelow(top *os.File, rel string) (*os.File, error) {
	dir := top
	for name := range strings.SplitSeq(strings.TrimSuffix(rel, "/"), "/") {
		sub, err := openDirAt(dir, name)
		if dir != top {
			_ = dir.Close()
		}
		if err != nil {
			return nil, err
		}
		dir = sub
	}
	return dir, nil
}
