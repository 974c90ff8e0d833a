package e2b

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
)

// eachFile calls write for each file of a form. The file name of a part is its full path, so it is not reduced to its
// last element. If the request names a path, the form has one file, for that path.
func eachFile(body io.Reader, boundary, given string, write func(name string, r io.Reader) error) error {
	form := multipart.NewReader(body, boundary)
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
		if err := write(name, part); err != nil {
			return err
		}
	}
}

// errReader fails with an error.
type errReader struct{ error }

// Read implements io.Reader.
func (e errReader) Read([]byte) (int, error) { return 0, e.error }
