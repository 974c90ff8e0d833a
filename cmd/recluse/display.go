package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// displayTypes maps the formats of displays that are saved as files to their file extensions.
var displayTypes = map[string]string{
	"image/png":        "png",
	"image/jpeg":       "jpg",
	"image/gif":        "gif",
	"image/webp":       "webp",
	"image/svg+xml":    "svg",
	"application/pdf":  "pdf",
	"application/json": "json",
	"text/html":        "html",
	"text/markdown":    "md",
	"text/latex":       "tex",
}

// displays saves the displays of a cell to a directory of the host. It never replaces a file.
type displays struct {
	dir   string
	n     int
	Files []string // paths of the saved files, in order
	err   error    // the first failure
}

// newDisplays makes the directory.
func newDisplays(dir string) (*displays, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "save displays",
			Message: "cannot create the directory",
			Err:     err,
		}
	}
	return &displays{dir: dir}, nil
}

// save writes a file for each format of a display that is in displayTypes. Plain text has been printed.
func (d *displays) save(b *sandbox.Bundle) {
	if d == nil || b == nil || d.err != nil {
		return
	}
	contents := map[string][]byte{} // by file extension
	for mime, raw := range b.Data {
		ending, ok := displayTypes[mime]
		if !ok {
			continue
		}
		content := []byte(raw)
		if ending != "json" {
			content = []byte(b.Format(mime))
		}
		if strings.HasPrefix(mime, "image/") && ending != "svg" || ending == "pdf" {
			decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(content)), ""))
			if err != nil {
				d.err = &v1.Error{
					Code:    v1.CodeInternal,
					Op:      "save displays",
					Message: "invalid display of type " + mime,
					Err:     err,
				}
				return
			}
			content = decoded
		}
		contents[ending] = content
	}
	if len(contents) == 0 {
		return
	}
	for d.n++; d.taken(); d.n++ {
	}
	for _, ending := range slices.Sorted(maps.Keys(contents)) {
		if err := d.write(d.name(ending), contents[ending]); err != nil {
			d.err = &v1.Error{Code: v1.CodeInternal, Op: "save displays", Message: "cannot write a file", Err: err}
			return
		}
	}
}

func (d *displays) name(ending string) string {
	return filepath.Join(d.dir, fmt.Sprintf("display-%d.%s", d.n, ending))
}

// taken reports whether a file with the current number exists.
func (d *displays) taken() bool {
	files, err := os.ReadDir(d.dir)
	begin := filepath.Base(d.name(""))
	return err == nil && slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), begin) })
}

func (d *displays) write(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	d.Files = append(d.Files, name)
	return nil
}

// report returns the verdict as JSON with the saved files added.
func (d *displays) report(v *sandbox.Verdict) (any, error) {
	if d == nil {
		return v, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, err
	}
	out["saved_displays"] = append([]string{}, d.Files...)
	return out, nil
}
