package sandbox

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"iter"
	"path"
	"sync/atomic"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Files reads and writes the files of a sandbox, with the rights of the user that code
// runs as there. Paths are absolute, or relative to the root it was made with, and cannot
// leave that root, whatever links lie there. Names are bytes: they may hold anything but NUL.
type Files struct {
	s    *Sandbox
	root string
}

// Files returns access to the whole file system of the sandbox.
func (s *Sandbox) Files() *Files { return &Files{s: s} }

// Below returns access that is confined to a directory.
func (f *Files) Below(dir string) *Files { return &Files{s: f.s, root: path.Join("/", f.root, dir)} }

// FileInfo describes a file.
type FileInfo struct {
	Path    string      `json:"path"`
	Size    int64       `json:"size"`
	Mode    fs.FileMode `json:"mode"`
	ModTime time.Time   `json:"mod_time"`
	UID     int         `json:"uid"`
	GID     int         `json:"gid"`
	Link    string      `json:"link,omitempty"` // target of a symbolic link
	Kind    string      `json:"kind"`           // file, dir, symlink, fifo, socket, device
}

func fileInfo(w *wire.FileInfo) *FileInfo {
	return &FileInfo{
		Path: string(w.GetPath()), Size: w.GetSize(), Mode: fs.FileMode(w.GetMode()), ModTime: time.Unix(0, w.GetMtimeNs()),
		UID: int(w.GetUid()), GID: int(w.GetGid()), Link: string(w.GetLink()), Kind: w.GetKind(),
	}
}

// Read copies a regular file to w.
func (f *Files) Read(ctx context.Context, name string, w io.Writer) (*FileInfo, error) {
	return f.ReadRange(ctx, name, 0, 0, w)
}

// ReadRange copies limit bytes from offset on; limit 0: up to the size the file has at the beginning.
func (f *Files) ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*FileInfo, error) {
	end, err := f.download(ctx, "read file", &wire.Request{Call: &wire.Request_FileRead{FileRead: &wire.FileRead{
		Root: []byte(f.root), Path: []byte(name), Offset: offset, Limit: limit,
	}}}, w)
	if err != nil {
		return nil, err
	}
	return fileInfo(end.GetFile()), nil
}

// ReadAll returns a whole file; one of more than 64 MiB is CodeTooLarge.
func (f *Files) ReadAll(ctx context.Context, name string) ([]byte, error) {
	const most = 64 << 20
	var b bytes.Buffer
	info, err := f.ReadRange(ctx, name, 0, most, &b)
	if err != nil {
		return nil, err
	}
	if info.Size > most {
		return nil, &Error{Code: CodeTooLarge, Op: "read file", Message: "the file is larger than 64 MiB", Remedy: "use Read"}
	}
	return b.Bytes(), nil
}

// WriteOptions says how a file is written.
type WriteOptions struct {
	Mode      fs.FileMode // permission bits; 0: those of the file before, or 0644
	Parents   bool        // make missing directories
	Exclusive bool        // never overwrite
	Append    bool        // add to the end, not atomically
}

// Write makes or replaces a file, whole or not at all. It has read r for the last time when it returns, but for one Read that did not return within a second
// of a failure, or when ctx ended.
func (f *Files) Write(ctx context.Context, name string, r io.Reader, opts WriteOptions) (*FileInfo, error) {
	end, err := f.upload(ctx, "write file", &wire.Request{Call: &wire.Request_FileWrite{FileWrite: &wire.FileWrite{
		Root: []byte(f.root), Path: []byte(name), Mode: uint32(opts.Mode.Perm()), Parents: opts.Parents, Exclusive: opts.Exclusive, Append: opts.Append,
	}}}, r)
	if err != nil {
		return nil, err
	}
	return fileInfo(end.GetFile()), nil
}

// WriteAll is Write for what is in memory.
func (f *Files) WriteAll(ctx context.Context, name string, data []byte, opts WriteOptions) error {
	_, err := f.Write(ctx, name, bytes.NewReader(data), opts)
	return err
}

// Stat describes a file; a symbolic link is not followed.
func (f *Files) Stat(ctx context.Context, name string) (*FileInfo, error) {
	end, err := f.call(ctx, "stat", &wire.Request{Call: &wire.Request_FileStat{FileStat: &wire.FileStat{Root: []byte(f.root), Path: []byte(name)}}})
	if err != nil {
		return nil, err
	}
	return fileInfo(end.GetFile()), nil
}

