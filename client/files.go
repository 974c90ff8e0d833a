package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/recluse-dev/recluse/internal/api"
	"github.com/recluse-dev/recluse/sandbox"
)

// files is the FileSystem of a session of the server.
type files struct {
	s    *Session
	root string
}

var _ sandbox.FileSystem = (*files)(nil)

// Files returns the whole file system of the session.
func (s *Session) Files() sandbox.FileSystem { return &files{s: s} }

// Below implements sandbox.FileSystem.
func (f *files) Below(dir string) sandbox.FileSystem {
	return &files{s: f.s, root: path.Join("/", f.root, dir)}
}

// query names the root; a path of it that is relative belongs to that.
func (f *files) query() url.Values {
	if f.root == "" {
		return url.Values{"root": {"/"}}
	}
	return url.Values{"root": {f.root}}
}

func (f *files) named(name string) url.Values {
	q := f.query()
	q.Set("path", named(name))
	return q
}

// named gives the root itself for no name, as the library does.
func named(name string) string {
	if name == "" {
		return "/"
	}
	return name
}

func (f *files) call(ctx context.Context, op, method, p string, q url.Values, in, out any) error {
	r := request{op: op, method: method, path: f.s.path + "/files" + p, query: q, body: in, again: method == http.MethodGet}
	return f.s.c.call(ctx, r, out)
}

// Read implements sandbox.FileSystem.
func (f *files) Read(ctx context.Context, name string, w io.Writer) (*sandbox.FileInfo, error) {
	return f.ReadRange(ctx, name, 0, 0, w)
}

// ReadRange implements sandbox.FileSystem.
func (f *files) ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*sandbox.FileInfo, error) {
	q := f.named(name)
	q.Set("offset", strconv.FormatInt(offset, 10))
	q.Set("limit", strconv.FormatInt(limit, 10))
	var info api.FileInfo
	if err := f.download(ctx, request{op: "read file", path: "", query: q}, w, api.TrailerFile, &info); err != nil {
		return nil, err
	}
	return info.Sandbox(), nil
}

// download copies a body to w and reads what its trailer tells.
func (f *files) download(ctx context.Context, r request, w io.Writer, trailer string, out any) error {
	r.method, r.path, r.again = http.MethodGet, f.s.path+"/files"+r.path, true
	res, err := f.s.c.send(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	to := &taker{w: w}
	if _, err := io.Copy(to, res.Body); err != nil {
		if to.err != nil {
			return &sandbox.Error{Code: sandbox.CodeInternal, Op: r.op, Message: "the data could not be handed on", Err: to.err}
		}
		return unreachable(ctx, r.op, err)
	}
	if err := json.Unmarshal([]byte(res.Trailer.Get(trailer)), out); err != nil {
		return malformed(r.op, err)
	}
	return nil
}

// taker remembers whose fault it was.
type taker struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (t *taker) Write(b []byte) (int, error) {
	n, err := t.w.Write(b)
	t.err = err
	return n, err
}

// ReadAll implements sandbox.FileSystem.
func (f *files) ReadAll(ctx context.Context, name string) ([]byte, error) {
	const most = 64 << 20
	var b bytes.Buffer
	info, err := f.ReadRange(ctx, name, 0, most, &b)
	if err != nil {
		return nil, err
	}
	if info.Size > most {
		return nil, &sandbox.Error{Code: sandbox.CodeTooLarge, Op: "read file", Message: "the file is larger than 64 MiB", Remedy: "use Read"}
	}
	return b.Bytes(), nil
}

// Write implements sandbox.FileSystem.
func (f *files) Write(ctx context.Context, name string, r io.Reader, o sandbox.WriteOptions) (*sandbox.FileInfo, error) {
	q := f.named(name)
	flag(q, "overwrite", !o.Exclusive)
	flag(q, "parents", o.Parents)
	flag(q, "append", o.Append)
	if o.Mode != 0 {
		q.Set("mode", fmt.Sprintf("%o", o.Mode.Perm()))
	}
	var info api.FileInfo
	if err := f.upload(ctx, request{op: "write file", query: q}, r, &info); err != nil {
		return nil, err
	}
	return info.Sandbox(), nil
}

// lastRead is how long the reader of a write that has failed may take to return. One that blocks is left in its Read then: nobody is to wait for a source
// that gives nothing to hear that it is not wanted.
const lastRead = time.Second

// upload sends r. A reader that fails gives the transfer up: nothing is left half done on the other side.
func (f *files) upload(ctx context.Context, q request, r io.Reader, out any) error {
	from := &giver{r: r, turn: make(chan struct{}, 1)}
	q.method, q.path, q.raw = http.MethodPut, f.s.path+"/files"+q.path, from
	err := f.s.c.call(ctx, q, out)
	unread := from.failure.Load()
	from.end(ctx)
	if err != nil && unread != nil && ctx.Err() == nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: q.op, Message: "the data could not be read", Err: *unread}
	}
	return err
}

// giver lends a reader to an HTTP client, which may go on to read after it has given the server's answer, and remembers whose fault it was. It also
// hides what r is, so that nothing is read before it is asked for.
type giver struct {
	r       io.Reader
	turn    chan struct{} // full: r is being read
	over    atomic.Bool
	failure atomic.Pointer[error]
}

// Read implements io.Reader.
func (g *giver) Read(b []byte) (int, error) {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if g.over.Load() {
		return 0, io.ErrClosedPipe
	}
	n, err := g.r.Read(b)
	if err != nil && err != io.EOF {
		g.failure.Store(&err)
	}
	return n, err
}

