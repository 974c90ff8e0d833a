package scripts

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestEachPackageHasOneImportRule checks that each package is in exactly one rule of depguard: a package without a rule
// could import anything.
func TestEachPackageHasOneImportRule(t *testing.T) {
	const top = ".."
	text, err := os.ReadFile(filepath.Join(top, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Files []string `yaml:"files"`
					} `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	packages := packageDirs(t, top)
	rules := map[string][]string{} // by package
	for name, rule := range config.Linters.Settings.Depguard.Rules {
		for _, pattern := range rule.Files {
			if strings.HasPrefix(pattern, "!") || pattern == "**/*.go" {
				continue
			}
			dirs := path.Dir(strings.TrimPrefix(pattern, "**/"))
			used := false
			for _, p := range packages {
				ok, err := path.Match(dirs, p)
				if err != nil {
					t.Fatalf("%s: %v", pattern, err)
				}
				if ok {
					rules[p] = append(rules[p], name)
					used = true
				}
			}
			if !used {
				t.Errorf("rule %s: package %s not found", name, dirs)
			}
		}
	}
	for _, p := range packages {
		if len(rules[p]) != 1 {
			t.Errorf("package %s is in the rules %q of depguard in .golangci.yml, want one", p, rules[p])
		}
	}
}

// packageDirs returns the directories of all packages of the repository, including those for other systems, which go
// list omits.
func packageDirs(t *testing.T, top string) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go"):
			return nil
		}
		dir, err := filepath.Rel(top, filepath.Dir(file))
		dirs = append(dirs, filepath.ToSlash(dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
