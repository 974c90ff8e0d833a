package client

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// dependenciesFile lists the packages that a program links by importing this one, without those of the standard
// library.
const dependenciesFile = "dependencies.txt"

func TestDependenciesAreThoseListed(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	text := strings.Join(got, "\n") + "\n"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(dependenciesFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(dependenciesFile)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the client imports other packages than %s lists; if each is worth it, run UPDATE=1 go test -run %s ./client\ngot:\n%s", dependenciesFile, t.Name(), text)
	}
}

// A program that only uses the client stays small: it links no database, no SDK of a model and no gate.
func TestAProgramWithTheClientIsSmall(t *testing.T) {
	testneed.Slow(t, "links a program")
	const maxSize = 12_000_000 // the documentation promises at most 12 MB
	bin := filepath.Join(t.TempDir(), "hello")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./testdata/hello").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxSize {
		t.Errorf("a program with the client has %d bytes, more than %d", info.Size(), maxSize)
	}
}
