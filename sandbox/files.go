package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"iter"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// files is the FileSystem of a sandbox.
type files struct {
	s    *Sandbox
	root string
}

var _ FileSystem = (*files)(nil)

// Files returns the whole file system of the sandbox.
func (s *Sandbox) Files() FileSystem { return &files{s: s} }

// Below implements FileSystem.
func (f *files) Below(dir string) FileSystem {
	return &files{s: f.s, root: v1.BelowRoot(f.root, dir)}
}

func fileInfo(w *wire.FileInfo) *FileInfo {
	return &FileInfo{
		Path:    string(w.GetPath()),
		Size:    w.GetSize(),
		Mode:    fs.FileMode(w.GetMode()),
		ModTime: time.Unix(0, w.GetMtimeNs()),
		UID:     int(w.GetUid()),
		GID:     int(w.GetGid()),
		Link:    string(w.GetLink()),
		Kind:    w.GetKind(),
	}
}

// Read implements FileSystem.
func (f *files) Read(ctx context.Context, name string, w io.Writer) (*FileInfo, error) {
	return f.ReadRange(ctx, name, 0, 0, w)
}

// ReadRange implements FileSystem.
func (f *files) ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*FileInfo, error) {
	end, err := f.download(ctx, "read file", &wire.Request{Call: &wire.Request_FileRead{FileRead: &wire.FileRead{
		Root:   []byte(f.root),
		Path:   []byte(name),
		Offset: offset,
		Limit:  limit,
	}}}, w)
	if err != nil {
		return nil, err
	}
	return fileInfo(end.GetFile()), nil
}

// ReadAll implements FileSystem.
func (f *files) ReadAll(ctx context.Context, name string) ([]byte, error) {
	return v1.ReadAll(ctx, f, name)
}

// Write implements FileSystem.
func (f *files) Write(ctx context.Context, name string, r io.Reader, opts WriteOptions) (*FileInfo, error) {
	sum := sha256.New()
	end, err := f.upload(ctx, "write file", &wire.Request{Call: &wire.Request_FileWrite{FileWrite: &wire.FileWrite{
		Root:      []byte(f.root),
		Path:      []byte(name),
		Mode:      uint32(opts.Mode.Perm()),
		Parents:   opts.Parents,
		Exclusive: opts.Exclusive,
		Append:    opts.Append,
	}}}, io.TeeReader(r, sum))
	if err != nil {
		return nil, err // sum must not be used: the last Read may still be running
	}
	info := fileInfo(end.GetFile())
	info.Name = name
	if !opts.Append {
		info.SHA256 = hex.EncodeToString(sum.Sum(nil))
	}
	return info, nil
}

// WriteAll implements FileSystem.
func (f *files) WriteAll(ctx context.Context, name string, data []byte, opts WriteOptions) error {
	_, err := f.Write(ctx, name, bytes.NewReader(data), opts)
	return err
}

// Stat implements FileSystem.
func (f *files) Stat(ctx context.Context, name string) (*FileInfo, error) {
	req := &wire.FileStat{Root: []byte(f.root), Path: []byte(name)}
	end, err := f.call(ctx, "stat", &wire.Request{Call: &wire.Request_FileStat{FileStat: req}})
	if err != nil {
		return nil, err
	}
	return fileInfo(end.GetFile()), nil
}

