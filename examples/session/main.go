// Command session shows state that is found again by key. The first visit creates a session and
// leaves it running. The second visit has a new manager, as after a restart of the program, and
// finds the same interpreter with its variables.
//
//	go run ./examples/session
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/session"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "session:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "session-") // a real program uses a permanent directory
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	first, err := open(ctx, dir)
	if err != nil {
		return err
	}
	err = visit(ctx, first, "visitors = ['Ada']\nvisitors")
	if err = errors.Join(err, first.Detach(ctx)); err != nil { // the session continues to run
		return err
	}

	second, err := open(ctx, dir)
	if err != nil {
		return err
	}
	err = visit(ctx, second, "visitors.append('Grace')\nvisitors")
	return errors.Join(err, second.Close()) // ends all sessions
}

func open(ctx context.Context, dir string) (*session.Manager, error) {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return nil, err
	}
	return session.New(ctx, session.Options{Backends: []sandbox.Backend{backend}, DataDir: dir, NoPool: true})
}

// visit runs code in the session of a key.
func visit(ctx context.Context, m *session.Manager, code string) error {
	s, opened, err := m.Open(ctx, session.Key{Name: "guestbook"}, session.OpenOptions{})
	if err != nil {
		return err
	}
	v, err := s.Cell(ctx, sandbox.Cell{Code: code})
	if err != nil {
		return err
	}
	fmt.Println("new:", opened.New, "visitors:", v.Result.Text())
	return nil
}
