package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

const (
	maxName        = 4096 // Linux's PATH_MAX
	maxDepth       = 512  // resolving costs the square of it
	copyBuffer     = 128 << 10
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh." // AUFS's own bookkeeping, except for the next one
	whiteoutOpaque = ".wh..wh..opq"
)

// extractor unpacks layers, one after the other, below one directory.
//
// The layers are hostile until shown otherwise. Three things keep them inside: every operation goes through an [os.Root];
// parents are resolved as a chroot would (see [resolve]), so that a symlink planted by one entry cannot lead the next one
// out; and nothing is ever written through an existing name: a file is removed first and then created exclusively, so a hard
// link or symlink under its name stays untouched. Nobody else writes into the directory meanwhile.
type extractor struct {
	root       *os.Root
	maxBytes   int64
	maxEntries int64
	chown      bool // given up at the first refusal, as in a user namespace that does not map the owner

	bytes   int64 // of file content, written so far
	entries int64
	buf     []byte

	layer    map[string]bool      // resolved names that the current layer has made: whiteouts do not touch them
	cleared  map[string]bool      // directories that hold nothing of lower layers any more
	dirTimes map[string]time.Time // set at the end, since each new entry changes its directory's time

	// The parent of the last entry, since neighbours tend to follow each other. It is found again by its resolved path
	// only: what happens to an entry changes nothing above it, so that path keeps its meaning while the directory is open,
	// which a name with symlinks in it may not.
	parentPath string
	parentRoot *os.Root // nil when there is none
}

func newExtractor(root *os.Root, maxBytes, maxEntries int64) *extractor {
	return &extractor{
		root:       root,
		maxBytes:   maxBytes,
		maxEntries: maxEntries,
		chown:      os.Geteuid() == 0,
		buf:        make([]byte, copyBuffer),
		dirTimes:   map[string]time.Time{},
	}
}

// finish sets the directories' times and lets go of what is held.
func (x *extractor) finish() {
	x.forget()
	for name, t := range x.dirTimes {
		if info, err := x.root.Lstat(name); err == nil && info.IsDir() {
			_ = x.root.Chtimes(name, t, t) // a wrong time harms nobody
		}
	}
}

// forget closes the remembered parent.
func (x *extractor) forget() {
	if x.parentRoot != nil {
		x.parentRoot.Close()
		x.parentRoot = nil
	}
}

// apply unpacks one uncompressed layer on top of what is there.
func (x *extractor) apply(ctx context.Context, r io.Reader) error {
	x.layer, x.cleared = map[string]bool{}, map[string]bool{}
	defer x.forget()
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return asError(Corrupt, remedyCorrupt, fmt.Errorf("reading the layer: %w", err))
		}
		if x.entries++; x.entries > x.maxEntries {
			return errorf(TooLarge, remedyLarge, "it has more than %d files and directories", x.maxEntries)
		}
		if err := x.entry(ctx, hdr, tr); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return extractError(hdr.Name, err)
		}
	}
}

// entryName makes a layer's name relative and clean; "." is the root itself.
func entryName(name string) (string, error) {
	if len(name) >= maxName {
		return "", fmt.Errorf("its name is longer than %d bytes", maxName-1)
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("its name contains a zero byte")
	}
	name = path.Clean(strings.TrimLeft(name, "/")) // some builders write absolute names; they mean the image's root
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", errors.New("its name leads out of the image")
	}
	if strings.Count(name, "/") >= maxDepth {
		return "", fmt.Errorf("it lies more than %d directories deep", maxDepth)
	}
	return name, nil
}