// end takes the reader back, once the Read that runs has returned.
func (g *giver) end(ctx context.Context) {
	g.over.Store(true)
	select {
	case g.turn <- struct{}{}:
		<-g.turn
	case <-ctx.Done():
	case <-time.After(lastRead):
	}
}

// WriteAll implements sandbox.FileSystem.
func (f *files) WriteAll(ctx context.Context, name string, data []byte, o sandbox.WriteOptions) error {
	_, err := f.Write(ctx, name, bytes.NewReader(data), o)
	return err
}

// Stat implements sandbox.FileSystem.
func (f *files) Stat(ctx context.Context, name string) (*sandbox.FileInfo, error) {
	var info api.FileInfo
	if err := f.call(ctx, "stat", http.MethodGet, "/stat", f.named(name), nil, &info); err != nil {
		return nil, err
	}
	return info.Sandbox(), nil
}

// listPage is how many entries List asks for at a time.
const listPage = 1000

// List implements sandbox.FileSystem.
func (f *files) List(ctx context.Context, name string, o sandbox.ListOptions) iter.Seq2[*sandbox.FileInfo, error] {
	return func(yield func(*sandbox.FileInfo, error) bool) {
		for after := ""; ; {
			page, err := f.Page(ctx, name, o, after, listPage)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, i := range page.Files {
				if !yield(i, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			after = page.Next
		}
	}
}

// Page implements sandbox.FileSystem.
func (f *files) Page(ctx context.Context, name string, o sandbox.ListOptions, after string, limit int) (sandbox.FilePage, error) {
	q := f.named(name)
	q.Set("limit", strconv.Itoa(limit))
	flag(q, "recursive", o.Recursive)
	if o.Depth != 0 {
		q.Set("depth", strconv.Itoa(o.Depth))
	}
	set(q, "after", after)
	var list api.FileList
	if err := f.call(ctx, "list files", http.MethodGet, "/list", q, nil, &list); err != nil {
		return sandbox.FilePage{}, err
	}
	if o.Unreadable != nil {
		*o.Unreadable += list.Unreadable
	}
	page := sandbox.FilePage{Files: make([]*sandbox.FileInfo, 0, len(list.Files)), Next: string(list.Next), Unreadable: list.Unreadable}
	for _, i := range list.Files {
		page.Files = append(page.Files, i.Sandbox())
	}
	return page, nil
}

// Mkdir implements sandbox.FileSystem.
func (f *files) Mkdir(ctx context.Context, name string, o sandbox.MkdirOptions) error {
	return f.call(ctx, "make directory", http.MethodPost, "/mkdir", f.query(), api.Mkdir{Path: api.Text(named(name)), Parents: o.Parents}, nil)
}

// Move implements sandbox.FileSystem.
func (f *files) Move(ctx context.Context, from, to string, o sandbox.MoveOptions) error {
	return f.call(ctx, "move", http.MethodPost, "/move", f.query(), api.Move{From: api.Text(from), To: api.Text(to), Overwrite: !o.Exclusive}, nil)
}

// Remove implements sandbox.FileSystem.
func (f *files) Remove(ctx context.Context, name string, o sandbox.RemoveOptions) error {
	q := f.named(name)
	flag(q, "recursive", o.Recursive)
	return f.call(ctx, "remove", http.MethodDelete, "", q, nil, nil)
}

// Watch implements sandbox.FileSystem. A connection that breaks is made again, and reported as "overflow", because changes
// may have been missed meanwhile.
func (f *files) Watch(ctx context.Context, name string, o sandbox.WatchOptions, fn func(sandbox.FileEvent) error) error {
	q := f.named(name)
	flag(q, "recursive", o.Recursive)
	r := request{op: "watch", method: http.MethodGet, path: f.s.path + "/files/watch", query: q, header: map[string]string{"Accept": api.EventStream}}
	ready := false
	return f.s.c.listen(ctx, r, func(e api.Event) error {
		var c api.FileEvent
		if err := e.Decode(&c); err != nil {
			return malformed("watch", err)
		}
		if c.Op == "ready" {
			if ready {
				c.Op = "overflow"
			}
			ready = true
		}
		return fn(sandbox.FileEvent{Op: c.Op, Path: string(c.Path), From: string(c.From)})
	})
}

// Upload implements sandbox.FileSystem. The server limits the size and the number of entries.
func (f *files) Upload(ctx context.Context, dir string, r io.Reader, o sandbox.TarOptions) (*sandbox.TarStats, error) {
	q := f.named(dir)
	flag(q, "parents", o.Parents)
	flag(q, "overwrite", !o.Exclusive)
	if o.MaxBytes != 0 {
		q.Set("max_bytes", strconv.FormatInt(o.MaxBytes, 10))
	}
	if o.MaxEntries != 0 {
		q.Set("max_entries", strconv.FormatInt(o.MaxEntries, 10))
	}
	var st api.TarStats
	if err := f.upload(ctx, request{op: "unpack", path: "/tar", query: q}, r, &st); err != nil {
		return nil, err
	}
	return st.Sandbox(), nil
}

// Download implements sandbox.FileSystem.
func (f *files) Download(ctx context.Context, w io.Writer, names ...string) (*sandbox.TarStats, error) {
	q := f.query()
	for _, n := range names {
		q.Add("path", named(n))
	}
	var st api.TarStats
	if err := f.download(ctx, request{op: "pack", path: "/tar", query: q}, w, api.TrailerTar, &st); err != nil {
		return nil, err
	}
	return st.Sandbox(), nil
}
