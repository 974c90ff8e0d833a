// Command files shows the file system of a sandbox: files are written, listed and read, a change is
// watched, and a directory leaves the sandbox as a tar stream.
//
//	go run ./examples/files
package main

import (
	"bytes"
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
		fmt.Fprintln(os.Stderr, "files:", err)
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

	// Relative paths begin in the home directory. Below confines a caller to one directory.
	err = s.Files().WriteAll(ctx, "data/in.csv", []byte("n\n3\n4\n"), sandbox.WriteOptions{Parents: true})
	if err != nil {
		return err
	}
	data := s.Files().Below("data")

	// The watch begins with the event "ready". Then a command writes another file.
	done := errors.New("seen")
	err = data.Watch(ctx, "", sandbox.WatchOptions{}, func(e sandbox.FileEvent) error {
		if e.Op == "ready" {
			_, err := s.Run(ctx, sandbox.Command{Shell: "cd data && tail -n +2 in.csv | paste -sd+ > sum.txt"})
			return err
		}
		fmt.Println("watch:", e.Op, e.Path)
		return done
	})
	if !errors.Is(err, done) {
		return err
	}

	for f, err := range data.List(ctx, "", sandbox.ListOptions{}) {
		if err != nil {
			return err
		}
		fmt.Println("list: ", f.Path, f.Size, "bytes")
	}
	sum, err := data.ReadAll(ctx, "sum.txt")
	if err != nil {
		return err
	}
	fmt.Printf("read:  %s", sum)

	var archive bytes.Buffer
	stats, err := s.Files().Download(ctx, &archive, "data")
	if err != nil {
		return err
	}
	fmt.Println("tar:  ", stats.Entries, "entries,", stats.Bytes, "bytes")
	return nil
}