// ListOptions says what to list.
type ListOptions struct {
	Recursive bool
	Depth     int // with Recursive; 0: all
	// Unreadable, if not nil, counts up for each entry that could not be looked at and each directory that could not be entered: the
	// listing lacks them.
	Unreadable *int64
}

// List returns the entries of a directory, sorted by name, page by page behind the scenes.
func (f *Files) List(ctx context.Context, name string, opts ListOptions) iter.Seq2[*FileInfo, error] {
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
			after = page.Next
		}
	}
}

// listPage is how many entries List asks for at a time.
const listPage = 1000

// FilePage is a part of a directory.
type FilePage struct {
	Files      []*FileInfo
	Next       string // names the page after this one; empty: this is the last
	Unreadable int64  // entries of this page that could not be looked at, and directories that could not be entered
}

// Page returns at most limit entries of a directory behind after, which is empty for the first page and then the Next of the page before.
// Entries made or removed between two pages neither repeat nor hide others. With an error the page has what came before it.
func (f *Files) Page(ctx context.Context, name string, opts ListOptions, after string, limit int) (FilePage, error) {
	var page FilePage
	if limit < 1 {
		return page, &Error{Code: CodeInvalidRequest, Op: "list files", Message: "a page of no entries"}
	}
	st, err := f.s.guest().Open(ctx, &wire.Request{Call: &wire.Request_FileList{FileList: &wire.FileList{
		Root: []byte(f.root), Path: []byte(name), Recursive: opts.Recursive, Depth: int32(opts.Depth), Max: int32(min(limit, listPage)), After: []byte(after),
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
			page.Next, page.Unreadable = string(fr.GetListed().GetNext()), fr.GetListed().GetUnreadable()
			if opts.Unreadable != nil {
				*opts.Unreadable += page.Unreadable
			}
			return page, nil
		}
	}
}

// Mkdir makes a directory, with its parents if asked.
func (f *Files) Mkdir(ctx context.Context, name string, parents bool) error {
	_, err := f.call(ctx, "make directory", &wire.Request{Call: &wire.Request_FileMkdir{FileMkdir: &wire.FileMkdir{Root: []byte(f.root), Path: []byte(name), Parents: parents}}})
	return err
}

// Move renames; with exclusive it never replaces.
func (f *Files) Move(ctx context.Context, from, to string, exclusive bool) error {
	_, err := f.call(ctx, "move", &wire.Request{Call: &wire.Request_FileMove{FileMove: &wire.FileMove{Root: []byte(f.root), From: []byte(from), To: []byte(to), Exclusive: exclusive}}})
	return err
}

// Remove removes a file, a link or an empty directory, or with recursive a whole tree.
func (f *Files) Remove(ctx context.Context, name string, recursive bool) error {
	_, err := f.call(ctx, "remove", &wire.Request{Call: &wire.Request_FileRemove{FileRemove: &wire.FileRemove{Root: []byte(f.root), Path: []byte(name), Recursive: recursive}}})
	return err
}

// FileEvent is a change that Watch has seen. The first is always "ready"; "overflow"
// says that some were missed.
type FileEvent struct {
	Op   string // ready, create, modify, remove, rename, overflow
	Path string
	From string // of a rename
}

// Watch calls fn for changes below a path until ctx ends or fn returns an error.
func (f *Files) Watch(ctx context.Context, name string, recursive bool, fn func(FileEvent) error) error {
	st, err := f.s.guest().Open(ctx, &wire.Request{Call: &wire.Request_FileWatch{FileWatch: &wire.FileWatch{Root: []byte(f.root), Path: []byte(name), Recursive: recursive}}})
	if err != nil {
		return f.s.explain("watch", err)
	}
	defer st.Close()
	st.Dedicate() // the guest listens for its end
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

// TarStats is what was packed or unpacked.
type TarStats struct {
	Entries, Bytes int64
	Skipped        []TarNote // devices, FIFOs, sockets; at most 1000 are named
	SkippedCount   int64
	Changed        []string // files that changed while they were read
	ChangedCount   int64
}

// TarNote names an entry that was passed over.
type TarNote struct{ Path, Reason string }

// TarOptions bounds what is unpacked.
type TarOptions struct {
	MaxBytes, MaxEntries int64 // 0: the guest's own limits
	Parents              bool  // make the directory to unpack into
	Exclusive            bool  // never replace a file
}

// Upload unpacks a tar stream into a directory, and nowhere else. It reads r as Write does.
func (f *Files) Upload(ctx context.Context, dir string, r io.Reader, opts TarOptions) (*TarStats, error) {
	end, err := f.upload(ctx, "unpack", &wire.Request{Call: &wire.Request_TarIn{TarIn: &wire.TarIn{
		Root: []byte(f.root), Path: []byte(dir), MaxBytes: opts.MaxBytes, MaxEntries: opts.MaxEntries, Parents: opts.Parents, Exclusive: opts.Exclusive,
	}}}, r)
	if err != nil {
		return nil, err
	}
	return tarStats(end.GetTar()), nil
}

// Download writes files and directories as a tar stream.
func (f *Files) Download(ctx context.Context, w io.Writer, names ...string) (*TarStats, error) {
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
	s := &TarStats{Entries: t.GetEntries(), Bytes: t.GetBytes(), SkippedCount: t.GetSkippedCount(), ChangedCount: t.GetChangedCount()}
	for _, n := range t.GetSkipped() {
		s.Skipped = append(s.Skipped, TarNote{Path: string(n.Path), Reason: n.Reason})
	}
	for _, c := range t.GetChanged() {
		s.Changed = append(s.Changed, string(c))
	}
	return s
}

func (f *Files) call(ctx context.Context, op string, req *wire.Request) (*wire.Frame, error) {
	fr, err := f.s.guest().Call(ctx, req)
	return fr, f.s.explain(op, err)
}

// download copies the data frames of a call to w and returns its last frame.
func (f *Files) download(ctx context.Context, op string, req *wire.Request, w io.Writer) (*wire.Frame, error) {
	st, err := f.s.guest().Open(ctx, req)
	if err != nil {
		return nil, f.s.explain(op, err)
	}
	st.Dedicate() // the guest listens for its end
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
				return nil, &Error{Code: CodeInternal, Op: op, Message: "the data could not be handed on", Err: err}
			}
		}
		if fr.Last {
			st.Release()
			return fr, nil
		}
	}
}

