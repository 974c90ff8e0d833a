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

// split checks a path and returns its names, without "." and empty ones. ".." stays, because only a walk can resolve
// it.
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

// join is the inverse of split; the root is ".".
func join(names []string) string {
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, "/")
}

// tree is an opened root.
//
// Paths are walked name by name: each name is opened with O_PATH and O_NOFOLLOW and its type is checked; links are
// read, and their text is walked. os.Root does almost the same, but opens parents with both O_NOFOLLOW and O_DIRECTORY,
// and gVisor (as of release 20260905) then follows links: in a sandbox, links lead out of an os.Root. os.Root also
// needs read permission on directories for which the user has only search permission. openat2 with RESOLVE_BENEATH
// refuses absolute links in the whole tree.
//
// Its methods must be called as the user.
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
	dir   *os.File // opened with O_PATH, for *at calls only
	base  string   // a single name; "." if the place is the root itself
	names []string // from the root; none of them is a link, except possibly the last
}

func (p *place) close() { _ = p.dir.Close() }

func (p *place) isRoot() bool { return p.base == "." }

// path returns the path below the root, in the form of Info.Path.
func (p *place) path() string { return "/" + strings.Join(p.names, "/") }

// lookup says how a path is resolved.
type lookup struct {
	follow  bool // follow a link as last name; otherwise the place is the link itself
	mkdir   bool // make missing parents
	notRoot bool // refuse the root itself
}

// locate opens the directory that contains the last of names.
func (t *tree) locate(names []string, how lookup) (*place, error) {
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
			// Walk down again from the root: the directory may have been moved since it was opened.
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
			p.base, err = name, nil // the caller handles a missing file
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
	// The path ended in the root, in "..", or in a link to one of these: find its parent and name.
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

// enter replaces the directory of p by its subdirectory name, which must not be a link.
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

// reopen opens p.dir again by walking down from the root along p.names. It fails if one of them is a link now.
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

// locate opens root and resolves path in it. Most operations begin with it. It must be called as the user.
func locate(root, path string, how lookup) (*place, error) {
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
	if err == nil && how.notRoot && p.isRoot() {
		p.close()
		return nil, errRootItself
	}
	return p, err
}

// at resolves a path and calls op with it, both as the user. It returns the error of ctx if ctx has ended.
func (f *FS) at(ctx context.Context, root, path string, how lookup, op func(p *place) error) error {
	return f.begin(ctx, func() error {
		p, err := locate(root, path, how)
		if err != nil {
			return err
		}
		defer p.close()
		return op(p)
	})
}
