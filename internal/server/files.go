package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// files returns the session's files, confined to the directory that the query names as root. A caller with the scope
// read does not renew the session's idle timeout.
func (c *call) files() (sandbox.FileSystem, error) {
	ses, err := c.session()
	if err != nil {
		return nil, err
	}
	f := ses.Files()
	if c.who.scope < scopeExecute {
		f = ses.PeekFiles()
	}
	if root := c.query.Get("root"); root != "" {
		f = f.Below(root)
	}
	return f, nil
}

// auditFile records a change of a file by the caller in the audit log. Changes by programs in the sandbox are not
// recorded; the log has the operations that ran them.
func (c *call) auditFile(action, detail string, err error) {
	c.s.manager.Note(c.ctx(), session.Entry{
		Tenant:  c.who.tenant,
		Session: c.r.PathValue("session"),
		Action:  "file." + action,
		Detail:  detail,
		Error:   string(v1.CodeOf(err)),
	})
}

// withSize returns the name of a file and its size, for the audit log.
func withSize(name string, size int64) string { return fmt.Sprintf("%s (%d bytes)", name, size) }

// path returns the path in the query. It may contain any bytes and is not checked here; the guest resolves relative
// paths.
func (c *call) path() string { return c.query.Get("path") }

// stallReader reads a body. A Read fails if no data arrives within stallTimeout.
type stallReader struct {
	r      io.Reader
	rc     *http.ResponseController
	readBy *deadline
}

// deadline is an optional point in time. When the deadline of a Read passes, package http cancels the request before
// the Read returns. Code that sees the cancelled context first uses passed to find out why.
type deadline struct{ at atomic.Pointer[time.Time] }

func (d *deadline) set(at time.Time) { d.at.Store(&at) }

func (d *deadline) clear() { d.at.Store(nil) }

// passed reports whether a deadline is set and has passed.
func (d *deadline) passed() bool {
	at := d.at.Load()
	return at != nil && !time.Now().Before(*at)
}

// Read implements io.Reader.
func (s *stallReader) Read(b []byte) (int, error) {
	if s.readBy.passed() {
		return 0, os.ErrDeadlineExceeded // an earlier Read has failed
	}
	by := time.Now().Add(stallTimeout)
	s.readBy.set(by)
	_ = s.rc.SetReadDeadline(by) // not every connection supports deadlines
	n, err := s.r.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		s.readBy.clear()
	}
	if err != nil {
		_ = s.rc.SetReadDeadline(time.Time{}) // otherwise the deadline cancels the request while the file is written
	}
	return n, err
}

// upload returns the body of an upload. Its size is limited by Limits.Upload, and each Read by stallTimeout. The size
// is not limited for the host's own user, who could write to the disk anyway.
func (c *call) upload() io.Reader {
	var body io.Reader = c.r.Body
	if !c.who.host {
		body = http.MaxBytesReader(c.w, c.r.Body, c.s.opts.Limits.Upload)
	}
	return &stallReader{r: body, rc: http.NewResponseController(c.w), readBy: &c.readBy}
}

// writeFailed returns the error of an upload that failed to write a file, and records it in the audit log.
func (c *call) writeFailed(name string, err error) error {
	err = c.uploadFailed(err)
	c.auditFile("write", name, err)
	return err
}

// uploadFailed returns the error of an upload that failed before its body was read completely. The answer is sent at
// once. Otherwise package http would first wait for the rest of the body, and the client may be idle.
func (c *call) uploadFailed(err error) error {
	c.w.Header().Set("Connection", "close")
	if c.readBy.passed() {
		return bodyError(os.ErrDeadlineExceeded) // the deadline has cancelled the write
	}
	if c.r.ProtoMajor == 1 {
		c.after = c.discardBody
	}
	return uploadError(err)
}

// discardTime is how long a connection stays open after the answer to a failed upload.
const discardTime = 5 * time.Second

// discardBody sends the answer, and discards the rest of the body. A connection that is closed with unread input is
// reset, and a client that is still writing may then see the reset instead of the answer. Package http waits half a
// second before it closes the connection, which was too short on a busy machine.
func (c *call) discardBody() {
	rc := http.NewResponseController(c.w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(discardTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.r.Body) // ends when the client has read the answer and closes the connection
}

// uploadError returns a specific error for a body that was too large or too slow. It returns other errors unchanged.
func uploadError(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "upload",
			Message: fmt.Sprintf("the upload is larger than server.max_upload, which is %d bytes", e.Limit),
			Remedy: "raise server.max_upload in the server's configuration, send the data in parts, " +
				"or use the server's UNIX socket, which has no limit",
		}
	}
	if isBodyError(err) {
		return bodyError(err)
	}
	return err
}

// isBodyError reports whether err means that a body was too large or too slow.
func isBodyError(err error) bool {
	_, large := errors.AsType[*http.MaxBytesError](err)
	return large || errors.Is(err, os.ErrDeadlineExceeded)
}

