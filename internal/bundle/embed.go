//go:build bundle

package bundle

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

var embeddedPrograms = sync.OnceValues(func() ([]Embedded, error) {
	b, err := files.ReadFile(filesDir + "/manifest.json")
	if err != nil {
		return nil, err
	}
	var list []Embedded
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	for i, e := range list {
		list[i].open = func() (io.ReadCloser, error) {
			f, err := files.Open(filesDir + "/" + e.Name + "-" + e.Arch + ".zst")
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
