// Command docker shows the Docker backend: the same sandbox as a container of the engine that the
// docker command would use, from the image that the argument names.
//
//	go run ./examples/docker
//	go run ./examples/docker python:3.13-slim
//
// It needs recluse-guest beside it or on PATH, but not recluse-engine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	image := docker.DefaultImage
	if len(os.Args) > 1 {
		image = os.Args[1]
	}
	if err := run(ctx, image); err != nil {
		fmt.Fprintln(os.Stderr, "docker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, image string) (err error) {
	// RuntimeAuto prefers a runtime with a kernel of its own, such as runsc, to runc.
	backend, err := docker.New(docker.Options{Image: image, Runtime: docker.RuntimeAuto})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	can := backend.Capabilities(ctx)
	fmt.Printf("isolation: %s, snapshots of %s\n", can.Isolation, can.Snapshots)

	s, err := sandbox.Open(ctx, backend, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	v, err := s.Run(ctx, sandbox.Command{Shell: "id -u"})
	if err != nil {
		return err
	}
	fmt.Printf("command:   %s, %q\n", v, v.Stdout)
	v, err = s.Cell(ctx, sandbox.Cell{Code: "bytearray(1 << 30)"}) // four times the limit
	if err != nil {
		return err
	}
	fmt.Println("cell:     ", v)
	return nil
}
