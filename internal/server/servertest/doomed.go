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

// These variables make a test program the server of a bench's data directory, until it is killed.
const (
	dirEnv    = "RECLUSE_TEST_DIR"
	sharedEnv = "RECLUSE_TEST_SHARED"
	listenEnv = "RECLUSE_TEST_LISTEN"
)

// doomedWait bounds the life of a server that is to be killed.
const doomedWait = 2 * time.Minute

// Doomed says whether this program is a server that is to be killed; the package under test says where.
func Doomed() bool { return os.Getenv(dirEnv) != "" }

// Killed lets another process serve while f asks it. That process dies over it; then this one serves again.
func (k *Bench) Killed(f func()) {
	k.t.Helper()
	k.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), doomedWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), dirEnv+"="+k.dir, sharedEnv+"="+shared, listenEnv+"="+k.tcp)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // its end is the child's, too
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
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL || ctx.Err() != nil {
		k.t.Fatalf("the server did not die: %v, %v", err, ctx.Err())
	}
	k.Start()
}

// serveDoomed is the program that is killed.
func serveDoomed() int {
	shared = os.Getenv(sharedEnv)
	b, err := backend()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	k := &Bench{t: outsideTest{}, Backend: b, opts: server.Options{Logger: slog.New(slog.DiscardHandler)}, tcp: os.Getenv(listenEnv)}
	k.in(os.Getenv(dirEnv))
	k.Start()
	fmt.Fprintln(os.Stdout, "serving")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
	return 3
}

// outsideTest is what a bench has of a test in a program that runs none.
type outsideTest struct{ testing.TB }

// Helper implements testing.TB.
func (outsideTest) Helper() {}

// Fatal implements testing.TB.
func (outsideTest) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
