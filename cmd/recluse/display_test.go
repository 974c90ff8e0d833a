package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestDisplaysAreSavedByOrderAndType(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shown[1]") // no pattern
	shown := func(formats map[string]string) *sandbox.Bundle {
		b := &sandbox.Bundle{Data: map[string]json.RawMessage{}}
		for mime, text := range formats {
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			b.Data[mime] = quoted
		}
		return b
	}
	picture := base64.StdEncoding.EncodeToString([]byte("\x89PNG"))
	for range 2 { // files of an earlier call stay
		d, err := newDisplays(dir)
		if err != nil {
			t.Fatal(err)
		}
		d.save(nil)
		d.save(shown(map[string]string{"text/plain": "alone"}))
		d.save(shown(map[string]string{"text/plain": "x", "image/png": picture[:4] + "\n" + picture[4:] + "\n"}))
		d.save(shown(map[string]string{"image/svg+xml": "<svg/>", "text/html": "<p>"}))
		if d.err != nil || len(d.Files) != 3 {
			t.Fatalf("%v, %v", d.Files, d.err)
		}
	}
	want := map[string]string{
		"display-1.png": "\x89PNG", "display-2.html": "<p>", "display-2.svg": "<svg/>", "display-3.png": "", "display-4.html": "", "display-4.svg": "",
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(want) {
		t.Fatalf("%v, %v", entries, err)
	}
	for name, content := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || content != "" && string(got) != content {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	d, err := newDisplays(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d.save(shown(map[string]string{"image/png": "!!"})); d.err == nil {
		t.Error("an invalid picture was saved")
	}
	d = &displays{dir: dir, Files: []string{"a"}}
	got, err := d.report(&sandbox.Verdict{})
	if m, ok := got.(map[string]any); err != nil || !ok || !slices.Equal(m["saved_displays"].([]string), []string{"a"}) || m["ended"] == nil {
		t.Errorf("%v, %v", got, err)
	}
}
