package e2b

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// metadataHeader begins the headers that attach metadata to an uploaded file.
const metadataHeader = "X-Metadata-"

// metadataVar is the variable of the session that keeps the metadata of files. So it is copied with the sandbox. Not
// every backend has extended attributes, in which E2B keeps it.
const metadataVar = "e2b.file-metadata"

// fileMetadata is the metadata of files by their absolute path. Only calls of this API change it: a file that is moved
// or removed inside leaves its metadata at the path.
type fileMetadata map[string]map[string]string

// metadataLock makes changes of metadata one after the other.
type metadataLock struct{ sync.Mutex }

// metadataOf returns the metadata that the headers of an upload attach. Names are in lower case.
func metadataOf(head http.Header) (map[string]string, error) {
	var out map[string]string
	for name, values := range head {
		key, ok := strings.CutPrefix(name, metadataHeader)
		switch {
		case !ok:
			continue
		case key == "" || len(values) != 1:
			return nil, invalid("a header " + metadataHeader + "NAME has no name, or is repeated")
		}
		if out == nil {
			out = map[string]string{}
		}
		out[strings.ToLower(key)] = values[0]
	}
	return out, nil
}

// readMetadata returns the metadata of the files of a session.
func readMetadata(ctx context.Context, ses *session.Session) (fileMetadata, error) {
	text, err := ses.Var(ctx, metadataVar)
	if v1.CodeOf(err) == v1.CodeVarNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all fileMetadata
	_ = json.Unmarshal([]byte(text), &all) // if a caller has set the variable, there is no metadata
	return all, nil
}

// changeMetadata changes the metadata of the files of a sandbox. change reports whether it changed something.
func (d *inside) changeMetadata(ctx context.Context, change func(fileMetadata) bool) error {
	d.metadata.Lock()
	defer d.metadata.Unlock()
	all, err := readMetadata(ctx, d.ses)
	if err != nil {
		return err
	}
	if all == nil {
		all = fileMetadata{}
	}
	if !change(all) {
		return nil
	}
	if len(all) == 0 {
		return d.ses.DeleteVar(ctx, metadataVar)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return d.ses.SetVar(ctx, metadataVar, string(b))
}

// set replaces the metadata of a file.
func (m fileMetadata) set(path string, to map[string]string) bool {
	if maps.Equal(m[path], to) {
		return false
	}
	if delete(m, path); len(to) > 0 {
		m[path] = to
	}
	return true
}

// move moves the metadata of a file, and of all below it. to "" removes it.
func (m fileMetadata) move(from, to string) bool {
	moved := fileMetadata{}
	for path, values := range m {
		if path == from || strings.HasPrefix(path, strings.TrimSuffix(from, "/")+"/") {
			delete(m, path)
			moved[to+strings.TrimPrefix(path, from)] = values
		}
	}
	_, replaced := m[to]
	if to != "" {
		delete(m, to)
		maps.Copy(m, moved)
	}
	return replaced || len(moved) > 0
}
