//go:build linux

package servertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/server"
)

// These environment variables make a test program the server of a bench's data directory, until it is killed.
const (
	dirEnv    = "RECLUSE_TEST_DIR"
	sharedEnv = "RECLUSE_TEST_SHARED"
	listenEnv = "RECLUSE_TEST_LISTEN"
)

// childTimeout bounds the life of a child server.
const childTimeout = 2 * time.Minute

// IsChild reports whether this program is a child server of ServeInChild. The package under test then makes it kill
// itself at some point.
func IsChild() bool { return os.Getenv(dirEnv) != "" }

// ServeInChild stops the server, and runs it in a child process during f. The child must have been killed by SIGKILL
// when f has returned. Then the server is started again in this process.
func (k *Bench) ServeInChild(f func()) {
	k.t.Helper()
	k.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), dirEnv+"="+k.dir, sharedEnv+"="+shared, listenEnv+"="+k.tcp)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // the child ends when the pipe is closed
	if err != nil {
		k.t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "serving\n" {
		k.t.Fatalf("%s, %v, %v", line, err, cmd.Wait())
	}
	f()
	err = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGKILL || ctx.Err() != nil {
		k.t.Fatalf("the child server was not killed: %v, %v", err, ctx.Err())
	}
	k.Start()
}

// serveAsChild is the main function of a child server.
func serveAsChild() int {
	shared = os.Getenv(sharedEnv)
	b, err := backend()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	k := &Bench{
		t:       outsideTest{},
		Backend: b,
		opts:    server.Options{Logger: slog.New(slog.DiscardHandler)},
		tcp:     os.Getenv(listenEnv),
	}
	k.setDir(os.Getenv(dirEnv))
	k.Start()
	fmt.Fprintln(os.Stdout, "serving")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes the pipe
	return 3
}

// outsideTest is the testing.TB of a bench in a child server, which runs no tests.
type outsideTest struct{ testing.TB }

// Helper implements testing.TB.
func (outsideTest) Helper() {}

// Fatal implements testing.TB.
func (outsideTest) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