func (x *extractor) entry(ctx context.Context, hdr *tar.Header, r io.Reader) error {
	name, err := entryName(hdr.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if hdr.Typeflag == tar.TypeDir {
			return x.attributes(x.root, ".", ".", hdr)
		}
		return errors.New("it would replace the root directory")
	}
	dir, base := path.Split(name)
	parent, parentPath, err := x.parent(path.Clean(dir), !strings.HasPrefix(base, whiteoutPrefix))
	if err != nil {
		return err
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		if parent == nil {
			return nil // nothing there to hide
		}
		return x.whiteout(base, parentPath)
	}
	full := path.Join(parentPath, base)

	old, err := parent.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case err != nil:
		return err
	}
	if hdr.Typeflag == tar.TypeLink {
		return x.hardlink(parent, base, full, hdr.Linkname, old)
	}
	if old != nil && !(old.IsDir() && hdr.Typeflag == tar.TypeDir) {
		if err := parent.RemoveAll(base); err != nil {
			return err
		}
		old = nil
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		if old == nil {
			if err := parent.Mkdir(base, 0o700); err != nil {
				return err
			}
		}
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse: //nolint:staticcheck // TypeRegA is what old archives have
		if err := x.file(ctx, parent, base, hdr, r); err != nil {
			return err
		}
		x.layer[full] = true
		return nil
	case tar.TypeSymlink:
		if len(hdr.Linkname) >= maxName {
			return fmt.Errorf("its target is longer than %d bytes", maxName-1)
		}
		if err := parent.Symlink(hdr.Linkname, base); err != nil {
			return err
		}
		x.layer[full] = true
		return x.owner(parent, base, hdr)
	default:
		// Devices and pipes: the sandbox has a /dev of its own. Other types carry no file.
		return nil
	}
	x.layer[full] = true
	return x.attributes(parent, base, full, hdr)
}

// parent resolves and opens the directory in which an entry lies. When create is false and it does not exist, it returns nil.
func (x *extractor) parent(name string, create bool) (*os.Root, string, error) {
	gone := func(err error) bool {
		return !create && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR))
	}
	if x.parentRoot != nil && x.parentPath == name && (!create || x.layer[name] || name == ".") {
		return x.parentRoot, x.parentPath, nil
	}
	resolved, err := resolve(x.root, name)
	if gone(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	if create {
		if err := x.mkdirAll(resolved); err != nil {
			return nil, "", err
		}
	}
	root, err := x.root.OpenRoot(resolved)
	if gone(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	x.forget()
	x.parentPath, x.parentRoot = resolved, root
	if create { // a directory that this layer writes into is this layer's
		for dir := resolved; dir != "." && !x.layer[dir]; dir = path.Dir(dir) {
			x.layer[dir] = true
		}
	}
	return root, resolved, nil
}

// mkdirAll makes directories that no layer has described. Everybody may enter them, whatever our umask says.
func (x *extractor) mkdirAll(name string) error {
	info, err := x.root.Lstat(name)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if x.entries++; x.entries > x.maxEntries { // one long name may ask for hundreds
		return errorf(TooLarge, remedyLarge, "it has more than %d files and directories", x.maxEntries)
	}
	if err := x.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	if err := x.root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return x.root.Chmod(name, 0o755)
}

// whiteout hides what lower layers have put there.
func (x *extractor) whiteout(base, parentPath string) error {
	if base == whiteoutOpaque {
		return x.hideChildren(parentPath)
	}
	if strings.HasPrefix(base, whiteoutMeta) {
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return errors.New("it is a whiteout of no name")
	}
	return x.hide(path.Join(parentPath, hidden))
}

// hide removes name except for what the current layer has put there: an opaque marker may come after its directory's files.
func (x *extractor) hide(name string) error {
	if !x.layer[name] {
		return x.root.RemoveAll(name)
	}
	info, err := x.root.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil //nolint:nilerr // what is not there is hidden already
	}
	return x.hideChildren(name)
}

