//go:build linux

package files

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// split checks a path and cuts it into its names, without "." and empty ones. ".." stays: only a walk can say where it leads.
func split(p string) ([]string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return nil, errNUL
	}
	if len(p) > maxPath {
		return nil, unix.ENAMETOOLONG
	}
	var names []string
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxName {
			return nil, unix.ENAMETOOLONG
		}
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names, nil
}

// join is split's inverse; the root is ".".
func join(names []string) string {
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, "/")
}

// tree is an opened root.
//
// Its methods are called as the user.
type tree struct {
	root  *os.Root
	whole bool // the root is "/"
}

func openTree(root string) (*tree, error) {
	if root == "" {
		root = "/"
	}
	if !strings.HasPrefix(root, "/") {
		return nil, unix.EINVAL
	}
	names, err := split(root)
	if err != nil {
		return nil, err
	}
	r, err := os.OpenRoot(root + "/.") // "/." makes a FIFO an error instead of a wait
	if err != nil {
		return nil, err
	}
	return &tree{root: r, whole: len(names) == 0}, nil
}

func (t *tree) close() { _ = t.root.Close() }

// place is a name in an opened directory.
type place struct {
	dir   *os.File // opened with O_PATH: for *at calls only
	base  string   // a single name; "." if the place is the root itself
	names []string // from the root; without links only where they had to be resolved
}

func (p *place) close() { _ = p.dir.Close() }

func (p *place) isRoot() bool { return p.base == "." }

// path is the place below the root as Info.Path gives it.
func (p *place) path() string { return "/" + strings.Join(p.names, "/") }

// locate opens the directory that holds the last of names. With follow, a link of that name is resolved first; otherwise
// the place is the link itself.
func (t *tree) locate(names []string, follow bool) (*place, error) {
	var err error
	if slices.Contains(names, "..") {
		if names, err = t.resolve(names, false); err != nil {
			return nil, err
		}
	}
	p, err := t.at(names)
	if t.whole && errors.Is(err, unix.ELOOP) {
		if names, err = t.resolve(names, follow); err != nil {
			return nil, err
		}
		p, err = t.at(names)
	}
	if err != nil || !follow || p.isRoot() {
		return p, err
	}
	if st, err := lstatAt(p.dir, p.base); err != nil || !isLink(st) {
		return p, nil // a missing name is the caller's business
	}
	p.close()
	if names, err = t.resolve(names, true); err != nil {
		return nil, err
	}
	return t.at(names)
}

// at opens the parent of names. Parents that are links are followed below an ordinary root and are ELOOP in the whole tree.
func (t *tree) at(names []string) (*place, error) {
	p := &place{base: ".", names: names}
	parent := "."
	if n := len(names); n > 0 {
		parent, p.base = join(names[:n-1]), names[n-1]
	}
	var err error
	p.dir, err = t.openPath(parent)
	return p, err
}

// openPath opens a directory with O_PATH, which takes no read permission on it.
func (t *tree) openPath(name string) (*os.File, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if t.whole {
		how := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS}
		var fd int
		err := retry(func() (err error) {
			fd, err = unix.Openat2(unix.AT_FDCWD, "/"+name, &how)
			return err
		})
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.ENOSYS && err != unix.EPERM { // EPERM: seccomp filters that do not know the call
			return nil, err
		}
		if resolved, err := t.resolve(strings.Split(name, "/"), true); err != nil {
			return nil, err
		} else if resolved := join(resolved); name != "." && resolved != name {
			return nil, unix.ELOOP
		}
	}
	return t.root.OpenFile(name, flags, 0)
}

// resolve replaces links by where they lead, in text; the last name only with follow. What does not exist is kept as it is.
// The result is only a name: it is opened with the same care as any other.
func (t *tree) resolve(names []string, follow bool) ([]string, error) {
	var done []string
	links, missing := 0, false
	rest := slices.Clone(names)
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case ".", "":
			continue
		case "..":
			if missing {
				return nil, unix.ENOENT
			}
			if len(done) > 0 {
				done = done[:len(done)-1]
			} else if !t.whole {
				return nil, errEscapes
			}
			continue
		}
		done = append(done, name)
		if missing || (len(rest) == 0 && !follow) {
			continue
		}
		var target string
		var err error
		if t.whole {
			target, err = os.Readlink("/" + join(done))
		} else {
			target, err = t.root.Readlink(join(done))
		}
		switch {
		case errors.Is(err, unix.EINVAL): // not a link
			continue
		case errors.Is(err, unix.ENOENT):
			missing = true
			continue
		case err != nil:
			return nil, err
		}
		if links++; links > maxLinks {
			return nil, unix.ELOOP
		}
		done = done[:len(done)-1]
		if strings.HasPrefix(target, "/") {
			if !t.whole {
				return nil, errEscapes
			}
			done = done[:0]
		}
		next, err := split(target)
		if err != nil {
			return nil, err
		}
		rest = append(next, rest...)
	}
	return done, nil
}

// locate is the beginning of most operations: it opens root and finds path in it. It must be called as the user.
func locate(root, path string, follow bool) (*place, error) {
	if path == "" {
		return nil, errEmpty
	}
	names, err := split(path)
	if err != nil {
		return nil, err
	}
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	defer t.close()
	return t.locate(names, follow)
}

// mkdirAll makes the missing directories of names. In the whole tree they are resolved first, so that absolute links work.
func (t *tree) mkdirAll(names []string, perm os.FileMode) error {
	if t.whole || slices.Contains(names, "..") {
		var err error
		if names, err = t.resolve(names, true); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return t.root.MkdirAll(join(names), perm)
}
