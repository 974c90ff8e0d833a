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
	maxDepth       = 512  // directories in a name; the cost of resolving a name grows with the square of its depth
	copyBuffer     = 128 << 10
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh." // metadata of AUFS, except whiteoutOpaque
	whiteoutOpaque = ".wh..wh..opq"
)

// extractor unpacks layers, one after the other, below one directory.
//
// Layers are not trusted. Three things keep their entries inside the directory:
//
//   - Every operation uses an [os.Root].
//   - Parents are resolved like after a chroot (see [resolve]), so that a symlink of one entry cannot lead the next
//     entry out of the directory.
//   - Nothing is written through an existing name. A file is removed first and then created exclusively, so that the
//     target of a hard link or symlink with that name is not changed.
//
// No other process writes into the directory meanwhile.
type extractor struct {
	root       *os.Root
	maxBytes   int64
	maxEntries int64
	chown      bool // set owners; unset when that fails, as in a user namespace that does not map the owner

	bytes   int64 // bytes of file content written so far
	entries int64
	buf     []byte

	layer    map[string]bool      // resolved names that the current layer has made: whiteouts do not remove them
	cleared  map[string]bool      // directories without entries of lower layers
	dirTimes map[string]time.Time // set at the end, because each new entry changes the time of its directory

	// The parent of the last entry is kept open, because the next entry often has the same parent. It is only reused by
	// its resolved path. An entry changes nothing above it, so a resolved path keeps its meaning while the directory is
	// open. A name with symlinks in it may change its meaning.
	parentPath string
	parentRoot *os.Root // nil: none
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

// finish sets the times of directories and closes the open parent.
func (x *extractor) finish() {
	x.closeParent()
	for name, t := range x.dirTimes {
		if info, err := x.root.Lstat(name); err == nil && info.IsDir() {
			_ = x.root.Chtimes(name, t, t) // a wrong time does no harm
		}
	}
}

// closeParent closes the open parent, if there is one.
func (x *extractor) closeParent() {
	if x.parentRoot != nil {
		x.parentRoot.Close()
		x.parentRoot = nil
	}
}

// apply unpacks one uncompressed layer over the layers below it.
func (x *extractor) apply(ctx context.Context, r io.Reader) error {
	x.layer, x.cleared = map[string]bool{}, map[string]bool{}
	defer x.closeParent()
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
			return asError(Corrupt, remedyCorrupt, fmt.Errorf("read layer: %w", err))
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

// entryName returns the name of an entry as a clean path relative to the root of the image. "." is the root itself.
func entryName(name string) (string, error) {
	if len(name) >= maxName {
		return "", fmt.Errorf("the name is longer than %d bytes", maxName-1)
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("the name contains a zero byte")
	}
	name = path.Clean(strings.TrimLeft(name, "/")) // some builders write absolute names, relative to the image's root
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", errors.New("the name leads out of the image")
	}
	if strings.Count(name, "/") >= maxDepth {
		return "", fmt.Errorf("it is more than %d directories deep", maxDepth)
	}
	return name, nil
}

// entry unpacks one entry.
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
			return nil // there is nothing to hide
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
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse: //nolint:staticcheck // old archives have TypeRegA
		if err := x.file(ctx, parent, base, hdr, r); err != nil {
			return err
		}
		x.layer[full] = true
		return nil
	case tar.TypeSymlink:
		if len(hdr.Linkname) >= maxName {
			return fmt.Errorf("the target is longer than %d bytes", maxName-1)
		}
		if err := parent.Symlink(hdr.Linkname, base); err != nil {
			return err
		}
		x.layer[full] = true
		return x.owner(parent, base, hdr)
	default:
		// Devices and pipes are skipped, because the sandbox has its own /dev. Other types have no file.
		return nil
	}
	x.layer[full] = true
	return x.attributes(parent, base, full, hdr)
}

