package session

import (
	"bytes"
	"context"
	"io"
	"iter"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// files is the FileSystem of a session. Each call enters the session again, so that it also works after the session was
// hibernated or restored.
type files struct {
	s    *Session
	root string
	use  bool // a call renews the idle timeout
}

var _ sandbox.FileSystem = (*files)(nil)

// Files returns the file system of the session. A call counts as use while it runs, except Watch: only its beginning
// counts.
func (s *Session) Files() sandbox.FileSystem { return &files{s: s, use: true} }

// PeekFiles is Files for a caller that must not renew the idle timeout. A call still keeps the session from hibernating
// while it runs.
func (s *Session) PeekFiles() sandbox.FileSystem { return &files{s: s} }

// KeepAwake waits for the sandbox, and wakes it if necessary. It counts as use until release is called, so the session
// does not hibernate before that.
func (s *Session) KeepAwake(ctx context.Context) (release func(), err error) {
	_, release, err = s.enter(ctx, true)
	return release, err
}

// Below implements sandbox.FileSystem.
func (f *files) Below(dir string) sandbox.FileSystem {
	return &files{s: f.s, root: v1.BelowRoot(f.root, dir), use: f.use}
}

// in returns the same part of a sandbox's file system.
func (f *files) in(sb *sandbox.Sandbox) sandbox.FileSystem {
	if f.root == "" {
		return sb.Files()
	}
	return sb.Files().Below(f.root)
}

// call runs one call.
func call[T any](ctx context.Context, f *files, do func(sandbox.FileSystem) (T, error)) (out T, err error) {
	sb, done, err := f.s.enter(ctx, f.use)
	if err != nil {
		return out, err
	}
	defer done()
	out, err = do(f.in(sb))
	return out, f.s.explain(sb, err)
}

// do runs one call without a result.
func (f *files) do(ctx context.Context, do func(sandbox.FileSystem) error) error {
	_, err := call(ctx, f, func(in sandbox.FileSystem) (struct{}, error) { return struct{}{}, do(in) })
	return err
}

// Read implements sandbox.FileSystem.
func (f *files) Read(ctx context.Context, name string, w io.Writer) (*sandbox.FileInfo, error) {
	return f.ReadRange(ctx, name, 0, 0, w)
}

// ReadRange implements sandbox.FileSystem.
func (f *files) ReadRange(
	ctx context.Context,
	name string,
	offset, limit int64,
	w io.Writer,
) (*sandbox.FileInfo, error) {
	return call(ctx, f, func(in sandbox.FileSystem) (*sandbox.FileInfo, error) {
		return in.ReadRange(ctx, name, offset, limit, w)
	})
}

// ReadAll implements sandbox.FileSystem.
func (f *files) ReadAll(ctx context.Context, name string) ([]byte, error) {
	return call(ctx, f, func(in sandbox.FileSystem) ([]byte, error) { return in.ReadAll(ctx, name) })
}

// Write implements sandbox.FileSystem.
func (f *files) Write(
	ctx context.Context,
	name string,
	r io.Reader,
	opts sandbox.WriteOptions,
) (*sandbox.FileInfo, error) {
	return call(ctx, f, func(in sandbox.FileSystem) (*sandbox.FileInfo, error) { return in.Write(ctx, name, r, opts) })
}

// WriteAll implements sandbox.FileSystem.
func (f *files) WriteAll(ctx context.Context, name string, data []byte, opts sandbox.WriteOptions) error {
	_, err := f.Write(ctx, name, bytes.NewReader(data), opts)
	return err
}

// Stat implements sandbox.FileSystem.
func (f *files) Stat(ctx context.Context, name string) (*sandbox.FileInfo, error) {
	return call(ctx, f, func(in sandbox.FileSystem) (*sandbox.FileInfo, error) { return in.Stat(ctx, name) })
}

// List implements sandbox.FileSystem.
func (f *files) List(ctx context.Context, name string, opts sandbox.ListOptions) iter.Seq2[*sandbox.FileInfo, error] {
	return func(yield func(*sandbox.FileInfo, error) bool) {
		stopped := false
		err := f.do(ctx, func(in sandbox.FileSystem) error {
			for info, err := range in.List(ctx, name, opts) {
				if err != nil {
					return err
				}
				if stopped = !yield(info, nil); stopped {
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			yield(nil, err)
		}
	}
}

// Page implements sandbox.FileSystem.
func (f *files) Page(
	ctx context.Context,
	name string,
	opts sandbox.ListOptions,
	after string,
	limit int,
) (page sandbox.FilePage, err error) {
	err = f.do(ctx, func(in sandbox.FileSystem) error {
		page, err = in.Page(ctx, name, opts, after, limit)
		return err
	})
	return page, err
}

// Mkdir implements sandbox.FileSystem.
func (f *files) Mkdir(ctx context.Context, name string, opts sandbox.MkdirOptions) error {
	return f.do(ctx, func(in sandbox.FileSystem) error { return in.Mkdir(ctx, name, opts) })
}

// Move implements sandbox.FileSystem.
func (f *files) Move(ctx context.Context, from, to string, opts sandbox.MoveOptions) error {
	return f.do(ctx, func(in sandbox.FileSystem) error { return in.Move(ctx, from, to, opts) })
}

// Remove implements sandbox.FileSystem.
func (f *files) Remove(ctx context.Context, name string, opts sandbox.RemoveOptions) error {
	return f.do(ctx, func(in sandbox.FileSystem) error { return in.Remove(ctx, name, opts) })
}

// Watch implements sandbox.FileSystem. Only its beginning counts as use. It also returns when the session leaves the
// sandbox: the session ended, was hibernated or restored, or the sandbox is lost. The code of the error shows which.
func (f *files) Watch(
	ctx context.Context,
	name string,
	opts sandbox.WatchOptions,
	fn func(sandbox.FileEvent) error,
) error {
	sb, done, err := f.s.enter(ctx, f.use)
	if err != nil {
		return err
	}
	done() // a watcher must not keep a session from hibernating
	return f.s.explain(sb, f.in(sb).Watch(ctx, name, opts, fn))
}

// Upload implements sandbox.FileSystem.
func (f *files) Upload(
	ctx context.Context,
	dir string,
	r io.Reader,
	opts sandbox.TarOptions,
) (*sandbox.TarStats, error) {
	return call(ctx, f, func(in sandbox.FileSystem) (*sandbox.TarStats, error) { return in.Upload(ctx, dir, r, opts) })
}

// Download implements sandbox.FileSystem.
func (f *files) Download(ctx context.Context, w io.Writer, names ...string) (*sandbox.TarStats, error) {
	return call(ctx, f, func(in sandbox.FileSystem) (*sandbox.TarStats, error) { return in.Download(ctx, w, names...) })
}
