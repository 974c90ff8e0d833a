//go:build linux

package files

import (
	"context"
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
// Its paths are walked name by name, each opened with O_PATH and O_NOFOLLOW and looked at; links are read and their text
// walked in turn. os.Root does much the same, but opens parents with O_NOFOLLOW and O_DIRECTORY together, and gVisor
// (as of release 20260905) follows links then: in a sandbox os.Root lets them lead out. Besides, it needs read permission
// on directories that the user may only pass through. openat2 with RESOLVE_BENEATH refuses absolute links in the whole tree.
//
// Its methods are called as the user.
type tree struct {
	dir   *os.File // opened with O_PATH
	whole bool     // the root is "/"
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
	dir, err := os.OpenFile(root+"/.", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &tree{dir: dir, whole: len(names) == 0}, nil
}

func (t *tree) close() { _ = t.dir.Close() }

// place is a name in an opened directory.
type place struct {
	dir   *os.File // opened with O_PATH: for *at calls only
	base  string   // a single name; "." if the place is the root itself
	names []string // from the root, without links; the last one may be one
}

func (p *place) close() { _ = p.dir.Close() }

func (p *place) isRoot() bool { return p.base == "." }

// path is the place below the root as Info.Path gives it.
func (p *place) path() string { return "/" + strings.Join(p.names, "/") }

// how says how a path is walked.
type how struct {
	follow bool // a link as last name is followed; otherwise the place is the link itself
	mkdir  bool // missing parents are made
	inside bool // the root itself is refused
}

// locate opens the directory that holds the last of names.
func (t *tree) locate(names []string, how how) (*place, error) {
	at, err := openPathAt(t.dir, ".")
	if err != nil {
		return nil, err
	}
	p := &place{dir: at}
	rest := slices.Clone(names)
	links, ups := 0, 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			// Going up is going down again from the root: the directory may have been moved since we came through it.
			if ups++; ups > maxUps {
				err = unix.ELOOP
			} else if n := len(p.names); n > 0 {
				p.names = p.names[:n-1]
				err = t.reopen(p)
			} else if !t.whole {
				err = errEscapes
			}
			if err != nil {
				break
			}
			continue
		}
		last := len(rest) == 0
		if last && !how.follow {
			p.base = name
			break
		}
		var st *stat
		st, err = lstatAt(p.dir, name)
		if errors.Is(err, unix.ENOENT) && last {
			p.base, err = name, nil // a missing name is the caller's business
			break
		}
		if errors.Is(err, unix.ENOENT) && how.mkdir {
			if err = unix.Mkdirat(int(p.dir.Fd()), name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				st, err = lstatAt(p.dir, name)
			}
		}
		if err != nil {
			break
		}
		if isLink(st) {
			var target string
			if target, err = readlinkAt(p.dir, name); err != nil {
				break
			}
			if links++; links > maxLinks {
				err = unix.ELOOP
				break
			}
			var next []string
			if next, err = split(target); err != nil {
				break
			}
			if strings.HasPrefix(target, "/") {
				if !t.whole {
					err = errEscapes
					break
				}
				p.names = nil
				if err = t.reopen(p); err != nil {
					break
				}
			}
			rest = append(next, rest...)
			continue
		}
		if last {
			p.base = name
			break
		}
		if err = p.enter(name); err != nil {
			break
		}
	}
	if err != nil {
		p.close()
		return nil, err
	}
	if p.base != "" {
		p.names = append(p.names, p.base)
		return p, nil
	}
	// The path ended in the root, in "..", or in a link to a place of that kind: name it by its parent.
	if n := len(p.names); n > 0 {
		p.base = p.names[n-1]
		full := p.names
		p.names = p.names[:n-1]
		if err := t.reopen(p); err != nil {
			p.close()
			return nil, err
		}
		p.names = full
		return p, nil
	}
	p.base = "."
	return p, nil
}

// enter goes down into a directory, which must not be a link.
func (p *place) enter(name string) error {
	sub, err := openPathAt(p.dir, name)
	if err != nil {
		return err
	}
	_ = p.dir.Close()
	p.dir = sub
	p.names = append(p.names, name)
	return nil
}

// reopen goes down from the root again along p.names, which were no links a moment ago and must be none.
func (t *tree) reopen(p *place) error {
	dir, err := openPathAt(t.dir, ".")
	if err != nil {
		return err
	}
	again := &place{dir: dir}
	for _, name := range p.names {
		if err := again.enter(name); err != nil {
			again.close()
			return err
		}
	}
	_ = p.dir.Close()
	p.dir, p.names = again.dir, again.names
	return nil
}

// locate is the beginning of most operations: it opens root and finds path in it. It must be called as the user.
func locate(root, path string, how how) (*place, error) {
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
	p, err := t.locate(names, how)
	if err == nil && how.inside && p.isRoot() {
		p.close()
		return nil, errRootItself
	}
	return p, err
}

// at finds a path as the user and calls op, still as the user, unless ctx has ended.
func (f *FS) at(ctx context.Context, root, path string, how how, op func(p *place) error) error {
	return f.begin(ctx, func() error {
		p, err := locate(root, path, how)
		if err != nil {
			return err
		}
		defer p.close()
		return op(p)
	})
}