// parent resolves and opens the directory of an entry. If the directory does not exist, parent makes it, or returns nil
// if create is false.
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
	x.closeParent()
	x.parentPath, x.parentRoot = resolved, root
	if create { // a directory that this layer writes into belongs to this layer
		for dir := resolved; dir != "." && !x.layer[dir]; dir = path.Dir(dir) {
			x.layer[dir] = true
		}
	}
	return root, resolved, nil
}

// mkdirAll makes directories for which no layer has an entry. Every user may enter them, whatever the umask is.
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
	if x.entries++; x.entries > x.maxEntries { // one long name may need hundreds of directories
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

// whiteout removes entries of lower layers.
func (x *extractor) whiteout(base, parentPath string) error {
	if base == whiteoutOpaque {
		return x.hideChildren(parentPath)
	}
	if strings.HasPrefix(base, whiteoutMeta) {
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return errors.New("whiteout without a name")
	}
	return x.hide(path.Join(parentPath, hidden))
}

// hide removes name, except entries of the current layer: an opaque marker may come after the files of its directory.
func (x *extractor) hide(name string) error {
	if !x.layer[name] {
		return x.root.RemoveAll(name)
	}
	info, err := x.root.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil //nolint:nilerr // a missing name need not be hidden
	}
	return x.hideChildren(name)
}

// hideChildren calls hide for all entries of a directory.
func (x *extractor) hideChildren(dir string) error {
	if x.cleared[dir] { // otherwise the cost of a layer would grow with the square of the number of its markers
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

// hardlink makes a hard link to a file of the image. It does not follow a symlink at the end of the target's name.
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

// file unpacks a regular file.
func (x *extractor) file(ctx context.Context, parent *os.Root, base string, hdr *tar.Header, r io.Reader) error {
	// This is checked before anything is written, because a sparse file in a small layer may have any size.
	if hdr.Size < 0 || hdr.Size > x.maxBytes-x.bytes {
		return errorf(TooLarge, remedyLarge, "the image unpacks to more than %d bytes", x.maxBytes)
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
		return fmt.Errorf("it has %d bytes, but the header says %d", n, hdr.Size)
	}
	if err := x.chownTo(hdr, f.Chown); err != nil {
		return err
	}
	// The owner can always read the file, because the engine runs as this user. The setuid, setgid and sticky bits and
	// file capabilities are dropped.
	if err := f.Chmod(fs.FileMode(hdr.Mode)&0o777 | 0o400); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if t, ok := entryTime(hdr); ok { // Python compares the time of a source file with its .pyc
		return parent.Chtimes(base, t, t)
	}
	return nil
}

// copyAll is io.CopyBuffer that stops when ctx ends, because a single file may have gigabytes.
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
	// The owner can always list, enter and empty the directory: an ordinary user must be able to unpack into it and to
	// remove it.
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

// owner sets the owner of an entry.
func (x *extractor) owner(parent *os.Root, base string, hdr *tar.Header) error {
	return x.chownTo(hdr, func(uid, gid int) error { return parent.Lchown(base, uid, gid) })
}

// chownTo calls chown with the owner of an entry. After a permission error, x no longer sets owners.
func (x *extractor) chownTo(hdr *tar.Header, chown func(uid, gid int) error) error {
	if !x.chown || (hdr.Uid == 0 && hdr.Gid == 0 && os.Getegid() == 0) {
		return nil
	}
	const maxID = 1<<32 - 2 // 1<<32 - 1 means "unchanged"
	if hdr.Uid < 0 || hdr.Gid < 0 || hdr.Uid > maxID || hdr.Gid > maxID {
		return fmt.Errorf("invalid owner %d:%d", hdr.Uid, hdr.Gid)
	}
	err := chown(hdr.Uid, hdr.Gid)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) {
		x.chown = false
		return nil
	}
	return err
}

// entryTime returns the modification time of an entry; ok is false if a file system cannot store it.
func entryTime(hdr *tar.Header) (t time.Time, ok bool) {
	t = hdr.ModTime
	return t, t.Unix() > 0 && t.Year() < 2400
}
