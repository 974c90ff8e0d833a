package hostpath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysBelowAnOpenedPlaceAreRefused(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(base, "p")
	for _, dir := range []string{"clean/src", "keys/.ssh", "deep/a/b/.aws"} {
		if err := os.MkdirAll(filepath.Join(project, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p := &Policy{Trees: []Rule{{base, "secrets"}}, Allow: []string{project}}
	if _, err := p.Judge(filepath.Join(project, "clean")); err != nil {
		t.Errorf("a place without keys: %v", err)
	}
	for _, name := range []string{"keys", "deep", ""} {
		if _, err := p.Judge(filepath.Join(project, name)); err == nil || !strings.Contains(err.Error(), "credentials") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
