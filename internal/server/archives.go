package server

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"sync"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// maxBatch is the most files of one upload.
	maxBatch = 1000
	// maxTrailer is how many names of a tar's statistics fit into a trailer; the counts are always whole.
	maxTrailer = 20
)

// downloadTar packs files and directories.
func downloadTar(c *call, f sandbox.FileSystem) error {
	d := &download{c: c, media: "application/x-tar"}
	stats, err := f.Download(c.ctx(), d, c.query["path"]...)
	if err != nil {
		return err
	}
	out := *stats
	out.Skipped, out.Changed = out.Skipped[:min(len(out.Skipped), maxTrailer)], out.Changed[:min(len(out.Changed), maxTrailer)]
	d.end(v1.TrailerTar, out)
	return nil
}

// uploadTar unpacks an archive into a directory, and nowhere else.
func uploadTar(c *call, f sandbox.FileSystem) error {
	dir := c.path()
	stats, err := f.Upload(c.ctx(), dir, c.upload(), sandbox.TarOptions{
		Parents:    c.flag("parents", false),
		Exclusive:  c.flag("exclusive", false),
		MaxBytes:   c.number("max_bytes", 0),
		MaxEntries: c.number("max_entries", 0),
	})
	if err != nil {
		return c.unwritten(dir, err)
	}
	c.changedFile("write", sized(dir, stats.Bytes), nil)
	return c.reply(*stats)
}

// uploadBatch writes several files. One that fails does not keep the others from being written; the answer says which.
func uploadBatch(c *call) error {
	kind, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return invalid("a batch is multipart/form-data")
	}
	dir := path.Clean(c.query.Get("dir"))
	opts, err := c.writeOptions()
	if err != nil {
		return err
	}
	f, err := c.files()
	if err != nil {
		return err
	}
	ses, err := c.session()
	if err != nil {
		return err
	}
	release, err := ses.KeepAwake(c.ctx()) // a session that cannot be used fails the whole batch
	if err != nil {
		return err
	}
	defer release()
	parts := multipart.NewReader(c.upload(), params["boundary"])
	out := v1.Uploads{Files: []v1.Uploaded{}}
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return c.uploadFailed(&v1.Error{Code: v1.CodeInvalidRequest, Op: "read upload", Message: "the parts of the upload cannot be told apart", Err: err})
		}
		if len(out.Files) == maxBatch {
			return c.uploadFailed(&v1.Error{Code: v1.CodeTooMany, Op: "upload", Message: "more than 1000 files", Remedy: "use a tar stream"})
		}
		up, err := c.uploadPart(f, dir, part, opts)
		if err != nil {
			return err
		}
		if up.Problem != nil {
			out.Failed++
		}
		out.Files = append(out.Files, up)
	}
	if len(out.Files) == 0 {
		return invalid("there is no file in the upload")
	}
	if out.Failed > 0 {
		c.status = http.StatusMultiStatus
	}
	return c.reply(out)
}

// uploadPart writes one file. Its name may hold directories; whatever it holds, it stays below dir.
func (c *call) uploadPart(f sandbox.FileSystem, dir string, part *multipart.Part, opts sandbox.WriteOptions) (v1.Uploaded, error) {
	name := partName(part)
	up := v1.Uploaded{Name: v1.Text(name), Path: v1.Text(path.Join(dir, path.Join("/", name)))}
	body := &inTurn{r: part} // a write that has failed may still be in its last Read
	fail := func(err error) (v1.Uploaded, error) {
		p := problem.Of(err)
		up.Problem = &p
		if _, err := io.Copy(io.Discard, body); err != nil { // the next part is behind it
			return up, c.uploadFailed(err)
		}
		return up, nil
	}
	if name == "" || string(up.Path) == dir {
		return fail(invalid("a file of the upload has no name"))
	}
	info, err := f.Write(c.ctx(), string(up.Path), body, opts)
	if err != nil {
		if c.ctx().Err() != nil || badBody(err) {
			return up, c.unwritten(string(up.Path), err)
		}
		c.changedFile("write", string(up.Path), err)
		return fail(err)
	}
	up = info.Uploaded(name)
	c.changedFile("write", sized(string(up.Path), up.Size), nil)
	return up, nil
}

// inTurn is a reader for several, one after the other.
type inTurn struct {
	mu sync.Mutex
	r  io.Reader // guarded by mu
}

// Read implements io.Reader.
func (t *inTurn) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.r.Read(p)
}

// partName is the name a part gives itself, directories included, which Part.FileName would drop.
func partName(p *multipart.Part) string {
	_, params, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	if n := params["filename"]; n != "" {
		return n
	}
	return params["name"]
}
