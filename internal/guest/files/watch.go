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
	// A rename produces two events. The second follows the first at once, unless the file has left the watched
	// directories. The kernel queues both together; the pause only matters if a read separates them.
	renamePause = 20 * time.Millisecond
	watchQueue  = 1024 // events that are queued for a slow receiver

	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY |
		unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

// EventOp is the kind of a change.
type EventOp string

// The kinds of changes.
const (
	EventReady    EventOp = "ready" // the first event: later changes are reported
	EventCreate   EventOp = "create"
	EventModify   EventOp = "modify" // content, permissions or times
	EventRemove   EventOp = "remove" // removed, or moved out of the watched directories
	EventRename   EventOp = "rename"
	EventOverflow EventOp = "overflow" // events were lost, or there are too many directories: list again
)

// Event is one change.
type Event struct {
	Op   EventOp
	Path string // below the root, as in Info
	From string // of a rename: the old path
	Dir  bool   // whether the path is a directory
}

// WatchOptions are the options of Watch.
type WatchOptions struct {
	Recursive bool // also watch the directories below, including new ones
}

// Watch calls fn for each change of a file, or in a directory. It returns when ctx ends (Kind Cancelled), when fn
// fails, or after the remove event of the watched directory (nil). Links are followed in path only.
//
// Consecutive modify events of one file are reported once. Files that appear in a new directory before it is watched
// are found by listing it, so a create may be reported twice, but is never missed. If fn is slow, events are dropped
// and fn gets an overflow event. More directories than Options.MaxWatches are Kind TooMany at the start and an overflow
// event later.
func (f *FS) Watch(ctx context.Context, root, path string, opts WatchOptions, fn func(Event) error) error {
	return fail("watch", path, f.watch(ctx, root, path, opts, fn))
}

