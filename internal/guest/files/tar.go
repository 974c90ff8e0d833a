//go:build linux

package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	linksHeld = 65_536   // files with several names that TarOut remembers; further ones are stored once per name
	smallFile = 64 << 10 // files up to this size are read before they are created, which saves a user switch
)

// TarOptions are the options of a tar stream in either direction.
type TarOptions struct {
	MaxBytes   int64 // of file data, holes included; 0: 16 GiB
	MaxEntries int64 // including skipped entries; 0: 1,000,000

	// For TarIn only.
	MkdirParents bool // make the directory to unpack into
	Exclusive    bool // replace nothing; only existing directories are accepted: Kind Exists
	// Owners gives files the owners and the sticky bits of the archive. The user must be root.
	Owners bool
}

// Note names a skipped entry and the reason.
type Note struct{ Path, Reason string }

// Stats is the result of a tar stream. Skipped and Changed list at most 1000 entries each.
type Stats struct {
	Entries      int64 // entries stored or unpacked
	Bytes        int64 // of file data
	Skipped      []Note
	SkippedCount int64
	Changed      []string // TarOut: files that shrank or grew while they were read
	ChangedCount int64
}

func (s *Stats) skip(path, reason string) {
	if s.SkippedCount++; len(s.Skipped) < maxReports {
		s.Skipped = append(s.Skipped, Note{path, reason})
	}
}

func (s *Stats) change(path string) {
	if s.ChangedCount++; len(s.Changed) < maxReports {
		s.Changed = append(s.Changed, path)
	}
}

func (o TarOptions) withDefaults() TarOptions {
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = defaultMaxEntries
	}
	return o
}

// TarOut writes an archive of paths and everything below them to w. Entries are named by their path below the root; the
// root itself has no entry. Symbolic links and hard links are stored as links.
//
// FIFOs, sockets, devices, unreadable files and files that disappear are skipped and listed in Stats. A file that grows
// meanwhile is stored with the size it had when it was opened; a file that shrinks is padded with zeros; Stats lists
// both. An element of paths that does not exist is Kind NotFound.
func (f *FS) TarOut(ctx context.Context, root string, paths []string, w io.Writer, opts TarOptions) (Stats, error) {
	a := f.newArchiver(ctx, w, opts)
	for _, p := range paths {
		if err := a.addPath(root, p); err != nil {
			return a.stats, fail("tar", p, err)
		}
	}
	return a.stats, fail("tar", root, a.tw.Close())
}

type archiver struct {
	f     *FS
	ctx   context.Context
	tw    *tar.Writer
	opts  TarOptions
	stats Stats
	seen  int64
	links map[inode]string
}

func (f *FS) newArchiver(ctx context.Context, w io.Writer, opts TarOptions) *archiver {
	return &archiver{f: f, ctx: ctx, tw: tar.NewWriter(w), opts: opts.withDefaults(), links: map[inode]string{}}
}

