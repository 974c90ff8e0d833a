package session

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// The tests run on gVisor, and once more on containers. The functions of this file hide the differences, so that a test
// need not know on which backend it runs.

// newBackend returns the backend that is tested. Backends with the same directory have the same sandboxes.
func newBackend(dir string) (sandbox.Backend, error) {
	engine, guest, err := testbin.Programs()
	if err != nil {
		return nil, err
	}
	if dockertest.Chosen() {
		return newDockerBackend(dir, guest.Path)
	}
	return gvisor.New(gvisor.Options{
		DataDir: dir, CacheDir: filepath.Join(dir, "cache"), Engine: engine.Path, Guest: guest.Path,
		Network: sandbox.NetworkOptions{Resolver: here{}, FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
}

// number returns how many sandboxes a test makes. Containers get a smaller number than gVisor, because each takes a
// large part of a second.
func number(gvisor, containers int) int {
	if dockertest.Chosen() {
		return containers
	}
	return gvisor
}

// rounds returns how often a test repeats a step: all in make test-all, few otherwise.
func rounds(few, all int) int {
	if testneed.AllTests() {
		return all
	}
	return few
}

// sleeps reports whether sessions of a backend can be hibernated and forked, because its snapshots contain memory.
func sleeps(b sandbox.Backend) bool {
	return b.Capabilities(context.Background()).Snapshots == sandbox.SnapshotsMemory
}

// note is code that stores x in the interpreter and in a file, so that every kind of snapshot contains it.
//
// A second file is so large that the disk of a gVisor sandbox is not part of its memory in a snapshot.
func note(x int) string {
	return fmt.Sprintf("x = %d; _ = open('x', 'w').write('%d'); _ = open('large', 'wb').write(bytes([x]) * 20_000_000)", x, x)
}

// noted returns code that reads x after a restore: from the interpreter, or from the file if snapshots contain only
// files.
func noted(b sandbox.Backend) string {
	if sleeps(b) {
		return "x if (str(x), bytes([x]) * 20_000_000) == (open('x').read(), open('large', 'rb').read()) else 'files of another time'"
	}
	return "int(open('x').read())"
}

// process returns the process of the host that runs a sandbox.
func process(ctx context.Context, b sandbox.Backend, id string) (int, error) {
	if dockertest.Chosen() {
		text, err := exec.CommandContext(ctx, "docker", "-H", os.Getenv(dockertest.Variable), "inspect", "--format", "{{.State.Pid}}", "recluse-"+id).Output()
		if err != nil {
			return 0, fmt.Errorf("inspect the container: %w", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && pid <= 0 {
			err = fmt.Errorf("container of sandbox %s does not run", id)
		}
		return pid, err
	}
	all, err := b.List(ctx)
	for _, i := range all {
		if i.ID == id && i.PID > 0 {
			return i.PID, nil
		}
	}
	return 0, fmt.Errorf("sandbox %s is not there: %w", id, err)
}
