// Command httpclient shows package client: a session of a server over HTTP, with a file, a cell and
// an event. The package needs neither an engine nor a guest, and works on every system.
//
//	recluse serve --listen 127.0.0.1:7070 &
//	export RECLUSE_CLIENT_URL=http://127.0.0.1:7070 RECLUSE_CLIENT_KEY=$(recluse key create example)
//	go run ./examples/httpclient
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "httpclient:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	c, err := client.New(client.Options{URL: os.Getenv("RECLUSE_CLIENT_URL"), Key: os.Getenv("RECLUSE_CLIENT_KEY")})
	if err != nil {
		return err
	}
	defer c.Close()

	s, err := c.Create(ctx, "", v1.OpenOptions{}) // Open would find a session by its name
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.End(context.WithoutCancel(ctx), "the example is over")) }()

	if err := s.Files().WriteAll(ctx, "words.txt", []byte("recluse recurses alone\n"), v1.WriteOptions{}); err != nil {
		return err
	}
	v, err := s.Cell(ctx, v1.Cell{Code: "words = open('words.txt').read().split()\nlen(words)"})
	if err != nil {
		return err
	}
	fmt.Println("words:", v.Result.Text())

	// An exception of the code is in the verdict. A failure of the server is an error with a stable code.
	v, err = s.Cell(ctx, v1.Cell{Code: "words[3]"})
	if err != nil {
		return err
	}
	fmt.Println("cell: ", v, "by", v.Error.Name, "in line", v.Error.Line)
	_, err = s.Follow(ctx, "unknown", v1.FollowOptions{})
	fmt.Println("error:", v1.CodeOf(err))
	return nil
}