func (x *extractor) hideChildren(dir string) error {
	if x.cleared[dir] { // else a layer of many markers would cost the square of their number
		return nil
	}
	x.cleared[dir] = true
	f, err := x.root.Open(dir)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := x.hide(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// hardlink links to a file that exists in the image, never through a symlink at the end of its name.
func (x *extractor) hardlink(parent *os.Root, base, full, target string, old fs.FileInfo) error {
	name, err := entryName(target)
	if err != nil || name == "." {
		return fmt.Errorf("hard link to %q, which is not inside the image", target)
	}
	dir, last := path.Split(name)
	resolved, err := resolve(x.root, dir)
	if err != nil {
		return err
	}
	source := path.Join(resolved, last)
	info, err := x.root.Lstat(source)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", target, err)
	}
	if info.IsDir() {
		return fmt.Errorf("hard link to the directory %q", target)
	}
	if source == full {
		return nil
	}
	if old != nil {
		if strings.HasPrefix(source, full+"/") {
			return fmt.Errorf("hard link to %q, which it would replace", target)
		}
		if err := parent.RemoveAll(base); err != nil {
			return err
		}
	}
	if err := x.root.Link(source, full); err != nil {
		return err
	}
	x.layer[full] = true
	return nil
}

func (x *extractor) file(ctx context.Context, parent *os.Root, base string, hdr *tar.Header, r io.Reader) error {
	if hdr.Size < 0 || hdr.Size > x.maxBytes-x.bytes { // before a byte is written: a sparse file's size costs the sender nothing
		return errorf(TooLarge, remedyLarge, "unpacked it is larger than %d bytes", x.maxBytes)
	}
	f, err := parent.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := copyAll(ctx, f, io.LimitReader(r, hdr.Size), x.buf)
	x.bytes += n
	if err != nil {
		return err
	}
	if n != hdr.Size {
		return fmt.Errorf("it has %d bytes, its header says %d", n, hdr.Size)
	}
	if err := x.chownTo(hdr, f.Chown); err != nil {
		return err
	}
	// Owner may read: the engine runs as this user. No setuid, setgid or sticky bit, and no file capabilities.
	if err := f.Chmod(fs.FileMode(hdr.Mode)&0o777 | 0o400); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if t, ok := entryTime(hdr); ok { // Python compares a source's time with its .pyc
		return parent.Chtimes(base, t, t)
	}
	return nil
}

// copyAll is io.CopyBuffer that stops when ctx ends; a single file may have gigabytes.
func copyAll(ctx context.Context, w io.Writer, r io.Reader, buf []byte) (int64, error) {
	var total int64
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return total, werr
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if err := ctx.Err(); err != nil {
			return total, err
		}
	}
}

// attributes sets a directory's owner, mode and time.
func (x *extractor) attributes(parent *os.Root, base, full string, hdr *tar.Header) error {
	if err := x.owner(parent, base, hdr); err != nil {
		return err
	}
	// Its owner can always list, enter and empty it: as an ordinary user we have to unpack into it and to remove it.
	mode := fs.FileMode(hdr.Mode)&0o777 | 0o700
	if hdr.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if err := parent.Chmod(base, mode); err != nil {
		return err
	}
	if t, ok := entryTime(hdr); ok {
		x.dirTimes[full] = t
	}
	return nil
}

func (x *extractor) owner(parent *os.Root, base string, hdr *tar.Header) error {
	return x.chownTo(hdr, func(uid, gid int) error { return parent.Lchown(base, uid, gid) })
}

func (x *extractor) chownTo(hdr *tar.Header, chown func(uid, gid int) error) error {
	if !x.chown || (hdr.Uid == 0 && hdr.Gid == 0 && os.Getegid() == 0) {
		return nil
	}
	const maxID = 1<<32 - 2 // the last one means "unchanged"
	if hdr.Uid < 0 || hdr.Gid < 0 || hdr.Uid > maxID || hdr.Gid > maxID {
		return fmt.Errorf("its owner %d:%d is no user", hdr.Uid, hdr.Gid)
	}
	err := chown(hdr.Uid, hdr.Gid)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) {
		x.chown = false
		return nil
	}
	return err
}

// entryTime returns the entry's time when a file system can hold it.
func entryTime(hdr *tar.Header) (time.Time, bool) {
	t := hdr.ModTime
	return t, t.Unix() > 0 && t.Year() < 2400
}
