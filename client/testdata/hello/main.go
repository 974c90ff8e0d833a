// The program that the tests of package client measure: the smallest one that runs a cell on a server.
package main

import (
	"context"
	"fmt"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := client.New(client.Options{URL: "http://127.0.0.1:7070", Key: os.Getenv("RECLUSE_KEY")})
	if err != nil {
		return err
	}
	defer c.Close()
	s, _, err := c.Open(ctx, "hello", v1.OpenOptions{})
	if err != nil {
		return err
	}
	v, err := s.Cell(ctx, v1.Cell{Code: "print('hello')"})
	if err != nil {
		return err
	}
	fmt.Print(v.Stdout)
	return nil
}
