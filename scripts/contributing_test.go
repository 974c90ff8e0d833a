package scripts

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeSpan     = regexp.MustCompile("`([^`\n]+)`")
	ourPath      = regexp.MustCompile(`^(api|bench|client|cmd|docs|examples|gate|internal|llm|rlm|sandbox|scripts|session|test)/[\w./-]+$`)
	testName     = regexp.MustCompile(`^Test[A-Z]\w+$`)
	declaredTest = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	localLink    = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// TestGuidesNameWhatExists checks that the files and tests that the guides for contributors name exist. NAME is a
// placeholder for something that the reader adds.
func TestGuidesNameWhatExists(t *testing.T) {
	const top = ".."
	tests := declaredTests(t, top)
	for _, guide := range []string{"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "README.md", "docs/DEVELOPMENT.md", "docs/STYLE.md", "docs/backends/WRITING.md"} {
		text, err := os.ReadFile(filepath.Join(top, guide))
		if err != nil {
			t.Fatal(err)
		}
		exists := func(path string) {
			if _, err := os.Stat(filepath.Join(top, path)); err != nil && !strings.Contains(path, "NAME") {
				t.Errorf("%s names %s, which does not exist", guide, path)
			}
		}
		for _, m := range codeSpan.FindAllStringSubmatch(string(text), -1) {
			switch name := m[1]; {
			case ourPath.MatchString(name):
				exists(name)
			case testName.MatchString(name) && !tests[name]:
				t.Errorf("%s names %s, which does not exist", guide, name)
			}
		}
		for _, m := range localLink.FindAllStringSubmatch(string(text), -1) {
			exists(filepath.Join(filepath.Dir(guide), m[1]))
		}
	}
}

// declaredTests returns the names of all tests of the repository.
func declaredTests(t *testing.T, top string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range declaredTest.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
