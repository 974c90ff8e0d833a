package scripts

import (
	"go/scanner"
	"go/token"
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
	qualified  = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)*$`)
	// namesInFile matches `name`, `name` and `name` in `file`; fileOfName matches `file`, function `name`.
	namesInFile = regexp.MustCompile("((?:`[^`\n]+`(?:,|,? and| or)\\s+)*`[^`\n]+`)\\s+in\\s+`([^`\n]+)`")
	fileOfName  = regexp.MustCompile("`([^`\n]+)`,\\s+(?:function|message|method|struct|table|test|variable)\\s+(`[^`\n]+`)")
	localLink   = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
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

// TestChecklistsNameTheRightFile checks that each name for which a checklist names the file is in that file. Of a name
// with dots, only the last part is checked.
func TestChecklistsNameTheRightFile(t *testing.T) {
	const top = ".."
	text, err := os.ReadFile(filepath.Join(top, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	check := func(file, spans string) {
		if !ourPath.MatchString(file) || filepath.Ext(file) == "" || strings.Contains(file, "NAME") {
			return
		}
		source, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Error(err)
			return
		}
		names := namesOf(file, source)
		for _, m := range codeSpan.FindAllStringSubmatch(spans, -1) {
			if !qualified.MatchString(m[1]) {
				continue // a path, a flag or an expression
			}
			checked++
			name := m[1][strings.LastIndex(m[1], ".")+1:]
			if !names[name] {
				t.Errorf("CONTRIBUTING.md: %s does not contain %s", file, name)
			}
		}
	}
	for _, m := range namesInFile.FindAllStringSubmatch(string(text), -1) {
		check(m[2], m[1])
	}
	for _, m := range fileOfName.FindAllStringSubmatch(string(text), -1) {
		check(m[1], m[2])
	}
	if checked < 60 {
		t.Errorf("found only %d names with their file", checked)
	}
}

// namesOf returns the identifiers and string constants of a Go file, but not the words of its comments and texts. Of
// another file, it returns all words.
func namesOf(file string, source []byte) map[string]bool {
	names := map[string]bool{}
	if filepath.Ext(file) != ".go" {
		addWords(names, source)
		return names
	}
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile(file, -1, len(source)), source, nil, 0)
	for {
		_, tok, text := s.Scan()
		if tok == token.EOF {
			return names
		}
		if tok == token.IDENT || tok == token.STRING {
			names[strings.Trim(text, "\"`")] = true
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
		addWords(words, source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// addWords adds the words of a source to a set.
func addWords(words map[string]bool, source []byte) {
	for w := range strings.FieldsFuncSeq(string(source), func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		words[w] = true
	}
}
