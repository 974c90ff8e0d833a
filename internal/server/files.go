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

// files returns the session's files, confined to the directory the query names as root. A caller that may only read does not
// renew the session's idle time.
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

// changedFile notes in the audit log who changed what inside. The sandbox's own programs change files as well; those are told by what was run.
func (c *call) changedFile(action, detail string, err error) {
	c.s.manager.Note(c.ctx(), session.Entry{
		Tenant: c.who.tenant, Session: c.r.PathValue("session"), Action: "file." + action, Detail: detail, Error: string(v1.CodeOf(err)),
	})
}

// sized tells a file and its size.
func sized(name string, size int64) string { return fmt.Sprintf("%s (%d bytes)", name, size) }

// path returns the path that the query names. Names are bytes, so it is not looked at further; the guest knows where a relative one begins.
func (c *call) path() string { return c.query.Get("path") }

// slow reads a body that must keep moving.
type slow struct {
	r      io.Reader
	rc     *http.ResponseController
	readBy *deadline
}

// deadline is a point in time, or none. Package http cancels a request before the Read whose deadline has passed returns, so whoever sees the
// cancelled context first compares the time itself.
type deadline struct{ at atomic.Pointer[time.Time] }

func (d *deadline) set(at time.Time) { d.at.Store(&at) }

func (d *deadline) clear() { d.at.Store(nil) }

// passed reports whether there is a deadline, and it is over.
func (d *deadline) passed() bool {
	at := d.at.Load()
	return at != nil && !time.Now().Before(*at)
}

// Read implements io.Reader.
func (s *slow) Read(b []byte) (int, error) {
	if s.readBy.passed() {
		return 0, os.ErrDeadlineExceeded // an earlier Read has failed
	}
	by := time.Now().Add(stallTimeout)
	s.readBy.set(by)
	_ = s.rc.SetReadDeadline(by) // not every connection has one
	n, err := s.r.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		s.readBy.clear()
	}
	if err != nil {
		_ = s.rc.SetReadDeadline(time.Time{}) // or the request would be given up by it while the file is written
	}
	return n, err
}

// upload is the body of an upload, bounded in time without movement and in size. The host's own user could write to the disk as well, and has no
// limit.
func (c *call) upload() io.Reader {
	if c.who.host {
		return &slow{r: c.r.Body, rc: http.NewResponseController(c.w), readBy: &c.readBy}
	}
	return &slow{r: http.MaxBytesReader(c.w, c.r.Body, c.s.opts.Limits.Upload), rc: http.NewResponseController(c.w), readBy: &c.readBy}
}

// unwritten returns the error of a file that an upload did not write, and logs it.
func (c *call) unwritten(name string, err error) error {
	err = c.uploadFailed(err)
	c.changedFile("write", name, err)
	return err
}

// uploadFailed returns the error of an upload that is over before its body is. The answer goes out at once: otherwise package http would
// first wait for what the client has yet to send, which may be idle.
func (c *call) uploadFailed(err error) error {
	c.w.Header().Set("Connection", "close")
	if c.readBy.passed() {
		return bodyError(os.ErrDeadlineExceeded) // which has cancelled the write
	}
	if c.r.ProtoMajor == 1 {
		c.after = c.linger
	}
	return uploadError(err)
}

// lingerTime is how long a connection stays open behind the answer to an upload that failed.
const lingerTime = 5 * time.Second

// linger sends the answer, and discards what the client still sends. A connection that is closed with unread input is reset, and a client that is
// still writing may then see the reset instead of the answer. Package http waits half a second, which was too short on a busy machine.
func (c *call) linger() {
	rc := http.NewResponseController(c.w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.r.Body) // it ends when the client has read the answer, and closes
}

// uploadError tells a body that was too large or too slow from what else can fail.
func uploadError(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &v1.Error{
			Code: v1.CodeTooLarge, Op: "upload", Message: fmt.Sprintf("the upload is larger than server.max_upload, which is %d bytes", e.Limit),
			Remedy: "raise server.max_upload in the server's configuration, send it in parts, or use the server's own socket, which has no limit",
		}
	}
	if badBody(err) {
		return bodyError(err)
	}
	return err
}

// badBody reports a body that was larger or slower than it may be.
func badBody(err error) bool {
	_, large := errors.AsType[*http.MaxBytesError](err)
	return large || errors.Is(err, os.ErrDeadlineExceeded)
}

// download is a body that begins with its first byte, so that a failure before it is a plain problem.
type download struct {
	c     *call
	media string
}

// Write implements io.Writer.
func (d *download) Write(b []byte) (int, error) {
	d.begin()
	_ = http.NewResponseController(d.c.w).SetWriteDeadline(time.Now().Add(stallTimeout)) // not every writer has one
	return d.c.w.Write(b)
}

func (d *download) begin() {
	if d.c.w.status == 0 {
		d.c.w.Header().Set("Content-Type", d.media)
		d.c.w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(d.c.w).Flush() // a short body would be sent with its length, and that has no trailer
	}
}

// end adds what is known only now.
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
		return c.unwritten(name, err)
	}
	c.changedFile("write", sized(info.Path, info.Size), nil)
	return c.reply(*info)
}

func (c *call) writeOptions() (sandbox.WriteOptions, error) {
	o := sandbox.WriteOptions{Parents: c.flag("parents", false), Append: c.flag("append", false), Exclusive: c.flag("exclusive", false)}
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
	c.changedFile("remove", c.path(), err)
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
		return none{}, invalid("a path is missing")
	}
	name := string(in.Path)
	err := f.Mkdir(c.ctx(), name, sandbox.MkdirOptions{Parents: in.Parents})
	c.changedFile("mkdir", name, err)
	return none{}, err
}

func moveFile(c *call, f sandbox.FileSystem, in v1.MoveRequest) (none, error) {
	if in.From == "" || in.To == "" {
		return none{}, invalid("from and to are needed")
	}
	from, to := string(in.From), string(in.To)
	err := f.Move(c.ctx(), from, to, sandbox.MoveOptions{Exclusive: in.Exclusive})
	c.changedFile("move", from+" to "+to, err)
	return none{}, err
}

// watchFiles tells of changes. The first event says that it listens.
func watchFiles(c *call, f sandbox.FileSystem) error {
	ctx, cancel := c.untilDrain()
	defer cancel()
	var st *stream
	err := f.Watch(ctx, c.path(), sandbox.WatchOptions{Recursive: c.flag("recursive", false)}, func(e sandbox.FileEvent) error {
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
