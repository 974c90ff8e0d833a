package e2b

import (
	"bufio"
	"errors"
	"io"
	"mime"
	"mime/multipart"
)

// eachFile calls write for each file of a form. The file name of a part is its full path, so it is not reduced to its
// last element. If the request names a path, the form has one file, for that path.
func eachFile(body io.Reader, boundary, given string, write func(name string, r io.Reader) error) error {
	form := multipart.NewReader(bufio.NewReaderSize(body, block), boundary)
	for n := 0; ; n++ {
		part, err := form.NextPart()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case errors.Is(err, io.EOF):
			return invalid("the form has no file")
		case tooLarge(err):
			return write("", errReader{err})
		case err != nil:
			return invalid("the form is invalid or incomplete")
		case part.FormName() != "file":
			return unsupportedOption("a part of the form other than file")
		case given != "" && n > 0:
			return invalid("the request has one path and several files")
		}
		name := given
		if name == "" {
			_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if err != nil {
				return invalid("the form is invalid")
			}
			name = params["filename"]
		}
		if err := write(name, blocks{part}); err != nil {
			return err
		}
	}
}

// block is how much of a form is read at once.
const block = 256 << 10

// blocks is a reader that fills the whole buffer. The parts of a form are read in pieces of 4 KiB, and each would be a
// message to the sandbox.
type blocks struct{ r io.Reader }

// Read implements io.Reader.
func (b blocks) Read(p []byte) (int, error) {
	n, err := io.ReadFull(b.r, p)
	if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // the next Read returns the end, or the error again
	}
	return n, err
}

// errReader fails with an error.
type errReader struct{ error }

// Read implements io.Reader.
func (e errReader) Read([]byte) (int, error) { return 0, e.error }