type watcher struct {
	f         *FS
	ctx       context.Context
	file      *os.File // of inotify
	fd        int      // descriptor of file; stored because File.Fd would make the file blocking
	recursive bool
	root      string // where the top directory is looked up again. Holding it open would suppress its removal event
	id        inode  // of the top directory
	onlyName  string // if the watched path is a file: its name. Other names in the top directory are not reported
	top       int32
	paths     map[int32]string // by watch descriptor; used only by the reader while it runs

	events chan Event
	lost   chan struct{} // capacity 1: an overflow event is due

	last        Event  // the last event of this batch
	pendingMove *Event // the first half of a rename
	cookie      uint32
	topGone     bool
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
		f:         f,
		ctx:       ctx,
		file:      os.NewFile(uintptr(fd), "inotify"),
		fd:        fd,
		recursive: opts.Recursive,
		paths:     map[int32]string{},
		events:    make(chan Event, watchQueue),
		lost:      make(chan struct{}, 1),
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

// deliver calls fn for each event until the channel is closed, ctx ends or fn fails.
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
	err := w.f.at(w.ctx, root, p, lookup{follow: true}, func(place *place) error {
		st, err := lstatAt(place.dir, place.base)
		if err != nil {
			return err
		}
		at = place.path()
		name := place.base
		if !isDir(st) {
			// Watch the directory instead of the file: a file that is replaced, for example by Write, is another file.
			w.onlyName, name, at = place.base, ".", path.Dir(at)
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

// add watches one directory. The user's permission to read it was checked when it was opened as the user.
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

// addBelow watches all directories below dir. With report, it emits a create event for everything it finds.
func (w *watcher) addBelow(dir *os.File, at string, report bool) error {
	prefix := at
	if prefix == "/" {
		prefix = ""
	}
	var tree *walk
	err := w.f.asUser(func() error {
		again, err := openDirAt(dir, ".")
		if err != nil {
			return err
		}
		tree, err = newWalk(w.ctx, again, nil, nil)
		return err
	})
	if err != nil {
		return err
	}
	defer tree.close()
	for {
		var e *entry
		var sub *os.File
		err := w.f.asUser(func() (err error) {
			for e, err = tree.next(); err == nil && e != nil; e, err = tree.next() {
				if isDir(e.st) {
					sub, _ = openDirAt(tree.top().dir, e.name) // a directory that the user may not read is not watched
				}
				if report || sub != nil {
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
		if report {
			w.emit(Event{Op: EventCreate, Path: prefix + "/" + e.path, Dir: isDir(e.st)})
		}
	}
}

// emit queues an event. If the queue is full, it requests an overflow event.
func (w *watcher) emit(ev Event) {
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
	default: // an overflow event is due already
	}
}

// read reads events from the kernel until the file is closed or the top directory is gone.
func (w *watcher) read() error {
	buf := make([]byte, 64<<10)
	for !w.topGone {
		deadline := time.Time{}
		if w.pendingMove != nil {
			deadline = time.Now().Add(renamePause)
		}
		if err := w.file.SetReadDeadline(deadline); err != nil {
			return err
		}
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.endMove()
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

// endMove reports a pending move whose second half did not come as a removal.
func (w *watcher) endMove() {
	ev := w.pendingMove
	w.pendingMove = nil
	if ev == nil {
		return
	}
	if ev.Dir {
		w.rebase(ev.Path, "")
	}
	w.emit(Event{Op: EventRemove, Path: ev.Path, Dir: ev.Dir})
}

// rebase changes the path of the watches at and below old to now. If now is "", it removes the watches.
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
		w.endMove()
	}
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.emit(Event{Op: EventOverflow})
		if w.recursive { // watch directories made meanwhile; the event also covers directories over the limit
			w.watchTree(w.paths[w.top], false)
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
		if wd == w.top && gone && !w.topGone {
			w.topGone = true
			if w.onlyName != "" {
				at = strings.TrimSuffix(at, "/") + "/" + w.onlyName
			}
			w.emit(Event{Op: EventRemove, Path: at, Dir: w.onlyName == ""})
		}
		return
	}
	ev := Event{Path: strings.TrimSuffix(at, "/") + "/" + name, Dir: mask&unix.IN_ISDIR != 0}
	if w.onlyName != "" && name != w.onlyName {
		// Another file of the directory. If the watched file was moved to that name, its removal is due now.
		if mask&unix.IN_MOVED_TO != 0 {
			w.endMove()
		}
		return
	}
	switch {
	case mask&unix.IN_MOVED_FROM != 0:
		w.pendingMove, w.cookie = &ev, cookie
		return
	case mask&unix.IN_MOVED_TO != 0 && w.pendingMove != nil:
		ev.Op, ev.From = EventRename, w.pendingMove.Path
		w.pendingMove = nil
		if ev.Dir {
			w.rebase(ev.Path, "") // the rename replaced an empty directory
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
	w.emit(ev)
	if ev.Op == EventCreate && ev.Dir && w.recursive {
		w.watchTree(ev.Path, true)
	}
}

// watchTree watches a directory and those below it. With report, it emits create events for their content. Directories
// that have disappeared or are unreadable are skipped.
func (w *watcher) watchTree(at string, report bool) {
	var dir *os.File
	top := w.paths[w.top]
	err := w.f.at(w.ctx, w.root, top, lookup{}, func(p *place) (err error) {
		if st, err := lstatAt(p.dir, p.base); err != nil || inodeOf(st) != w.id {
			return errChanged
		}
		dir, err = openBelow(p.dir, p.base+strings.TrimPrefix(at, strings.TrimSuffix(top, "/")))
		return err
	})
	if err == nil {
		if _, err = w.add(dir, at); err == nil {
			err = w.addBelow(dir, at, report)
		}
		_ = dir.Close()
	}
	if errors.Is(err, errWatches) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		w.emit(Event{Op: EventOverflow})
	}
}

// openBelow opens a directory by walking rel name by name. It does not follow links.
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
