//go:build linux

package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// starterEnv is the environment variable that makes the test below another program: it starts a sandbox in that
// directory, and is killed before the limits are applied.
const starterEnv = "RECLUSE_TEST_STARTER"

func TestASandboxWhoseStarterDiedAtOnceGetsItsLimits(t *testing.T) {
	testneed.Root(t, "making cgroups")
	if dir := os.Getenv(starterEnv); dir != "" {
		startAndHang(t, dir)
	}
	dir := t.TempDir()
	b := backendIn(t, dir)
	id := startedElsewhere(t, b, dir)
	host, err := b.limits()
	if err != nil {
		t.Fatal(err)
	}
	group := host.open(id)
	if group.limitsApplied() {
		t.Fatal("the starter has already applied the limits")
	}
	for range 2 { // the second round has nothing to do
		sb, err := sandbox.Attach(t.Context(), b, id)
		if err != nil {
			t.Fatal(err)
		}
		if v := cell(t, sb, "1+1"); v.Result.Text() != "2" {
			t.Error(v)
		}
		sb.Detach() // waits until the limits are applied
		if !group.limitsApplied() {
			t.Error("its processors are not limited")
		}
		if procs, err := os.ReadFile(filepath.Join(group.dir("cpu", cgroupApp), "cgroup.procs")); err != nil || len(procs) == 0 {
			t.Errorf("the processes of commands are not in their cgroup: %q, %v", procs, err)
		}
	}
	// Again by hand: the other program may have died halfway.
	st, err := b.driver(b.engine.Path, true).state(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := group.moveStubs(st.Sandbox.Pid, "/"+filepath.Base(b.guest.Path)); err != nil {
		t.Error(err)
	}
}

// startAndHang is the main function of the other program.
func startAndHang(t *testing.T, dir string) {
	t.Helper()
	b := backendIn(t, dir)
	b.opts.NoTemplates = true
	b.limitsDelay = time.Hour
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("started", sb.ID())
	select {}
}

// startedElsewhere starts the other program, kills it, and returns the sandbox that it has started.
func startedElsewhere(t *testing.T, b *Backend, dir string) (id string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), starterEnv+"="+dir, "TMPDIR="+dir) // it is killed and cannot clean up
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fscanf(out, "started %s", &id)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || !strings.HasPrefix(id, "s") {
		t.Fatalf("the other program started %q: %v", id, err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	return id
}
