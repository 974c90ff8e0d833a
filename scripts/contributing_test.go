package scripts

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	codeSpan   = regexp.MustCompile("`([^`\n]+)`")
	ourPath    = regexp.MustCompile(`^(api|bench|client|cmd|docs|examples|gate|internal|llm|rlm|sandbox|scripts|session|test)/[\w./-]+$`)
	identifier = regexp.MustCompile(`^[A-Za-z]\w*$`)
	localLink  = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// TestGuidesNameWhatExists checks that the files, tests, functions and fields that the guides for contributors name
// exist. NAME is a placeholder for something that the reader adds.
func TestGuidesNameWhatExists(t *testing.T) {
	const top = ".."
	words := sourceWords(t, top)
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
			case identifier.MatchString(name) && !words[name] && !strings.Contains(name, "NAME"):
				t.Errorf("%s names %s, which does not exist", guide, name)
			}
		}
		for _, m := range localLink.FindAllStringSubmatch(string(text), -1) {
			exists(filepath.Join(filepath.Dir(guide), m[1]))
		}
	}
}

// sourceWords returns all words of the sources, the Makefile and the configuration of the linters.
func sourceWords(t *testing.T, top string) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".proto", ".py", ".sh", ".yaml", ".yml":
		default:
			if d.Name() != "Makefile" {
				return nil
			}
		}
		source, err := os.ReadFile(path)
		for w := range strings.FieldsFuncSeq(string(source), func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}) {
			words[w] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return words
}
