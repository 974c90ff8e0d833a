package trajectory

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestEnds(t *testing.T) {
	long := json.RawMessage(`"` + strings.Repeat("x", 3*firstChunk) + `"`)
	for name, tt := range map[string]struct {
		data []json.RawMessage
		half string
	}{
		"one event":                {data: []json.RawMessage{nil}},
		"several":                  {data: []json.RawMessage{nil, nil, nil}},
		"long ones":                {data: []json.RawMessage{long, long, long}},
		"a long one at the end":    {data: []json.RawMessage{nil, nil, long}},
		"half a line at the end":   {data: []json.RawMessage{nil, long}, half: `{"seq":3,"ti`},
		"a long half at the end":   {data: []json.RawMessage{nil, nil}, half: `{"seq":3,"data":"` + strings.Repeat("y", 3*firstChunk)},
		"one event, and some half": {data: []json.RawMessage{long}, half: "{"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := Create(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range tt.data {
				if err := l.Append(v1.RunEvent{Kind: "k", Data: d}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := l.file.WriteString(tt.half); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			first, last, size, err := Ends(dir)
			if err != nil || first.Seq != 1 || last.Seq != int64(len(tt.data)) {
				t.Errorf("%d %d %v", first.Seq, last.Seq, err)
			}
			if info, err := os.Stat(filepath.Join(dir, FileName)); err != nil || info.Size() != size {
				t.Errorf("size %d, %v", size, err)
			}
		})
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := Ends(dir); !errors.Is(err, io.EOF) {
		t.Errorf("a log with nothing whole: %v", err)
	}
}
