package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	top  = "../.."
	file = "THIRD_PARTY_NOTICES.txt"
)

// The list is compared, not the texts: a module whose version stays has the same license.
func TestEveryLinkedModuleIsListed(t *testing.T) {
	modules, err := linked(t.Context(), top)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, m := range modules {
		want[m.String()] = true
	}
	text, err := os.ReadFile(filepath.Join(top, file))
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(text), "\n"+listBegins+"\n")
	list, texts, complete := strings.Cut(list, "\n"+listEnds+"\n")
	if !ok || !complete {
		t.Fatalf("%s has no list of modules; run make notices", file)
	}
	for line := range strings.Lines(list) {
		name := strings.TrimSpace(line)
		if name != "" && !want[name] {
			t.Errorf("%s lists %s, which no program links; run make notices", file, name)
		}
		delete(want, name)
		if name != "" && !strings.Contains(texts, "\n"+name+", ") {
			t.Errorf("%s has no license text of %s; run make notices", file, name)
		}
	}
	for name := range want {
		t.Errorf("%s does not list %s; run make notices", file, name)
	}
}

func TestLicensesOfPartsOfAModuleAreFound(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"LICENSE", "NOTICE.txt", "LICENSE.docs", "license.go", "a/b/COPYING", "a/b/c/x.go", "other/LICENSE"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := licenses(root, []string{filepath.Join(root, "a/b/c")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(root, "LICENSE"), filepath.Join(root, "NOTICE.txt"), filepath.Join(root, "a/b/COPYING")}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