// download writes the body of an answer. The status is sent with the first byte, so that an earlier failure can be
// answered as a problem.
type download struct {
	c     *call
	media string
}

// Write implements io.Writer.
func (d *download) Write(b []byte) (int, error) {
	d.begin()
	// Not every writer supports deadlines.
	_ = http.NewResponseController(d.c.w).SetWriteDeadline(time.Now().Add(stallTimeout))
	return d.c.w.Write(b)
}

func (d *download) begin() {
	if d.c.w.status == 0 {
		d.c.w.Header().Set("Content-Type", d.media)
		d.c.w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(d.c.w).Flush() // otherwise a short body has a Content-Length and no trailer
	}
}

// end ends the body, and sends v as a trailer.
func (d *download) end(trailer string, v any) {
	d.begin()
	_ = http.NewResponseController(d.c.w).SetWriteDeadline(time.Time{}) // the connection may serve more requests
	if b, err := json.Marshal(v); err == nil {
		d.c.w.Header().Set(http.TrailerPrefix+trailer, string(b))
	}
}

func readFile(c *call, f sandbox.FileSystem) error {
	d := &download{c: c, media: "application/octet-stream"}
	info, err := f.ReadRange(c.ctx(), c.path(), c.number("offset", 0), c.number("limit", 0), d)
	if err != nil {
		return err
	}
	d.end(v1.TrailerFile, *info)
	return nil
}

func writeFile(c *call, f sandbox.FileSystem) error {
	opts, err := c.writeOptions()
	if err != nil {
		return err
	}
	name := c.path()
	info, err := f.Write(c.ctx(), name, c.upload(), opts)
	if err != nil {
		return c.writeFailed(name, err)
	}
	c.auditFile("write", withSize(info.Path, info.Size), nil)
	return c.reply(*info)
}

func (c *call) writeOptions() (sandbox.WriteOptions, error) {
	o := sandbox.WriteOptions{
		Parents:   c.flag("parents", false),
		Append:    c.flag("append", false),
		Exclusive: c.flag("exclusive", false),
	}
	if o.Append && o.Exclusive {
		return o, badQuery("exclusive", "left out with append")
	}
	if m := c.query.Get("mode"); m != "" {
		bits, err := strconv.ParseUint(m, 8, 32)
		if err != nil || bits > 0o777 {
			return o, badQuery("mode", "permission bits in octal, e.g. 644")
		}
		o.Mode = fs.FileMode(bits)
	}
	return o, nil
}

func removeFile(c *call, f sandbox.FileSystem, _ none) (none, error) {
	err := f.Remove(c.ctx(), c.path(), sandbox.RemoveOptions{Recursive: c.flag("recursive", false)})
	c.auditFile("remove", c.path(), err)
	return none{}, err
}

func statFile(c *call, f sandbox.FileSystem, _ none) (*v1.FileInfo, error) {
	return f.Stat(c.ctx(), c.path())
}

func listFiles(c *call, f sandbox.FileSystem, _ none) (v1.FilePage, error) {
	o := sandbox.ListOptions{Recursive: c.flag("recursive", false), Depth: int(c.number("depth", 0))}
	page, err := f.Page(c.ctx(), c.path(), o, c.query.Get("after"), c.page())
	if page.Files == nil {
		page.Files = []*v1.FileInfo{} // an empty list, not null
	}
	return page, err
}

func makeDirectory(c *call, f sandbox.FileSystem, in v1.MkdirRequest) (none, error) {
	if in.Path == "" {
		return none{}, invalid("missing path")
	}
	name := string(in.Path)
	err := f.Mkdir(c.ctx(), name, sandbox.MkdirOptions{Parents: in.Parents})
	c.auditFile("mkdir", name, err)
	return none{}, err
}

func moveFile(c *call, f sandbox.FileSystem, in v1.MoveRequest) (none, error) {
	if in.From == "" || in.To == "" {
		return none{}, invalid("missing from or to")
	}
	from, to := string(in.From), string(in.To)
	err := f.Move(c.ctx(), from, to, sandbox.MoveOptions{Exclusive: in.Exclusive})
	c.auditFile("move", from+" to "+to, err)
	return none{}, err
}

// watchFiles streams changes of files. The first event says that the watch has begun.
func watchFiles(c *call, f sandbox.FileSystem) error {
	ctx, cancel := c.untilDrain()
	defer cancel()
	var st *stream
	opts := sandbox.WatchOptions{Recursive: c.flag("recursive", false)}
	err := f.Watch(ctx, c.path(), opts, func(e sandbox.FileEvent) error {
		if st == nil {
			st = startStream(c)
		}
		return st.send("", v1.EventChange, e)
	})
	if st == nil {
		return err
	}
	defer st.close()
	if c.s.draining() {
		err = closingError()
	}
	if err != nil {
		st.problem(err)
		return nil
	}
	_ = st.send("", v1.EventEnd, none{})
	return nil
}