func (a *archiver) addPath(root, p string) error {
	if p == "" {
		p = "/"
	}
	var at *place
	err := a.f.asUser(func() (err error) {
		if at, err = locate(root, p, lookup{}); err != nil {
			return err
		}
		if _, err = lstatAt(at.dir, at.base); err != nil {
			at.close()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer at.close()
	prefix := ""
	if n := len(at.names); n > 1 {
		prefix = join(at.names[:n-1]) + "/"
	}
	return a.add(at, func(base string) string { return prefix + base })
}

// add archives one place and everything below it. name maps the last name of its path to its name in the archive.
func (a *archiver) add(at *place, name func(string) string) error {
	var w *walk
	err := a.f.asUser(func() error {
		dir, err := openPathAt(at.dir, ".")
		only := []string{at.base}
		if err == nil && at.isRoot() {
			_ = dir.Close()
			only = nil
			dir, err = openDirAt(at.dir, ".")
		}
		if err != nil {
			return err
		}
		w, err = newWalk(a.ctx, dir, only, nil)
		return err
	})
	if err != nil {
		return err
	}
	defer w.close()
	rename := func(p string) string {
		if at.isRoot() {
			return p
		}
		return name(at.base) + p[len(at.base):]
	}
	w.onError = func(p string, err error) { a.stats.skip(rename(p), cause(err).Error()) }
	for {
		var e *entry
		var file *os.File
		var target string
		err := a.f.asUser(func() (err error) {
			if e, err = w.next(); err != nil || e == nil {
				return err
			}
			var ferr error
			switch {
			case isRegular(e.st):
				var st *stat
				if file, st, ferr = openRegularAt(w.top().dir, e.name, unix.O_RDONLY); ferr == nil {
					e.st = st
				}
			case isLink(e.st):
				target, ferr = readlinkAt(w.top().dir, e.name)
			}
			if ferr != nil {
				w.onError(e.path, ferr)
				e.st = nil
			}
			return nil
		})
		if err != nil || e == nil {
			return err
		}
		if a.seen++; a.seen > a.opts.MaxEntries {
			err = errMaxEntries
		} else if e.st != nil {
			err = a.put(rename(e.path), e.st, file, target)
		}
		if file != nil {
			_ = file.Close()
		}
		if err != nil {
			return err
		}
	}
}

// put writes one entry. For a regular file, file is open.
func (a *archiver) put(name string, st *stat, file *os.File, target string) error {
	info := newInfo(name, st)
	h := &tar.Header{
		Name:    name,
		Mode:    int64(st.Mode & 0o7777),
		Uid:     info.UID,
		Gid:     info.GID,
		ModTime: info.ModTime,
		Format:  tar.FormatPAX,
	}
	switch info.Kind {
	case "dir":
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case "symlink":
		h.Typeflag = tar.TypeSymlink
		h.Linkname = target
	case "file":
		h.Typeflag = tar.TypeReg
		h.Size = st.Size
		if st.Nlink > 1 {
			if first, ok := a.links[inodeOf(st)]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			} else if len(a.links) < linksHeld {
				a.links[inodeOf(st)] = name
			}
		}
	default:
		a.stats.skip(name, info.Kind)
		return nil
	}
	if h.Size > a.opts.MaxBytes-a.stats.Bytes {
		return errMaxBytes
	}
	if err := a.tw.WriteHeader(h); err != nil {
		return err
	}
	a.stats.Entries++
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	n, err := copyN(a.ctx, a.tw, file, h.Size)
	a.stats.Bytes += h.Size
	if err != nil {
		return err
	}
	changed := n < h.Size
	if changed {
		if _, err := copyN(a.ctx, a.tw, zeros{}, h.Size-n); err != nil {
			return err
		}
	} else if now, err := fstat(file); err != nil || now.Size != st.Size {
		changed = true
	}
	if changed {
		a.stats.change(name)
	}
	return nil
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TarIn unpacks an archive below path, a directory. Entries cannot leave that directory: a name with ".." is Kind
// Escapes, a leading slash means the directory, and links that lead out of it (such as absolute links) are created but
// never followed, neither those of the archive nor existing ones.
//
// Files replace existing names instead of being written into them, so TarIn never writes through a symbolic or hard
// link. The setuid and setgid bits are dropped; without Owners, so are owners and sticky bits. FIFOs, devices and
// unknown entries are skipped and listed in Stats. TarIn stops at the first invalid entry or exceeded limit; entries
// unpacked by then stay, except for an incomplete file.
func (f *FS) TarIn(ctx context.Context, root, path string, r io.Reader, opts TarOptions) (Stats, error) {
	if path == "" {
		path = "/"
	}
	var dir *os.File
	var err error
	if opts.MkdirParents {
		err = f.asUser(func() error { return mkdir(root, path, true) })
	}
	if err == nil {
		err = f.at(ctx, root, path, lookup{follow: true}, func(p *place) (err error) {
			dir, err = openPathAt(p.dir, p.base)
			return err
		})
	}
	if err != nil {
		return Stats{}, fail("untar", path, err)
	}
	defer func() { _ = dir.Close() }()
	e := f.newExtractor(ctx, dir, r, opts)
	err = e.run()
	return e.stats, fail("untar", path, err)
}

type dirMeta struct {
	names  []string
	mode   uint32
	header *tar.Header
}

type extractor struct {
	f     *FS
	ctx   context.Context
	dest  tree
	tr    *tar.Reader
	opts  TarOptions
	stats Stats
	dirs  []dirMeta // modes and times, set after the last entry is unpacked
	buf   []byte
}

func (f *FS) newExtractor(ctx context.Context, dest *os.File, r io.Reader, opts TarOptions) *extractor {
	return &extractor{f: f, ctx: ctx, dest: tree{dir: dest}, tr: tar.NewReader(r), opts: opts.withDefaults()}
}

func (e *extractor) run() error {
	var seen int64
	for {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		h, err := e.tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // entryName checks the names
			return err
		}
		if seen++; seen > e.opts.MaxEntries {
			return errMaxEntries
		}
		if err := e.entry(h); err != nil {
			return fail("untar", h.Name, err)
		}
	}
	return e.f.asUser(func() error {
		for i := len(e.dirs) - 1; i >= 0; i-- {
			d := e.dirs[i]
			p, err := e.dest.locate(d.names, lookup{})
			if err != nil {
				continue // a later entry or the user has replaced it
			}
			dir, err := openDirAt(p.dir, p.base)
			if err == nil {
				if err = e.own(p, d.header); err == nil { // a change of the owner may change the mode
					err = unix.Fchmod(int(dir.Fd()), d.mode)
				}
				setTime(p, d.header.ModTime)
				_ = dir.Close()
			}
			p.close()
			if err != nil && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOENT) {
				return fail("untar", join(d.names), err)
			}
		}
		return nil
	})
}

// setTime sets the modification time. It ignores errors, such as a time that the file system cannot store.
func setTime(p *place, t time.Time) {
	ts, err := unix.TimeToTimespec(t)
	if err == nil {
		_ = unix.UtimesNanoAt(int(p.dir.Fd()), p.base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// own gives a file, directory or link the owner of its entry, with Owners.
func (e *extractor) own(p *place, h *tar.Header) error {
	if !e.opts.Owners {
		return nil
	}
	return unix.Fchownat(int(p.dir.Fd()), p.base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
}

// entryName splits and checks the name of an entry.
func entryName(name string) ([]string, error) {
	if name == "" {
		return nil, errEmpty
	}
	names, err := split(name)
	if err == nil && slices.Contains(names, "..") {
		err = errEscapes
	}
	return names, err
}

func (e *extractor) entry(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	names, err := entryName(h.Name)
	if err != nil {
		return err
	}
	mode := uint32(h.Mode & 0o777)
	if e.opts.Owners {
		mode = uint32(h.Mode & 0o1777)
	}
	if len(names) == 0 && h.Typeflag != tar.TypeDir {
		return errRootItself
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if len(names) == 0 {
			return nil // an archive does not change the directory it is unpacked into
		}
		if err := e.put(names, e.mkdir); err != nil {
			return err
		}
		e.dirs = append(e.dirs, dirMeta{names, mode, h})
	case tar.TypeReg, tar.TypeGNUSparse:
		if h.Size > e.opts.MaxBytes-e.stats.Bytes {
			return errMaxBytes
		}
		if err := e.file(names, mode, h); err != nil {
			return err
		}
		e.stats.Bytes += h.Size
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.IndexByte(h.Linkname, 0) >= 0 {
			return unix.EINVAL
		}
		if len(h.Linkname) > maxPath {
			return unix.ENAMETOOLONG
		}
		err := e.put(names, func(p *place) error {
			if err := unix.Symlinkat(h.Linkname, int(p.dir.Fd()), p.base); err != nil {
				return err
			}
			return e.own(p, h)
		})
		if err != nil {
			return err
		}
	case tar.TypeLink:
		if err := e.link(names, h.Linkname); err != nil {
			return err
		}
	default:
		e.stats.skip(h.Name, typeName(h.Typeflag))
		return nil
	}
	e.stats.Entries++
	return nil
}

func typeName(flag byte) string {
	switch flag {
	case tar.TypeFifo:
		return "fifo"
	case tar.TypeChar, tar.TypeBlock:
		return "device"
	}
	return "entry of type " + strconv.QuoteRune(rune(flag))
}

// put calls place as the user.
func (e *extractor) put(names []string, create func(*place) error) error {
	return e.f.asUser(func() error { return e.place(names, create) })
}

// place makes the missing parents of a name and calls create for it. If the name exists, place removes it and retries,
// except with Exclusive.
func (e *extractor) place(names []string, create func(*place) error) error {
	p, err := e.dest.locate(names, lookup{mkdir: true})
	if err != nil {
		return err
	}
	defer p.close()
	for range 4 { // one existing name, and retries in case another process interferes
		if err = create(p); !errors.Is(err, unix.EEXIST) || e.opts.Exclusive {
			return err
		}
		if rerr := unlink(p.dir, p.base); rerr != nil && !errors.Is(rerr, unix.ENOENT) {
			return rerr
		}
	}
	return err
}

// mkdir makes a directory with a mode that allows filling it. run sets its final mode at the end.
func (e *extractor) mkdir(p *place) error {
	err := unix.Mkdirat(int(p.dir.Fd()), p.base, 0o700)
	if err == unix.EEXIST {
		if st, serr := lstatAt(p.dir, p.base); serr == nil && isDir(st) {
			return nil
		}
	}
	return err
}

// link makes a hard link to a file that exists or was unpacked before. If target is a symbolic link, the link itself is
// linked.
func (e *extractor) link(names []string, target string) error {
	old, err := entryName(target)
	if err != nil {
		return err
	}
	return e.f.asUser(func() error {
		from, err := e.dest.locate(old, lookup{})
		if err != nil {
			return err
		}
		defer from.close()
		st, err := lstatAt(from.dir, from.base)
		if err != nil {
			return err
		}
		if isDir(st) {
			return unix.EISDIR
		}
		return e.place(names, func(p *place) error {
			if there, err := lstatAt(p.dir, p.base); err == nil && inodeOf(there) == inodeOf(st) {
				return nil // both names are the same file already; removing one first could remove the only one
			}
			return unix.Linkat(int(from.dir.Fd()), from.base, int(p.dir.Fd()), p.base, 0)
		})
	})
}

func (e *extractor) file(names []string, mode uint32, h *tar.Header) error {
	var p *place
	var file *os.File
	defer func() {
		if p != nil {
			p.close()
		}
	}()
	create := func() error {
		return e.place(names, func(at *place) (err error) {
			if file, err = openAt(at.dir, at.base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600); err != nil {
				return err
			}
			dir, err := openPathAt(at.dir, ".") // place closes at
			if err != nil {
				_ = file.Close()
				return err
			}
			p = &place{dir: dir, base: at.base}
			return nil
		})
	}
	finish := func(err error) error {
		if err == nil {
			err = e.own(p, h)
		}
		if err == nil {
			err = unix.Fchmod(int(file.Fd()), mode)
		}
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = unix.Unlinkat(int(p.dir.Fd()), p.base, 0)
			return err
		}
		setTime(p, h.ModTime)
		return nil
	}
	if h.Size <= smallFile {
		if e.buf == nil {
			e.buf = make([]byte, smallFile)
		}
		data := e.buf[:h.Size]
		if _, err := io.ReadFull(e.tr, data); err != nil {
			if err == io.EOF { // the archive ends before the first byte of the file
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		return e.f.asUser(func() error {
			if err := create(); err != nil {
				return err
			}
			_, err := file.Write(data)
			return finish(err)
		})
	}
	if err := e.f.asUser(create); err != nil {
		return err
	}
	n, err := copyN(e.ctx, file, e.tr, h.Size)
	if err == nil && n < h.Size {
		err = io.ErrUnexpectedEOF
	}
	return e.f.asUser(func() error { return finish(err) })
}
