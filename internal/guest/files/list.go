//go:build linux

package files

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// ListOptions are the options of List.
type ListOptions struct {
	Recursive bool
	Depth     int    // with Recursive: number of levels; 0: all
	Max       int    // entries of this page; 0: 10,000
	After     string // Next of the previous page
}

// ListResult is the result of a listing.
type ListResult struct {
	Next       string // After of the next page; empty if this is the last page
	Unreadable int    // entries of this page that could not be read, and directories that could not be entered
}

// List calls fn for the entries of a directory, sorted by name (as bytes), each directory before its content. If path
// is a link, it is followed; links below it are not.
//
// Memory is bounded for every directory: of a very large one, the smallest 8192 names are held, and it is read again
// for the next names. Pages are cut by name, so entries that are made or removed between two pages neither repeat nor
// hide other entries.
func (f *FS) List(ctx context.Context, root, path string, opts ListOptions, fn func(Info) error) (ListResult, error) {
	res, err := f.list(ctx, root, path, opts, fn)
	return res, fail("list", path, err)
}

func (f *FS) list(ctx context.Context, root, path string, opts ListOptions, fn func(Info) error) (ListResult, error) {
	var res ListResult
	if opts.Depth < 0 || opts.Max < 0 {
		return res, unix.EINVAL
	}
	var after []string // only compared, never opened, so it may be longer than maxPath
	if opts.After != "" {
		after = strings.Split(opts.After, "/")
	}
	if opts.Max == 0 {
		opts.Max = defaultListEntries
	}
	if path == "" {
		path = "/"
	}
	var w *walk
	var base string
	err := f.at(ctx, root, path, lookup{follow: true}, func(p *place) error {
		dir, err := openDirAt(p.dir, p.base)
		if err != nil {
			return err
		}
		if base = p.path(); base == "/" {
			base = ""
		}
		w, err = newWalk(ctx, dir, nil, after)
		return err
	})
	if err != nil {
		return res, err
	}
	defer w.close()
	unreadable := 0
	w.onError = func(_ string, err error) {
		replaced := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
		if !replaced { // a file that was removed or replaced meanwhile is not unreadable
			unreadable++
		}
	}
	w.deepest = 1
	if opts.Recursive {
		w.deepest = opts.Depth
	}

	const batch = 256 // entries per user switch
	listed, last := 0, ""
	type found struct {
		Info
		unreadable int // count before this entry; errors after the last entry of a page are counted on the next page
	}
	infos := make([]found, 0, batch)
	for {
		infos = infos[:0]
		end := false
		err := f.asUser(func() error {
			for len(infos) < batch && listed+len(infos) <= opts.Max { // Max+1: is there a next page?
				e, err := w.next()
				if err != nil {
					return err
				}
				if e == nil {
					end = true
					return nil
				}
				info := newInfo(base+"/"+e.path, e.st)
				if isLink(e.st) {
					info.LinkTarget, _ = readlinkAt(w.top().dir, e.name)
				}
				infos = append(infos, found{info, unreadable})
			}
			return nil
		})
		if err != nil {
			return res, err
		}
		for _, info := range infos {
			if listed == opts.Max {
				res.Next = last
				return res, nil
			}
			if err := fn(info.Info); err != nil {
				return res, err
			}
			listed++
			res.Unreadable = info.unreadable
			last = info.Path[len(base)+1:]
		}
		if end {
			res.Unreadable = unreadable
			return res, nil
		}
	}
}
