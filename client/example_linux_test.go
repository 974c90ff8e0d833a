package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/session"
)

// Open returns the session of a name, and creates it if it does not exist.
func Example() {
	ctx := context.Background()
	url, stop := serve() // recluse serve --listen 127.0.0.1:7070
	defer stop()

	c, err := client.New(client.Options{URL: url, Key: os.Getenv("RECLUSE_CLIENT_KEY")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	s, opened, err := c.Open(ctx, "work", v1.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := s.Cell(ctx, v1.Cell{Code: "x = 41\nx + 1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(opened.New, v.Result.Text())

	_, _, err = c.Get(ctx, "play")
	fmt.Println(v1.CodeOf(err))
	// Output:
	// true 42
	// session_not_found
}

// A command in the background continues when the client ends. Follow writes its output from any offset on.
func ExampleSession_Start() {
	ctx := context.Background()
	url, stop := serve()
	defer stop()

	c, err := client.New(client.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	s, err := c.Create(ctx, "", v1.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := s.Start(ctx, v1.Command{Shell: "echo one; echo two"})
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := s.Follow(ctx, id, v1.FollowOptions{Stdout: os.Stdout, StdoutOffset: int64(len("one\n"))})
	fmt.Println(v, err)
	// Output:
	// two
	// exit status 0 <nil>
}

// serve starts a server without keys whose sandboxes are processes of this machine, and returns its URL.
func serve() (url string, stop func()) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "recluse-client-")
	guest, guestErr := testbin.Guest()
	if err = errors.Join(err, guestErr); err != nil {
		panic(err)
	}
	logger := slog.New(slog.DiscardHandler)
	db, err := store.OpenSQLite(ctx, dir)
	if err != nil {
		panic(err)
	}
	m, err := session.New(ctx, session.Options{
		Backends: []sandbox.Backend{local.New(local.Options{Dir: dir, GuestPath: guest.Path})},
		Require:  backend.Requirements{AllowNone: true},
		DataDir:  dir,
		Store:    db,
		NoPool:   true,
		Logger:   logger,
	})
	if err != nil {
		panic(err)
	}
	s, err := server.New(ctx, server.Options{Manager: m, Store: db, Logger: logger})
	if err != nil {
		panic(err)
	}
	listener := httptest.NewServer(s.Handler())
	return listener.URL, func() {
		listener.Close()
		err := m.Close()
		s.Wait()
		if err = errors.Join(err, db.Close(), os.RemoveAll(dir)); err != nil {
			panic(err)
		}
	}
}
