//go:build linux

package files

import (
	"context"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Bounds of a walk. They keep its memory and descriptors small, however wide and deep the tree is.
const (
	openLevels = 64     // open descriptors of a walk; parents above them are reopened through ".." on the way back
	heldNames  = 65_536 // names held over all levels
	levelNames = 8192   // names held of one directory; a larger directory is read again for the next names
	leastNames = 64     // names held of one directory when the other levels have used up heldNames
)

// inode identifies a file.
type inode struct{ dev, ino uint64 }

func inodeOf(st *stat) inode { return inode{st.Dev, st.Ino} }

// level is a directory on the path from the start of a walk to its current position.
type level struct {
	dir    *os.File // nil while closed to save descriptors
	id     inode
	path   string   // of the directory, below the start of the walk; "" for the start
	names  []string // the next names, sorted
	last   string   // the greatest name returned so far
	more   bool     // the directory has names after the last of names
	resume []string // if names[0] equals resume[0], its entry was returned before: continue below it with resume[1:]
}

// walk visits a tree in order: each directory before its content, names sorted as bytes. It does not follow links.
//
// Its methods must be called as the user. Between calls, other threads may use the descriptors.
type walk struct {
	ctx     context.Context
	deepest int // levels to visit below the start; 0: no limit
	levels  []*level
	held    int
	pending *entry // the directory returned last: next descends into it
	onError func(path string, err error)
}

// entry is one file of a walk.
type entry struct {
	path string // below the start of the walk
	name string
	st   *stat
}

func joinPath(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// newWalk starts a walk in dir and takes ownership of dir. If only is not nil, the walk visits these names of dir and
// everything below them. If after is not empty, the walk continues after the entry of that path.
func newWalk(ctx context.Context, dir *os.File, only, after []string) (*walk, error) {
	w := &walk{ctx: ctx, onError: func(string, error) {}}
	if only != nil {
		w.levels = []*level{{dir: dir, names: only}}
		return w, nil
	}
	if err := w.push(dir, "", after); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *walk) close() {
	for _, l := range w.levels {
		if l.dir != nil {
			_ = l.dir.Close()
		}
	}
	w.levels = nil
}

func (w *walk) top() *level { return w.levels[len(w.levels)-1] }

// push enters dir and takes ownership of it.
func (w *walk) push(dir *os.File, path string, after []string) error {
	st, err := fstat(dir)
	if err != nil {
		_ = dir.Close()
		return err
	}
	l := &level{dir: dir, id: inodeOf(st), path: path, resume: after}
	if err := w.load(l, true); err != nil {
		_ = dir.Close()
		return err
	}
	w.levels = append(w.levels, l)
	if n := len(w.levels) - openLevels; n > 0 {
		_ = w.levels[n-1].dir.Close()
		w.levels[n-1].dir = nil
	}
	return nil
}

// pop leaves the top directory and reopens its parent if that is closed.
func (w *walk) pop() error {
	l := w.top()
	w.levels = w.levels[:len(w.levels)-1]
	w.held -= len(l.names)
	defer func() { _ = l.dir.Close() }()
	if len(w.levels) == 0 || w.top().dir != nil {
		return nil
	}
	parent, err := openUp(l.dir, w.top().id)
	w.top().dir = parent
	return err
}

// openUp opens the parent of dir. It fails if the parent is not want, because dir may have been moved out of the tree.
func openUp(dir *os.File, want inode) (*os.File, error) {
	parent, err := openAt(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if st, err := fstat(parent); err != nil || inodeOf(st) != want {
		_ = parent.Close()
		return nil, errChanged
	}
	return parent, nil
}

// load fills l.names with the smallest names after l.last. The first load starts with l.resume[0], if there is one.
func (w *walk) load(l *level, first bool) error {
	k := min(max((heldNames-w.held)/2, leastNames), levelNames)
	from := l.last
	inclusive := false
	if first && len(l.resume) > 0 {
		from, inclusive = l.resume[0], true
	}
	names, more, err := smallest(w.ctx, l.dir, k, func(name string) bool {
		return name > from || (inclusive && name == from)
	})
	l.names, l.more = names, more
	w.held += len(names)
	return err
}

// smallest returns the k smallest names of dir for which want returns true, and whether there are more. It holds at
// most 2k names.
func smallest(ctx context.Context, dir *os.File, k int, want func(string) bool) (names []string, more bool, err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, false, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		batch, err := dir.Readdirnames(1024)
		for _, name := range batch {
			if !want(name) || (more && name > names[k-1]) {
				continue
			}
			if names = append(names, name); len(names) >= 2*k {
				slices.Sort(names)
				clear(names[k:])
				names, more = names[:k], true
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	slices.Sort(names)
	if len(names) > k {
		clear(names[k:])
		names, more = names[:k], true
	}
	return names, more, nil
}

// next returns the next entry, or nil at the end. Until the following call, w.top().dir is the directory of the entry.
func (w *walk) next() (*entry, error) {
	if e := w.pending; e != nil {
		w.pending = nil
		if err := w.descend(e.name, e.path, nil); err != nil {
			return nil, err
		}
	}
	for len(w.levels) > 0 {
		if err := w.ctx.Err(); err != nil {
			return nil, err
		}
		l := w.top()
		if len(l.names) == 0 && l.more {
			if err := w.load(l, false); err != nil {
				return nil, err
			}
		}
		if len(l.names) == 0 {
			if err := w.pop(); err != nil {
				return nil, err
			}
			continue
		}
		name := l.names[0]
		l.names, l.last = l.names[1:], name
		w.held--
		if resume := l.resume; len(resume) > 0 {
			l.resume = nil
			if resume[0] == name {
				if err := w.descend(name, joinPath(l.path, name), resume[1:]); err != nil {
					return nil, err
				}
				continue
			}
		}
		st, err := lstatAt(l.dir, name)
		path := joinPath(l.path, name)
		if err != nil {
			w.onError(path, err)
			continue
		}
		e := &entry{path: path, name: name, st: st}
		if isDir(st) {
			w.pending = e
		}
		return e, nil
	}
	return nil, nil
}

// descend enters the directory name. A directory that cannot be entered is passed to onError and skipped.
func (w *walk) descend(name, path string, after []string) error {
	if w.deepest > 0 && len(w.levels) >= w.deepest {
		return nil
	}
	dir, err := openDirAt(w.top().dir, name)
	if err == nil {
		err = w.push(dir, path, after)
	}
	if err != nil && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	if err != nil {
		w.onError(path, err)
	}
	return nil
}
