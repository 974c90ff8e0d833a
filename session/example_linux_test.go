package session_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/session"
)

// The second manager finds the session of the first, as after a restart of the program.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sessions-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	opts := session.Options{
		// No isolation, for development, and the consent to that. Use gvisor.New otherwise.
		Backends: []sandbox.Backend{local.New(local.Options{Dir: dir})},
		Require:  backend.Requirements{AllowNone: true},
		DataDir:  dir,
		Logger:   slog.New(slog.DiscardHandler),
	}
	m, err := session.New(ctx, opts)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, opened, err := m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Cell(ctx, sandbox.Cell{Code: "x = 41"})
	fmt.Println("new:", opened.New, err)
	if err := m.Detach(ctx); err != nil { // the session lives on
		fmt.Println(err)
		return
	}

	if m, err = session.New(ctx, opts); err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close() // ends all sessions
	if s, opened, err = m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	v, err := s.Cell(ctx, sandbox.Cell{Code: "x + 1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("new:", opened.New, v.Result.Text())
	// Output:
	// new: true <nil>
	// new: false 42
}

// Variables are kept with a session, outside of its sandbox.
func ExampleSession_SetVar() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sessions-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	m, err := session.New(ctx, session.Options{
		Backends: []sandbox.Backend{local.New(local.Options{Dir: dir})},
		Require:  backend.Requirements{AllowNone: true},
		DataDir:  dir,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	s, _, err := m.Open(ctx, session.Key{Tenant: "acme", Name: "work"}, session.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := s.SetVar(ctx, "ticket", "4711"); err != nil {
		fmt.Println(err)
		return
	}
	vars, err := s.Vars(ctx)
	fmt.Println(s.Key().Tenant, vars, err)
	// Output: acme map[ticket:4711] <nil>
}
