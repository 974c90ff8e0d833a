// Command streaming shows output while a command still runs: a writer receives each piece as it is
// written, and a command in the background is followed, signalled and awaited.
//
//	go run ./examples/streaming
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "streaming:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	s, err := sandbox.Open(ctx, backend, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer s.Close()

	// In the foreground: Run returns at the end, and Stdout receives the output while the command runs.
	v, err := s.Run(ctx, sandbox.Command{
		Shell:      "for i in 1 2 3; do echo step $i; sleep 0.1; done; echo no more >&2; exit 3",
		RunOptions: sandbox.RunOptions{Stdout: os.Stdout, Stderr: os.Stdout, Timeout: time.Minute},
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d bytes of stdout\n", v, v.Stdout.Produced)

	// In the background: Start returns at once, Follow shows the output from any offset on.
	const service = "trap 'echo bye; exit' TERM; echo listening; while :; do sleep 0.05; done"
	id, err := s.Start(ctx, sandbox.Command{Shell: service})
	if err != nil {
		return err
	}
	v, err = s.Follow(ctx, id, sandbox.FollowOptions{Stdout: &onOutput{func() error {
		return s.Signal(ctx, id, syscall.SIGTERM, sandbox.SignalOptions{})
	}}})
	if err != nil {
		return err
	}
	fmt.Println(v)
	return nil
}

// onOutput prints what it receives, and calls a function after the first piece.
type onOutput struct{ first func() error }

func (o *onOutput) Write(p []byte) (int, error) {
	n, err := os.Stdout.Write(p)
	if err == nil && o.first != nil {
		err, o.first = o.first(), nil
	}
	return n, err
}
