package scripts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// puzzles are phrases that readers had to read twice. docs/STYLE.md has what to write instead.
var puzzles = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`stands? there`, `is not one\b`, `is no [a-z]+ of`, `whoever`, `befalls?`, `in vain`, `says who`, `says what`,
	`gives what`, `lets? go of`, `(is|are|was|were) told`, `of before`, `the one before`, `nobody`, `somebody`,
	`comes? to an end`, `has gone`, `time-out`, `filesystem`, `simply`, `of course`,
}, "|") + `)`)

// allowed are texts in which a phrase is right: names of others, and quotations.
var allowed = regexp.MustCompile(`nobody:|/nobody|fs\.|filesystem service|overlay filesystem|^Backing Filesystem$`)

// TestTextsAreUnderstoodAtOnce fails for phrases in messages, help texts and documentation that need a second reading.
func TestTextsAreUnderstoodAtOnce(t *testing.T) {
	const top = ".."
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), top+"/")
		switch {
		case d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || slices.Contains([]string{"docs/STYLE.md", "scripts/english_test.go"}, name):
		case strings.HasSuffix(name, ".md"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for i, line := range strings.Split(string(text), "\n") {
				judge(t, name+":"+strconv.Itoa(i+1), line)
			}
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, ".pb.go") && // names of other protocols
			!strings.HasPrefix(name, "sandbox/sandboxtest/"):
			return judgeSource(t, path, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// judgeSource judges the texts of a Go file: every literal string with a space, tags of fields included.
func judgeSource(t *testing.T, path, name string) error {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
			judge(t, name+":"+strconv.Itoa(files.Position(lit.Pos()).Line), text)
		}
		return true
	})
	return nil
}

func judge(t *testing.T, where, text string) {
	t.Helper()
	for _, at := range puzzles.FindAllStringIndex(text, -1) {
		around := text[max(0, at[0]-30):min(len(text), at[1]+30)]
		if !allowed.MatchString(around) {
			t.Errorf("%s: %q in %q: see docs/STYLE.md", where, text[at[0]:at[1]], around)
		}
	}
}
