package examples

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runWait is the timeout of the build and of each example, on a busy machine.
const runWait = 90 * time.Second

// printed is what each example prints, as a regular expression.
var printed = map[string]string{
	"quickstart": `value:   '285, on Linux [^']+'
verdict: timed out after [0-9.]+s
file:    so far
`,
	"session": `new: true visitors: \['Ada'\]
new: false visitors: \['Ada', 'Grace'\]
`,
	"streaming": `step 1
step 2
step 3
no more
exit status 3, 21 bytes of stdout
listening
bye
exit status 0
`,
	"files": `watch: create /sum.txt
list:  /in.csv 6 bytes
list:  /sum.txt 4 bytes
read:  3\+4
tar:   3 entries, 10 bytes
`,
	"snapshot": `original \[0, 1, 2, 3, 4\]
spoiled  \[\]
fork 1   \[4, 3, 2, 1, 0\]
fork 2   \[0, 1, 4, 9, 16\]
restored \[0, 1, 2, 3, 4\]
`,
	"pool": `sandbox 0: ready after [0-9.]+m?s, 42
sandbox 1: ready after [0-9.]+m?s, 42
taken from the pool: 2 made on demand: 0
`,
	"docker": `isolation: (container|kernel), snapshots of files
command:   exit status 0, "1000\\n"
cell:      killed: out of memory
`,
	"httpclient": `words: 3
cell:  exit status 1 by IndexError in line 1
error: not_found
`,
	"gate": `allow echo tidy > notes; cat notes
      exit status 0, "tidy\\n"
deny  cd / && rm -rf \.
      line 1: removes \., which the machine needs: rule no-root-removal
warn  eval \$\(cat notes\)
      exit status 127, ""
`,
	"ask": `answer: It is under the third palm tree\.
cost:   2 turns, 2 cells, 3 model calls
read:   0\.[0-9]+ % of 920043 bytes
`,
	"tools": `answer: \["lamps", "tents"\]
`,
}

// TestExamplesPrintWhatTheyShow builds all examples at once and runs each. They share one data directory,
// because the template of the first sandbox serves them all.
func TestExamplesPrintWhatTheyShow(t *testing.T) {
	testneed.Sandboxes(t)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	bin, data := build(t), t.TempDir()
	env := []string{
		"RECLUSE_ENGINE=" + engine.Path, "RECLUSE_GUEST=" + guest.Path,
		"XDG_DATA_HOME=" + data, "XDG_CACHE_HOME=" + data,
	}
	t.Cleanup(func() { // after the parallel subtests
		left, err := os.ReadDir(filepath.Join(data, "recluse", "gvisor", "sandboxes"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 { // the directory is missing if only docker ran
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, args := env, []string(nil)
			switch name {
			case "httpclient":
				k := servertest.NewLocal(t, server.Options{})
				key := k.Key("example", "execute")
				env = append(slices.Clip(env), "RECLUSE_CLIENT_URL="+k.URL, "RECLUSE_CLIENT_KEY="+key)
			case "docker":
				testneed.All(t, "the feature suite of sandbox/docker makes the same calls")
				env = append(slices.Clip(env), "DOCKER_HOST="+dockerHost(t, engine.Path, guest.Path))
				args = append(args, dockertest.Image)
			}
			check(t, filepath.Join(bin, name), args, env, printed[name])
		})
	}
}

// TestExamplesAreListed compares the directories, the outputs above and the table of README.md.
func TestExamplesAreListed(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	all := names(t)
	for _, name := range all {
		if !strings.Contains(string(readme), fmt.Sprintf("\n| `go run ./examples/%s` | ", name)) {
			t.Errorf("README.md does not list %s", name)
		}
		if printed[name] == "" {
			t.Errorf("no test compares what %s prints", name)
		}
	}
	if len(printed) != len(all) || strings.Count(string(readme), "\n| `go run ") != len(all) {
		t.Errorf("the examples are %v; the tests or README.md have others", all)
	}
}

// names returns the directories of the examples.
func names(t *testing.T) []string {
	t.Helper()
	programs, err := filepath.Glob("*/main.go")
	if err != nil || len(programs) == 0 {
		t.Fatal(programs, err)
	}
	for i, p := range programs {
		programs[i] = filepath.Dir(p)
	}
	return programs
}

// build builds all examples and returns their directory.
func build(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".cache", "build", "examples")) // go build links only those that changed
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir+string(filepath.Separator), "./...")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// check runs a program and compares what it prints.
func check(t *testing.T, program string, args, env []string, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !regexp.MustCompile(`^`+want+`$`).Match(out) {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// dockerHost returns the address of a Docker engine that has the image of the tests.
func dockerHost(t *testing.T, engine, guest string) string {
	t.Helper()
	ctx := t.Context()
	e, err := dockertest.Start(ctx, engine)
	if errors.Is(err, dockertest.ErrMissing) {
		testneed.Lacking(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	err = e.Prepare(ctx, func(ctx context.Context, host string) error {
		b, err := docker.New(docker.Options{Host: host, Dir: t.TempDir(), GuestPath: guest})
		if err != nil {
			return err
		}
		return errors.Join(b.ImportHost(ctx, dockertest.Image), b.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.Host
}
