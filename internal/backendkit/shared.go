package backendkit

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
)

// SharedFiles is a directory whose files appear in a sandbox as sandbox.SharedDir.
type SharedFiles struct{ Dir string }

// Create makes the directory, with hard links to the files of another one if that exists. Both must be on one file
// system.
func (s SharedFiles) Create(from SharedFiles) error {
	if err := makeOpen(s.Dir); err != nil || from.Dir == "" {
		return err
	}
	return filepath.WalkDir(from.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == from.Dir && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		rel, err := filepath.Rel(from.Dir, path)
		if err != nil || rel == "." {
			return err
		}
		if d.IsDir() {
			return makeOpen(filepath.Join(s.Dir, rel))
		}
		return os.Link(path, filepath.Join(s.Dir, rel))
	})
}

// makeOpen makes a directory that everyone may enter, independent of the umask.
func makeOpen(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func shareError(code v1.Code, text string, err error) error {
	return &v1.Error{Code: code, Op: "share file", Message: text, Err: err}
}

// Share implements backend.Sharer. A file that only its owner may read is copied: a link would be the same file, and
// the user inside is not its owner.
func (s SharedFiles) Share(ctx context.Context, file, name string) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return shareError(v1.CodeFileNotFound, "file not found", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return shareError(v1.CodeFileNotFound, "file not found", err)
	}
	if !info.Mode().IsRegular() {
		return shareError(v1.CodeFileNotRegular, file+" is not a regular file", nil)
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return shareError(v1.CodeNotSupported, "the sandbox was made by a version without shared files", err)
	}
	defer root.Close()
	// Everyone inside may enter the directories of the name, independent of our umask.
	err = root.MkdirAll(filepath.Dir(name), 0o755)
	for dir := filepath.Dir(name); dir != "." && err == nil; dir = filepath.Dir(dir) {
		err = root.Chmod(dir, 0o755)
	}
	if err != nil {
		return shareError(v1.CodePathInvalid, "cannot make the directories of the name inside", err)
	}
	err = fs.ErrPermission
	if info.Mode().Perm()&0o004 != 0 {
		err = os.Link(file, filepath.Join(s.Dir, name))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		err = copyInto(ctx, root, file, name)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return shareError(v1.CodeFileExists, name+" is already shared", nil)
	case errors.Is(err, fs.ErrPermission):
		return shareError(v1.CodeFilePermission, "cannot read the file", err)
	case ctx.Err() != nil:
		return shareError(v1.CodeCancelled, "cancelled", ctx.Err())
	case errors.Is(err, syscall.ENOSPC):
		return shareError(v1.CodeDiskFull, "the disk is full", err)
	}
	return shareError(v1.CodeInternal, "cannot copy the file", err)
}

// copyInto copies a file. The kernel shares the blocks if the file system supports that. The copy appears when it is
// complete, and never replaces another file.
func copyInto(ctx context.Context, root *os.Root, file, name string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	temp := filepath.Join(filepath.Dir(name), ".new-"+ids.Hex(4))
	out, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(temp) }()
	const piece = 64 << 20 // bytes copied between two checks of ctx
	for err == nil {
		if err = ctx.Err(); err == nil {
			_, err = io.CopyN(out, in, piece)
		}
	}
	if errors.Is(err, io.EOF) {
		err = out.Chmod(0o644) // independent of the umask
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return root.Link(temp, name)
}