// List implements FileSystem.
func (f *files) List(ctx context.Context, name string, opts ListOptions) iter.Seq2[*FileInfo, error] {
	return func(yield func(*FileInfo, error) bool) {
		after := ""
		for {
			page, err := f.Page(ctx, name, opts, after, listPage)
			for _, i := range page.Files {
				if !yield(i, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if page.Next == "" {
				return
			}
			after = string(page.Next)
		}
	}
}

// listPage is the number of entries that List requests at a time.
const listPage = 1000

// Page implements FileSystem. Beside an error, the page has the entries that were received before the error.
func (f *files) Page(ctx context.Context, name string, opts ListOptions, after string, limit int) (FilePage, error) {
	var page FilePage
	if limit < 1 {
		return page, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "list files",
			Message: "the page size must be at least 1",
		}
	}
	st, err := f.s.guest().Open(ctx, &wire.Request{Call: &wire.Request_FileList{FileList: &wire.FileList{
		Root:      []byte(f.root),
		Path:      []byte(name),
		Recursive: opts.Recursive,
		Depth:     int32(opts.Depth),
		Max:       int32(min(limit, listPage)),
		After:     []byte(after),
	}}})
	if err != nil {
		return page, f.s.explain("list files", err)
	}
	stop := context.AfterFunc(ctx, st.Close)
	defer stop()
	for {
		fr, err := host.Receive(st)
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return page, f.s.explain("list files", err)
		}
		if i := fr.GetFile(); i != nil {
			page.Files = append(page.Files, fileInfo(i))
		}
		if fr.Last {
			st.Release()
			page.Next, page.Unreadable = v1.Text(fr.GetListed().GetNext()), fr.GetListed().GetUnreadable()
			if opts.Unreadable != nil {
				*opts.Unreadable += page.Unreadable
			}
			return page, nil
		}
	}
}

// Mkdir implements FileSystem.
func (f *files) Mkdir(ctx context.Context, name string, opts MkdirOptions) error {
	req := &wire.FileMkdir{Root: []byte(f.root), Path: []byte(name), Parents: opts.Parents}
	_, err := f.call(ctx, "make directory", &wire.Request{Call: &wire.Request_FileMkdir{FileMkdir: req}})
	return err
}

// Move implements FileSystem.
func (f *files) Move(ctx context.Context, from, to string, opts MoveOptions) error {
	req := &wire.FileMove{Root: []byte(f.root), From: []byte(from), To: []byte(to), Exclusive: opts.Exclusive}
	_, err := f.call(ctx, "move", &wire.Request{Call: &wire.Request_FileMove{FileMove: req}})
	return err
}

// Remove implements FileSystem.
func (f *files) Remove(ctx context.Context, name string, opts RemoveOptions) error {
	req := &wire.FileRemove{Root: []byte(f.root), Path: []byte(name), Recursive: opts.Recursive}
	_, err := f.call(ctx, "remove", &wire.Request{Call: &wire.Request_FileRemove{FileRemove: req}})
	return err
}

// Watch implements FileSystem.
func (f *files) Watch(ctx context.Context, name string, opts WatchOptions, fn func(FileEvent) error) error {
	req := &wire.FileWatch{Root: []byte(f.root), Path: []byte(name), Recursive: opts.Recursive}
	st, err := f.s.guest().Open(ctx, &wire.Request{Call: &wire.Request_FileWatch{FileWatch: req}})
	if err != nil {
		return f.s.explain("watch", err)
	}
	defer st.Close()
	st.Dedicate() // the guest waits for the end of the stream
	stop := context.AfterFunc(ctx, st.Close)
	defer stop()
	for {
		fr, err := host.Receive(st)
		if ctx.Err() != nil {
			return f.s.explain("watch", ctx.Err())
		}
		if err != nil {
			return f.s.explain("watch", err)
		}
		if e := fr.GetEvent(); e != nil {
			if err := fn(FileEvent{Op: e.Op, Path: string(e.Path), From: string(e.From)}); err != nil {
				return err
			}
		}
		if fr.Last {
			return nil
		}
	}
}

// Upload implements FileSystem.
func (f *files) Upload(ctx context.Context, dir string, r io.Reader, opts TarOptions) (*TarStats, error) {
	end, err := f.upload(ctx, "unpack", &wire.Request{Call: &wire.Request_TarIn{TarIn: &wire.TarIn{
		Root:       []byte(f.root),
		Path:       []byte(dir),
		MaxBytes:   opts.MaxBytes,
		MaxEntries: opts.MaxEntries,
		Parents:    opts.Parents,
		Exclusive:  opts.Exclusive,
	}}}, r)
	if err != nil {
		return nil, err
	}
	return tarStats(end.GetTar()), nil
}

