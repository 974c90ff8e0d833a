package hostpath

import (
	"os"
	"path/filepath"
	"strconv"
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

func TestKeyFilesBelowAnOpenedPlaceAreRefused(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(base, "p")
	p := &Policy{Trees: []Rule{{base, "secrets"}}, Allow: []string{project}}
	for i, tt := range []struct {
		file, text string
		refused    bool
	}{
		{".netrc", "", true},
		{"id_rsa", "", true},
		{"deploy/keys/id_ed25519", "", true},
		{"a/b/c/.git-credentials", "", true},
		{".pgpass", "", true},
		{".pypirc", "", true},
		{"id_rsa.pub", "", false},
		{"id_rsa/readme", "", false},
		{"netrc.go", "", false},
		{".npmrc", "save-exact=true\n", false},
		{".npmrc", "# _authToken=npm_abc\n//registry.npmjs.org/:_authToken=${NPM_TOKEN}\n", false},
		{".npmrc", "save-exact=true\n//registry.npmjs.org/:_authToken=npm_abc\n", true},
		{".npmrc", "_auth = \"abc=\"\n", true},
		{"web/.npmrc", strings.Repeat("#\n", maxNpmrc), true},
	} {
		dir := filepath.Join(project, strconv.Itoa(i))
		file := filepath.Join(dir, tt.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, file} {
			if _, err := p.Judge(path); (err != nil) != tt.refused || err != nil && !strings.Contains(err.Error(), "credentials") {
				t.Errorf("%s with %.40q: %v", path, tt.text, err)
			}
		}
	}
	if _, err := p.Judge(project); err == nil {
		t.Error("the place above all of them is shown")
	}
}
