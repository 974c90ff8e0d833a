// Command pool shows warm sandboxes: a pool keeps some ready, so that a caller waits milliseconds
// for an unused one.
//
//	go run ./examples/pool
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pool:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	p := pool.New(backend, pool.Options{Min: 2, Target: 2})
	defer p.Close() // ends the sandboxes that were not taken

	spec := sandbox.Spec{} // a pool keeps sandboxes per spec
	if err := p.Warm(ctx, spec); err != nil {
		return err
	}
	for i := range 2 {
		if err := use(ctx, p, spec, i); err != nil {
			return err
		}
	}
	stats := p.Stats()
	fmt.Println("taken from the pool:", stats.Hits, "made on demand:", stats.Misses)
	return nil
}

// use takes a sandbox and closes it: a used sandbox does not return to the pool.
func use(ctx context.Context, p *pool.Pool, spec sandbox.Spec, n int) (err error) {
	begin := time.Now()
	s, err := p.Get(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	ready := time.Since(begin)
	v, err := s.Cell(ctx, sandbox.Cell{Code: "6 * 7"})
	if err != nil {
		return err
	}
	fmt.Printf("sandbox %d: ready after %v, %s\n", n, ready.Round(time.Millisecond), v.Result.Text())
	return nil
}
