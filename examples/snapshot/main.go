// Command snapshot shows copies of a live sandbox, with files, processes and memory: an earlier
// state is restored from a snapshot on disk, and two forks continue from the same state.
//
//	go run ./examples/snapshot
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "snapshot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	s, err := sandbox.Open(ctx, backend, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := show(ctx, s, "original", "numbers = list(range(5))\nnumbers"); err != nil {
		return err
	}

	// A snapshot stays on disk until it is deleted. The sandbox continues.
	snap, err := s.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.DeleteSnapshot(context.WithoutCancel(ctx), snap.ID)) }()
	if err := show(ctx, s, "spoiled ", "numbers.clear()\nnumbers"); err != nil {
		return err
	}
	restored, err := sandbox.Restore(ctx, backend, snap, sandbox.RestoreOptions{})
	if err != nil {
		return err
	}
	defer restored.Close()

	// Forks are live copies. A change in one is not visible in the others.
	forks, err := restored.Fork(ctx, 2)
	for _, f := range forks { // after an error, too: some forks may have been made
		defer f.Close()
	}
	if err != nil {
		return err
	}
	return errors.Join(
		show(ctx, forks[0], "fork 1  ", "numbers.reverse()\nnumbers"),
		show(ctx, forks[1], "fork 2  ", "[n * n for n in numbers]"),
		show(ctx, restored, "restored", "numbers"),
	)
}

func show(ctx context.Context, s *sandbox.Sandbox, name, code string) error {
	v, err := s.Cell(ctx, sandbox.Cell{Code: code})
	if err != nil {
		return err
	}
	fmt.Println(name, v.Result.Text())
	return nil
}
