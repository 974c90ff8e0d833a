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
	// maxBatch is the maximum number of files in one batch upload.
	maxBatch = 1000
	// maxTrailer is the maximum number of names in each list of a tar's statistics, so that they fit into a trailer.
	// The counts are always complete.
	maxTrailer = 20
)

// downloadTar sends files and directories as a tar stream.
func downloadTar(c *call, f sandbox.FileSystem) error {
	d := &download{c: c, media: "application/x-tar"}
	stats, err := f.Download(c.ctx(), d, c.query["path"]...)
	if err != nil {
		return err
	}
	out := *stats
	out.Skipped = out.Skipped[:min(len(out.Skipped), maxTrailer)]
	out.Changed = out.Changed[:min(len(out.Changed), maxTrailer)]
	d.end(v1.TrailerTar, out)
	return nil
}

// uploadTar unpacks an archive into a directory. No entry is written outside of the directory.
func uploadTar(c *call, f sandbox.FileSystem) error {
	dir := c.path()
	stats, err := f.Upload(c.ctx(), dir, c.upload(), sandbox.TarOptions{
		Parents:    c.flag("parents", false),
		Exclusive:  c.flag("exclusive", false),
		MaxBytes:   c.number("max_bytes", 0),
		MaxEntries: c.number("max_entries", 0),
	})
	if err != nil {
		return c.writeFailed(dir, err)
	}
	c.auditFile("write", withSize(dir, stats.Bytes), nil)
	return c.reply(*stats)
}

// uploadBatch writes several files. If a file fails, the others are still written. The answer has the problem of each
// file that failed.
func uploadBatch(c *call) error {
	kind, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return invalid("invalid content type of a batch: want multipart/form-data with a boundary")
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
	release, err := ses.KeepAwake(c.ctx()) // if the session cannot be used, the whole batch fails
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
			return c.uploadFailed(&v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "read upload",
				Message: "invalid multipart body",
				Err:     err,
			})
		}
		if len(out.Files) == maxBatch {
			return c.uploadFailed(&v1.Error{
				Code:    v1.CodeTooMany,
				Op:      "upload",
				Message: "more than 1000 files",
				Remedy:  "use a tar stream",
			})
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
		return invalid("the upload contains no files")
	}
	if out.Failed > 0 {
		c.status = http.StatusMultiStatus
	}
	return c.reply(out)
}

// uploadPart writes one file. Its name may contain directories. The file is always written below dir, whatever the name
// contains.
func (c *call) uploadPart(
	f sandbox.FileSystem, dir string, part *multipart.Part, opts sandbox.WriteOptions,
) (v1.Uploaded, error) {
	name := partName(part)
	up := v1.Uploaded{Name: v1.Text(name), Path: v1.Text(path.Join(dir, path.Join("/", name)))}
	body := &lockedReader{r: part} // a failed write may still be in its last Read
	fail := func(err error) (v1.Uploaded, error) {
		p := problem.Of(err)
		up.Problem = &p
		if _, err := io.Copy(io.Discard, body); err != nil { // the next part follows it
			return up, c.uploadFailed(err)
		}
		return up, nil
	}
	if name == "" || string(up.Path) == dir {
		return fail(invalid("missing name of a file in the upload"))
	}
	info, err := f.Write(c.ctx(), string(up.Path), body, opts)
	if err != nil {
		if c.ctx().Err() != nil || isBodyError(err) {
			return up, c.writeFailed(string(up.Path), err)
		}
		c.auditFile("write", string(up.Path), err)
		return fail(err)
	}
	up = info.Uploaded(name)
	c.auditFile("write", withSize(string(up.Path), up.Size), nil)
	return up, nil
}

// lockedReader is a reader that several goroutines may use. Reads are serialised.
type lockedReader struct {
	mu sync.Mutex
	r  io.Reader // guarded by mu
}

// Read implements io.Reader.
func (l *lockedReader) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Read(p)
}

// partName returns the name in the header of a part, including directories, which Part.FileName would remove.
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