// Download implements FileSystem.
func (f *files) Download(ctx context.Context, w io.Writer, names ...string) (*TarStats, error) {
	req := &wire.TarOut{Root: []byte(f.root)}
	for _, n := range names {
		req.Paths = append(req.Paths, []byte(n))
	}
	end, err := f.download(ctx, "pack", &wire.Request{Call: &wire.Request_TarOut{TarOut: req}}, w)
	if err != nil {
		return nil, err
	}
	return tarStats(end.GetTar()), nil
}

func tarStats(t *wire.TarStats) *TarStats {
	s := &TarStats{
		Entries:      t.GetEntries(),
		Bytes:        t.GetBytes(),
		SkippedCount: t.GetSkippedCount(),
		ChangedCount: t.GetChangedCount(),
	}
	for _, n := range t.GetSkipped() {
		s.Skipped = append(s.Skipped, TarNote{Path: v1.Text(n.Path), Reason: n.Reason})
	}
	for _, c := range t.GetChanged() {
		s.Changed = append(s.Changed, v1.Text(c))
	}
	return s
}

func (f *files) call(ctx context.Context, op string, req *wire.Request) (*wire.Frame, error) {
	fr, err := f.s.guest().Call(ctx, req)
	return fr, f.s.explain(op, err)
}

// download copies the data frames of a call to w and returns its last frame.
func (f *files) download(ctx context.Context, op string, req *wire.Request, w io.Writer) (*wire.Frame, error) {
	st, err := f.s.guest().Open(ctx, req)
	if err != nil {
		return nil, f.s.explain(op, err)
	}
	st.Dedicate() // the guest waits for the end of the stream
	stop := context.AfterFunc(ctx, st.Close)
	defer stop()
	for {
		fr, err := host.Receive(st)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			st.Close()
			return nil, f.s.explain(op, err)
		}
		if d := fr.GetData(); len(d) > 0 {
			if _, err := w.Write(d); err != nil {
				st.Close()
				return nil, &v1.Error{Code: v1.CodeInternal, Op: op, Message: "cannot write the data", Err: err}
			}
		}
		if fr.Last {
			st.Release()
			return fr, nil
		}
	}
}

// lastRead is how long a failed upload waits for the last Read of its source. A Read that blocks longer is left
// running: the caller must get the error even if the source never returns data.
const lastRead = time.Second

// upload sends r as data frames and returns the guest's answer. An error of r cancels the transfer; the guest then
// leaves no incomplete files.
func (f *files) upload(ctx context.Context, op string, req *wire.Request, r io.Reader) (*wire.Frame, error) {
	st, err := f.s.guest().Open(ctx, req)
	if err != nil {
		return nil, f.s.explain(op, err)
	}
	st.Dedicate()
	stop := context.AfterFunc(ctx, st.Close)
	defer stop()
	sent := make(chan error, 1)
	var readErr atomic.Pointer[error] // of r
	go func() { sent <- sendAll(st, r, &readErr) }()
	fr, err := host.Receive(st)
	sending := err != nil // the goroutine may still run
	if !sending {
		err = <-sent
	}
	// The error is chosen from what is known now. A later error of r or end of ctx does not matter.
	switch e := readErr.Load(); {
	case err == nil:
		st.Release()
		return fr, nil
	case ctx.Err() != nil:
		err = f.s.explain(op, ctx.Err())
	case e != nil:
		err = &v1.Error{Code: v1.CodeInternal, Op: op, Message: "cannot read the data to send", Err: *e}
	default:
		err = f.s.explain(op, err)
	}
	st.Close() // makes the next Send of the goroutine fail
	if sending {
		select {
		case <-sent:
		case <-ctx.Done():
		case <-time.After(lastRead):
		}
	}
	return nil, err
}

// sendAll sends r as data frames. It stores an error of r in readErr before it informs the guest.
func sendAll(st *wire.Stream, r io.Reader, readErr *atomic.Pointer[error]) error {
	buf := make([]byte, wire.Chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := st.Send(&wire.Frame{Body: &wire.Frame_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return st.Send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
		}
		if err != nil {
			readErr.Store(&err) // before the guest can answer
			// An error of Send does not matter: the stream is closed next.
			_ = st.Send(&wire.Frame{Body: &wire.Frame_Error{Error: &wire.Error{Code: "given_up"}}})
			return err
		}
	}
}
