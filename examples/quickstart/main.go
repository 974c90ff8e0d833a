// Command quickstart shows the library in one page: a sandbox, two cells that share state, a
// command with a timeout, and a file that is read from the sandbox.
//
//	go run ./examples/quickstart
//
// It needs recluse-engine and recluse-guest beside it or on PATH:
//
//	CGO_ENABLED=0 go install github.com/recluse-dev/recluse/cmd/recluse-engine@latest github.com/recluse-dev/recluse/cmd/recluse-guest@latest
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	s, err := sandbox.Open(ctx, backend, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
	if err != nil {
		return err
	}
	defer s.Close()

	// Cells share one live interpreter. An exception of the code is in the verdict, not in err.
	if _, err := s.Cell(ctx, sandbox.Cell{Code: "import platform\nsquares = [n * n for n in range(10)]"}); err != nil {
		return err
	}
	v, err := s.Cell(ctx, sandbox.Cell{Code: "f'{sum(squares)}, on Linux {platform.release()}'"})
	if err != nil {
		return err
	}
	fmt.Println("value:  ", v.Result.Text())

	// At its timeout, a command is killed with everything that it started.
	v, err = s.Run(ctx, sandbox.Command{
		Shell:      "echo so far > result.txt; sleep 1000",
		RunOptions: sandbox.RunOptions{Timeout: time.Second},
	})
	if err != nil {
		return err
	}
	fmt.Println("verdict:", v)

	g, err := s.Guest(ctx)
	if err != nil {
		return err
	}
	b, err := s.Files().ReadAll(ctx, g.Home+"/result.txt")
	if err != nil {
		return err
	}
	fmt.Printf("file:    %s", b)
	return nil
}
