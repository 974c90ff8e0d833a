package e2b

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	pathpkg "path"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// download answers with a regular file.
func (d *inside) download() error {
	files, err := d.files()
	if err != nil {
		return err
	}
	name := path(d.r.URL.Query().Get("path"))
	i, err := files.Stat(d.r.Context(), name)
	if err != nil {
		return err
	}
	if i.Kind != "file" && i.Kind != "symlink" {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read file", Message: "the path is not a regular file"}
	}
	head := d.w.Header()
	head.Set("Content-Type", "application/octet-stream")
	head.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": pathpkg.Base(i.Path)}))
	head.Set("Vary", "Accept-Encoding")
	out := &lazyWriter{w: d.w}
	zipped := d.r.Header.Get("Accept-Encoding") == "gzip" // only callers that request it explicitly
	if zipped {
		out.begin = func() { head.Set("Content-Encoding", "gzip") }
	} else if i.Kind == "file" {
		// The file may change meanwhile: its size is read again when it is opened, and this one is not promised.
		out.begin = func() {}
		if i.Size == 0 {
			head.Set("Content-Length", "0") // by which the SDKs recognize an empty file
		}
	}
	var w io.Writer = out
	var z *gzip.Writer
	if zipped {
		z = gzip.NewWriter(out)
		w = z
	}
	_, err = files.Read(d.r.Context(), name, w)
	if err != nil {
		if out.begun {
			panic(http.ErrAbortHandler) // the caller must not take what it has for the whole file
		}
		return err
	}
	if z != nil {
		_ = z.Close() // the caller may have disconnected
	}
	return nil
}

// lazyWriter calls begin before the first write, so that an error before it can be reported.
type lazyWriter struct {
	w     io.Writer
	begin func()
	begun bool
}

// Write implements io.Writer.
func (l *lazyWriter) Write(b []byte) (int, error) {
	if !l.begun && l.begin != nil {
		l.begin()
	}
	l.begun = true
	return l.w.Write(b)
}

// written describes an uploaded file.
type written struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Path string `json:"path"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes one file from a body of bytes, or several from a form.
func (d *inside) upload() error {
	files, err := d.files()
	if err != nil {
		return err
	}
	metadata, err := metadataOf(d.r.Header)
	if err != nil {
		return err
	}
	var body io.Reader = http.MaxBytesReader(d.w, d.r.Body, d.opts.MaxUpload)
	switch d.r.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return invalid("the body is not compressed with gzip")
		}
		body = &atMost{z, d.opts.MaxUpload}
	default:
		return unsupportedOption("a Content-Encoding other than gzip")
	}
	out := []written{}
	write := func(name string, r io.Reader) error {
		if name == "" {
			return invalid("the path is missing")
		}
		i, err := files.Write(d.r.Context(), path(name), r, v1.WriteOptions{Parents: true})
		if tooLarge(err) {
			return &v1.Error{
				Code: v1.CodeTooLarge, Op: "write file",
				Message: "the upload is larger than " + strconv.FormatInt(d.opts.MaxUpload>>20, 10) + " MiB",
			}
		}
		if err != nil {
			return err
		}
		out = append(out, written{Name: pathpkg.Base(i.Path), Type: "file", Path: i.Path, Metadata: metadata})
		return d.changeMetadata(d.r.Context(), func(all fileMetadata) bool { return all.set(i.Path, metadata) })
	}
	given := d.r.URL.Query().Get("path")
	kind, params, err := mime.ParseMediaType(d.r.Header.Get("Content-Type"))
	if err != nil {
		return invalid("the Content-Type is missing or invalid")
	}
	switch kind {
	case "application/octet-stream":
		if err := write(given, body); err != nil {
			return err
		}
	case "multipart/form-data":
		if err := eachFile(body, params["boundary"], given, write); err != nil {
			return err
		}
	default:
		return unsupportedOption("a Content-Type other than multipart/form-data and application/octet-stream")
	}
	return d.reply(out)
}

func tooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok || errors.Is(err, errInflated)
}

var errInflated = errors.New("the decompressed upload is too large")

// atMost is a reader that fails after n bytes: a small body can become any size when it is decompressed.
type atMost struct {
	r io.Reader
	n int64
}

// Read implements io.Reader.
func (a *atMost) Read(b []byte) (int, error) {
	n, err := a.r.Read(b)
	if a.n -= int64(n); a.n < 0 {
		return n, errInflated
	}
	return n, err
}
