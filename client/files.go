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
	"strconv"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// files is the FileSystem of a session in the server.
type files struct {
	s    *Session
	path string // path of the requests
	root string // directory of Below; empty: the whole file system
}

var _ v1.FileSystem = (*files)(nil)

// Files returns the whole file system of the session.
func (s *Session) Files() v1.FileSystem { return &files{s: s, path: s.path + "/files"} }

// Below implements v1.FileSystem.
func (f *files) Below(dir string) v1.FileSystem {
	return &files{s: f.s, path: f.path, root: v1.BelowRoot(f.root, dir)}
}

// query returns the query with the root, if there is one.
func (f *files) query() url.Values {
	q := url.Values{}
	set(q, "root", f.root)
	return q
}

func (f *files) named(name string) url.Values {
	q := f.query()
	q.Set("path", named(name))
	return q
}

// named returns the path for a query. A path in a query must not be empty.
func named(name string) string {
	if name == "" {
		return "."
	}
	return name
}

// change sends a request whose answer has no content.
func (f *files) change(ctx context.Context, r request, q url.Values) error {
	r.query = q
	return f.s.c.call(ctx, r, nil)
}

// Read implements v1.FileSystem.
func (f *files) Read(ctx context.Context, name string, w io.Writer) (*v1.FileInfo, error) {
	return f.ReadRange(ctx, name, 0, 0, w)
}

// ReadRange implements v1.FileSystem.
func (f *files) ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*v1.FileInfo, error) {
	q := f.named(name)
	q.Set("offset", strconv.FormatInt(offset, 10))
	q.Set("limit", strconv.FormatInt(limit, 10))
	return download[v1.FileInfo](ctx, f.s.c, get("read file", f.path, q), w, v1.TrailerFile)
}

// download copies the body of the answer to w and returns the decoded trailer.
func download[T any](ctx context.Context, c *Client, r request, w io.Writer, trailer string) (*T, error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	to := &downloadWriter{w: w}
	if _, err := io.Copy(to, res.Body); err != nil {
		if to.err != nil {
			return nil, &v1.Error{
				Code:    v1.CodeInternal,
				Op:      r.op,
				Message: "cannot write the received data",
				Err:     to.err,
			}
		}
		return nil, unreachable(ctx, r.op, err)
	}
	var out T
	if err := json.Unmarshal([]byte(res.Trailer.Get(trailer)), &out); err != nil {
		return nil, malformed(r.op, err)
	}
	return &out, nil
}

// downloadWriter keeps the error of the writer, to tell it from an error of the connection.
type downloadWriter struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (t *downloadWriter) Write(b []byte) (int, error) {
	n, err := t.w.Write(b)
	t.err = err
	return n, err
}

// ReadAll implements v1.FileSystem.
func (f *files) ReadAll(ctx context.Context, name string) ([]byte, error) {
	return v1.ReadAll(ctx, f, name)
}

// Write implements v1.FileSystem.
func (f *files) Write(ctx context.Context, name string, r io.Reader, o v1.WriteOptions) (*v1.FileInfo, error) {
	q := f.named(name)
	flag(q, "exclusive", o.Exclusive)
	flag(q, "parents", o.Parents)
	flag(q, "append", o.Append)
	if o.Mode != 0 {
		q.Set("mode", fmt.Sprintf("%o", o.Mode.Perm()))
	}
	return upload[v1.FileInfo](ctx, f.s.c, request{op: "write file", path: f.path, query: q}, r)
}

// lastRead is how long a failed write waits for a running Read of its reader. After that the Read is left running, so
// that a reader that blocks does not delay the error.
const lastRead = time.Second

// upload sends the data of r. If r fails, the transfer is aborted, and the server discards what it has received.
func upload[T any](ctx context.Context, c *Client, q request, r io.Reader) (*T, error) {
	from := &uploadReader{r: r, turn: make(chan struct{}, 1), ended: make(chan struct{})}
	q.method, q.raw = http.MethodPut, from
	out, err := callJSON[*T](ctx, c, q)
	unread := from.failure.Load()
	from.end(ctx)
	// If the server has answered, its error is the cause: the HTTP client continues to read r while the answer arrives.
	if interrupted(err) && unread != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: q.op, Message: "cannot read the data to send", Err: *unread}
	}
	return out, err
}

// uploadReader is the reader of an upload. The HTTP client may continue to read after it has returned the answer of the
// server, so end takes the reader back. uploadReader keeps the error of the reader, to tell it from an error of the
// connection. It also hides the type of r, so that package http does not read from r in advance.
type uploadReader struct {
	r     io.Reader
	turn  chan struct{} // full while r is being read
	begun atomic.Bool   // something was read
	// answered is set when the server has answered. A Read then waits for end: if the Read failed, the HTTP client
	// would close the connection before the answer is read.
	answered atomic.Bool
	ended    chan struct{} // closed by end
	failure  atomic.Pointer[error]
}

