package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
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

// path reads a path of the query. Names are bytes, so it is not looked at further.
func (c *call) path(name string) (string, error) {
	p := c.query.Get(name)
	if p == "" {
		return "", badQuery(name, "a path")
	}
	return c.absolute(p), nil
}

// absolute puts a relative path below the home directory, where commands begin, unless the caller has chosen a root.
func (c *call) absolute(p string) string {
	if path.IsAbs(p) || c.query.Get("root") != "" {
		return p
	}
	return v1.DefaultHome + "/" + p
}

// slow reads a body that must keep moving.
type slow struct {
	r  io.Reader
	rc *http.ResponseController
}

// Read implements io.Reader.
func (s *slow) Read(b []byte) (int, error) {
	_ = s.rc.SetReadDeadline(time.Now().Add(stallTimeout)) // not every connection has one
	n, err := s.r.Read(b)
	if err != nil {
		_ = s.rc.SetReadDeadline(time.Time{}) // or the request would be given up by it while the file is written
	}
	return n, err
}

// upload is the body of an upload, bounded in size and in time without movement.
func (c *call) upload() io.Reader {
	return &slow{r: http.MaxBytesReader(c.w, c.r.Body, c.s.opts.Limits.Upload), rc: http.NewResponseController(c.w)}
}

// unwritten tells of an upload that failed, at once: otherwise package http would first wait for what the client has yet to send, which may be idle.
func (c *call) unwritten(name string, err error) error {
	c.w.Header().Set("Connection", "close")
	err = uploadError(err)
	c.changedFile("write", name, err)
	return err
}

// uploadError tells a body that was too large from what else can fail.
func uploadError(err error) error {
	if err == nil {
		return nil
	}
	if tooMuch(err) {
		return bodyError(err)
	}
	return err
}

// tooMuch reports a body that was larger than it may be.
func tooMuch(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
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

func readFile(c *call) error {
	name, err := c.path("path")
	if err != nil {
		return err
	}
	offset, err := c.number("offset", 0)
	if err != nil {
		return err
	}
	limit, err := c.number("limit", 0)
	if err != nil {
		return err
	}
	f, err := c.files()
	if err != nil {
		return err
	}
	d := &download{c: c, media: "application/octet-stream"}
	info, err := f.ReadRange(c.ctx(), name, offset, limit, d)
	if err != nil {
		return err
	}
	d.end(v1.TrailerFile, *info)
	return nil
}

func writeFile(c *call) error {
	name, err := c.path("path")
	if err != nil {
		return err
	}
	opts, err := c.writeOptions()
	if err != nil {
		return err
	}
	f, err := c.files()
	if err != nil {
		return err
	}
	info, err := f.Write(c.ctx(), name, c.upload(), opts)
	if err != nil {
		return c.unwritten(name, err)
	}
	c.changedFile("write", sized(info.Path, info.Size), nil)
	return c.reply(*info)
}

func (c *call) writeOptions() (sandbox.WriteOptions, error) {
	var o sandbox.WriteOptions
	overwrite, err := c.flag("overwrite", false)
	if err != nil {
		return o, err
	}
	if o.Parents, err = c.flag("parents", false); err != nil {
		return o, err
	}
	if o.Append, err = c.flag("append", false); err != nil {
		return o, err
	}
	o.Exclusive = !overwrite && !o.Append
	if m := c.query.Get("mode"); m != "" {
		bits, err := strconv.ParseUint(m, 8, 32)
		if err != nil || bits > 0o777 {
			return o, badQuery("mode", "permission bits in octal, e.g. 644")
		}
		o.Mode = fs.FileMode(bits)
	}
	return o, nil
}

func removeFile(c *call, _ none) (none, error) {
	name, err := c.path("path")
	if err != nil {
		return none{}, err
	}
	recursive, err := c.flag("recursive", false)
	if err != nil {
		return none{}, err
	}
	f, err := c.files()
	if err != nil {
		return none{}, err
	}
	err = f.Remove(c.ctx(), name, sandbox.RemoveOptions{Recursive: recursive})
	c.changedFile("remove", name, err)
	return none{}, err
}

func statFile(c *call, _ none) (v1.FileInfo, error) {
	name, err := c.path("path")
	if err != nil {
		return v1.FileInfo{}, err
	}
	f, err := c.files()
	if err != nil {
		return v1.FileInfo{}, err
	}
	info, err := f.Stat(c.ctx(), name)
	if err != nil {
		return v1.FileInfo{}, err
	}
	return *info, nil
}

func listFiles(c *call, _ none) (v1.FilePage, error) {
	name, err := c.path("path")
	if err != nil {
		return v1.FilePage{}, err
	}
	limit, err := c.page()
	if err != nil {
		return v1.FilePage{}, err
	}
	depth, err := c.number("depth", 0)
	if err != nil || depth > 1<<20 {
		return v1.FilePage{}, badQuery("depth", "a number of levels")
	}
	o := sandbox.ListOptions{Depth: int(depth)}
	if o.Recursive, err = c.flag("recursive", false); err != nil {
		return v1.FilePage{}, err
	}
	f, err := c.files()
	if err != nil {
		return v1.FilePage{}, err
	}
	page, err := f.Page(c.ctx(), name, o, c.query.Get("after"), limit)
	if err != nil {
		return v1.FilePage{}, err
	}
	if page.Files == nil {
		page.Files = []*v1.FileInfo{} // an empty list, not null
	}
	return page, nil
}

func makeDirectory(c *call, in v1.MkdirRequest) (none, error) {
	if in.Path == "" {
		return none{}, invalid("a path is missing")
	}
	f, err := c.files()
	if err != nil {
		return none{}, err
	}
	name := c.absolute(string(in.Path))
	err = f.Mkdir(c.ctx(), name, sandbox.MkdirOptions{Parents: in.Parents})
	c.changedFile("mkdir", name, err)
	return none{}, err
}

func moveFile(c *call, in v1.MoveRequest) (none, error) {
	if in.From == "" || in.To == "" {
		return none{}, invalid("from and to are needed")
	}
	f, err := c.files()
	if err != nil {
		return none{}, err
	}
	from, to := c.absolute(string(in.From)), c.absolute(string(in.To))
	err = f.Move(c.ctx(), from, to, sandbox.MoveOptions{Exclusive: !in.Overwrite})
	c.changedFile("move", from+" to "+to, err)
	return none{}, err
}

// watchFiles tells of changes. The first event says that it listens.
func watchFiles(c *call) error {
	name, err := c.path("path")
	if err != nil {
		return err
	}
	recursive, err := c.flag("recursive", false)
	if err != nil {
		return err
	}
	f, err := c.files()
	if err != nil {
		return err
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	var st *stream
	err = f.Watch(ctx, name, sandbox.WatchOptions{Recursive: recursive}, func(e sandbox.FileEvent) error {
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
