package attack

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	declaredTest = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	namedTest    = regexp.MustCompile("`(Test\\w+)`")
)

// TestEveryHazardNamesItsTests reads the table of hazards, and checks that each row names at least one test and that
// these tests exist.
func TestEveryHazardNamesItsTests(t *testing.T) {
	root := filepath.Join("..", "..")
	declared := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range declaredTest.FindAllSubmatch(source, -1) {
			declared[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| hazard | what we do | test |\n|---|---|---|\n")
	if !ok {
		t.Fatal("table of hazards not found")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) < 25 {
		t.Errorf("only %d hazards", len(rows))
	}
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		names := namedTest.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 3 || len(names) == 0 {
			t.Errorf("row without a test: %s", row)
		}
		for _, name := range names {
			if !declared[name[1]] {
				t.Errorf("test %s not found: %s", name[1], cells[0])
			}
		}
	}
}
