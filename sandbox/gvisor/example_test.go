//go:build linux

package gvisor_test

import (
	"context"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// State is kept between cells, and a fork copies it.
func Example() {
	ctx := context.Background()
	b, err := gvisor.New(gvisor.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	sb, err := sandbox.Open(ctx, b, sandbox.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	_, _ = sb.Cell(ctx, sandbox.Cell{Code: "x = 41"})
	forks, err := sb.Fork(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer forks[0].Close()

	v, err := forks[0].Cell(ctx, sandbox.Cell{Code: "x + 1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(v.Result.Text())

	v, err = sb.Run(ctx, sandbox.Command{Shell: "echo begun; sleep 100", RunOptions: sandbox.RunOptions{Timeout: 500 * time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(v.Ended, ": ", v.Stdout)
	// Output:
	// 42
	// timeout: begun
}
