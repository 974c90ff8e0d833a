//go:build linux

package gvisor

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/sandbox"
)

// sharedFiles is the directory of a sandbox, or of a snapshot, whose files are shown inside as sandbox.SharedDir.
const sharedFiles = "shared"

// Pause implements backend.Pauser.
func (b *Backend) Pause(ctx context.Context, id string) error {
	e, err := b.driverOf(id, "pause")
	if err != nil {
		return err
	}
	if st, err := e.state(id); err == nil && st.Status == statusPaused {
		return nil
	}
	if err := e.pause(ctx, id); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "pause", Message: "the engine could not pause it", Err: errors.Join(err, resumePaused(ctx, e, id))}
	}
	return nil
}

// Resume implements backend.Pauser.
func (b *Backend) Resume(ctx context.Context, id string) error {
	e, err := b.driverOf(id, "resume")
	if err != nil {
		return err
	}
	if err := resumePaused(ctx, e, id); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "resume", Message: "the engine could not resume it", Err: err}
	}
	return nil
}

// driverOf gives the engine of a sandbox.
func (b *Backend) driverOf(id, op string) (*engine, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	eng, err := b.engineOf(r.Engine, op)
	if err != nil {
		return nil, err
	}
	return b.driver(eng.Path, r.Cgroup), nil
}

// Label implements backend.Labeler.
func (b *Backend) Label(_ context.Context, id string, labels map[string]string) error {
	r, err := b.load(id)
	if err != nil {
		return err
	}
	r.Spec.Labels = maps.Clone(labels)
	if err := statefile.Write(filepath.Join(b.sandboxDir(id), recordFile), r); err != nil {
		return startError(err)
	}
	return nil
}

// Share implements backend.Sharer. A file that others than its owner may not read is copied: its link would be the same file, and
// the user inside another.
func (b *Backend) Share(ctx context.Context, id, file, name string) error {
	fail := func(code sandbox.Code, text string, err error) error {
		return &sandbox.Error{Code: code, Op: "share a file", Message: text, Err: err}
	}
	if _, err := b.load(id); err != nil {
		return err
	}
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return fail(sandbox.CodeFileNotFound, "it cannot be found", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return fail(sandbox.CodeFileNotFound, "it cannot be found", err)
	}
	if !info.Mode().IsRegular() {
		return fail(sandbox.CodeFileNotRegular, file+" is not a regular file", nil)
	}
	root, err := os.OpenRoot(filepath.Join(b.sandboxDir(id), sharedFiles))
	if err != nil {
		return fail(sandbox.CodeNotSupported, "the sandbox was made by a version without shared files", err)
	}
	defer root.Close()
	if dir := filepath.Dir(name); dir != "." {
		if err := shareDir(root, dir); err != nil {
			return fail(sandbox.CodePathInvalid, "the name inside cannot be used", err)
		}
	}
	target := filepath.Join(root.Name(), name)
	if info.Mode().Perm()&0o004 != 0 {
		err := os.Link(file, target)
		if err == nil {
			return nil
		}
		if errors.Is(err, fs.ErrExist) {
			return fail(sandbox.CodeFileExists, name+" is shared already", nil)
		}
	}
	return b.shareCopy(ctx, root, file, name)
}

// shareDir makes a directory of shared files, with those above it, which everybody inside may enter whatever our umask is.
func shareDir(root *os.Root, dir string) error {
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for ; dir != "."; dir = filepath.Dir(dir) {
		if err := root.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// shareCopy copies a file; the kernel shares the blocks where the file system can. It appears when it is whole.
func (b *Backend) shareCopy(ctx context.Context, root *os.Root, file, name string) (err error) {
	fail := func(err error) error { return snapshotError(err) }
	in, err := os.Open(file)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeFilePermission, Op: "share a file", Message: "it cannot be read", Err: err}
	}
	defer in.Close()
	temp := filepath.Join(filepath.Dir(name), ".new-"+statefile.Random(4))
	out, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_ = root.Remove(temp)
		}
	}()
	const piece = 64 << 20 // between looks at ctx
	for {
		if err := ctx.Err(); err != nil {
			_ = out.Close()
			return fail(err)
		}
		_, err := io.CopyN(out, in, piece)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			_ = out.Close()
			return fail(err)
		}
	}
	if err := errors.Join(out.Chmod(0o644), out.Close()); err != nil { // whatever the umask is
		return fail(err)
	}
	if err := root.Link(temp, name); err != nil { // unlike a rename it never replaces
		if errors.Is(err, fs.ErrExist) {
			return &sandbox.Error{Code: sandbox.CodeFileExists, Op: "share a file", Message: name + " is shared already"}
		}
		return fail(err)
	}
	return root.Remove(temp)
}

// linkShared gives a new sandbox or snapshot the shared files of another, by links: both lie below one data directory.
func linkShared(from, to string) error {
	if err := makeOpen(to); err != nil || from == "" {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == from && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		if d.IsDir() {
			return makeOpen(filepath.Join(to, rel))
		}
		return os.Link(path, filepath.Join(to, rel))
	})
}

// makeOpen makes a directory that everybody may enter, whatever the umask is.
func makeOpen(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// sharedOf gives the shared files beside a checkpoint, or "" for none.
func sharedOf(checkpoint string) string {
	if checkpoint == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(checkpoint), sharedFiles)
}