// lastRead is how long the reader of a write that has failed may take to return. One that blocks longer is left in its Read: the caller
// must not wait for a source that yields nothing to learn that its write has failed.
const lastRead = time.Second

// upload sends r as data frames. A reader that fails aborts the transfer: nothing is left half done on the other side.
func (f *Files) upload(ctx context.Context, op string, req *wire.Request, r io.Reader) (*wire.Frame, error) {
	st, err := f.s.guest().Open(ctx, req)
	if err != nil {
		return nil, f.s.explain(op, err)
	}
	st.Dedicate()
	stop := context.AfterFunc(ctx, st.Close)
	defer stop()
	sent := make(chan error, 1)
	var unread atomic.Pointer[error] // why r could not be read
	go func() { sent <- sendAll(st, r, &unread) }()
	fr, err := host.Receive(st)
	reading := err != nil
	if !reading {
		err = <-sent
	}
	// The reason is what is known now, not what happens to the reader and to ctx later.
	switch e := unread.Load(); {
	case err == nil:
		st.Release()
		return fr, nil
	case ctx.Err() != nil:
		err = f.s.explain(op, ctx.Err())
	case e != nil:
		err = &Error{Code: CodeInternal, Op: op, Message: "the data could not be read", Err: *e}
	default:
		err = f.s.explain(op, err)
	}
	st.Close() // the next frame cannot be sent
	if reading {
		select {
		case <-sent:
		case <-ctx.Done():
		case <-time.After(lastRead):
		}
	}
	return nil, err
}

func sendAll(st *wire.Stream, r io.Reader, unread *atomic.Pointer[error]) error {
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
			unread.Store(&err)                                                                      // before the guest can answer
			_ = st.Send(&wire.Frame{Body: &wire.Frame_Error{Error: &wire.Error{Code: "given_up"}}}) // the stream is closed next anyway
			return err
		}
	}
}
