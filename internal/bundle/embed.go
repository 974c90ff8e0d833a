//go:build bundle

package bundle

import (
	"embed"
	"encoding/json"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// files is filled by pack during make build: manifest.json and one compressed file for each program.
//
//go:embed files/manifest.json files/*.zst
var files embed.FS

var embeddedPrograms = sync.OnceValues(func() ([]Embedded, error) {
	b, err := files.ReadFile("files/manifest.json")
	if err != nil {
		return nil, err
	}
	var list []Embedded
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	for i, e := range list {
		list[i].open = func() (io.ReadCloser, error) {
			f, err := files.Open("files/" + e.Name + "-" + e.Arch + ".zst")
			if err != nil {
				return nil, err
			}
			z, err := zstd.NewReader(f)
			if err != nil {
				return nil, err
			}
			return z.IOReadCloser(), nil
		}
	}
	return list, nil
})