// Read implements io.Reader.
func (u *uploadReader) Read(b []byte) (int, error) {
	u.turn <- struct{}{}
	defer func() { <-u.turn }()
	if u.answered.Load() {
		<-u.ended
	}
	select {
	case <-u.ended:
		return 0, io.ErrClosedPipe
	default:
	}
	u.begun.Store(true)
	n, err := u.r.Read(b)
	if err != nil && err != io.EOF {
		u.failure.Store(&err)
	}
	return n, err
}

// end stops further reads, and waits at most lastRead for a running Read to return.
func (u *uploadReader) end(ctx context.Context) {
	close(u.ended)
	select {
	case u.turn <- struct{}{}:
		<-u.turn
	case <-ctx.Done():
	case <-time.After(lastRead):
	}
}

// WriteAll implements v1.FileSystem.
func (f *files) WriteAll(ctx context.Context, name string, data []byte, o v1.WriteOptions) error {
	_, err := f.Write(ctx, name, bytes.NewReader(data), o)
	return err
}

// Stat implements v1.FileSystem.
func (f *files) Stat(ctx context.Context, name string) (*v1.FileInfo, error) {
	return callJSON[*v1.FileInfo](ctx, f.s.c, get("stat", f.path+"/stat", f.named(name)))
}

// listPage is the number of entries that List requests at a time.
const listPage = 1000

// List implements v1.FileSystem.
func (f *files) List(ctx context.Context, name string, o v1.ListOptions) iter.Seq2[*v1.FileInfo, error] {
	return func(yield func(*v1.FileInfo, error) bool) {
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
			after = string(page.Next)
		}
	}
}

// Page implements v1.FileSystem.
func (f *files) Page(ctx context.Context, name string, o v1.ListOptions, after string, limit int) (v1.FilePage, error) {
	q := f.named(name)
	q.Set("limit", strconv.Itoa(limit))
	flag(q, "recursive", o.Recursive)
	if o.Depth != 0 {
		q.Set("depth", strconv.Itoa(o.Depth))
	}
	set(q, "after", after)
	page, err := callJSON[v1.FilePage](ctx, f.s.c, get("list files", f.path+"/list", q))
	if o.Unreadable != nil {
		*o.Unreadable += page.Unreadable
	}
	return page, err
}

// Mkdir implements v1.FileSystem.
func (f *files) Mkdir(ctx context.Context, name string, o v1.MkdirOptions) error {
	body := v1.MkdirRequest{Path: v1.Text(named(name)), Parents: o.Parents}
	return f.change(ctx, post("make directory", f.path+"/mkdir", body), f.query())
}

// Move implements v1.FileSystem.
func (f *files) Move(ctx context.Context, from, to string, o v1.MoveOptions) error {
	body := v1.MoveRequest{From: v1.Text(from), To: v1.Text(to), Exclusive: o.Exclusive}
	return f.change(ctx, post("move", f.path+"/move", body), f.query())
}

// Remove implements v1.FileSystem.
func (f *files) Remove(ctx context.Context, name string, o v1.RemoveOptions) error {
	q := f.named(name)
	flag(q, "recursive", o.Recursive)
	return f.change(ctx, remove("remove", f.path), q)
}

// Watch implements v1.FileSystem. After a lost connection it connects again and reports "overflow", because changes may
// have been missed meanwhile.
func (f *files) Watch(ctx context.Context, name string, o v1.WatchOptions, fn func(v1.FileEvent) error) error {
	q := f.named(name)
	flag(q, "recursive", o.Recursive)
	ready := false
	for e, err := range events[v1.FileEvent](ctx, f.s.c, "watch", f.path+"/watch", q) {
		if err != nil {
			return err
		}
		if e.Op == "ready" {
			if ready {
				e.Op = "overflow"
			}
			ready = true
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// Upload implements v1.FileSystem. The server limits the size and the number of entries.
func (f *files) Upload(ctx context.Context, dir string, r io.Reader, o v1.TarOptions) (*v1.TarStats, error) {
	q := f.named(dir)
	flag(q, "parents", o.Parents)
	flag(q, "exclusive", o.Exclusive)
	if o.MaxBytes != 0 {
		q.Set("max_bytes", strconv.FormatInt(o.MaxBytes, 10))
	}
	if o.MaxEntries != 0 {
		q.Set("max_entries", strconv.FormatInt(o.MaxEntries, 10))
	}
	return upload[v1.TarStats](ctx, f.s.c, request{op: "unpack", path: f.path + "/tar", query: q}, r)
}

// Download implements v1.FileSystem.
func (f *files) Download(ctx context.Context, w io.Writer, names ...string) (*v1.TarStats, error) {
	q := f.query()
	for _, n := range names {
		q.Add("path", named(n))
	}
	return download[v1.TarStats](ctx, f.s.c, get("pack", f.path+"/tar", q), w, v1.TrailerTar)
}
