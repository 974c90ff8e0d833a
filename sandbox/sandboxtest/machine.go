package sandboxtest

import (
	"context"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Machine is what most of the suite needs of a sandbox. *sandbox.Sandbox is one; so is a session, in this program or over a
// connection, with a few lines around it.
type Machine interface {
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	Start(ctx context.Context, c sandbox.Command) (string, error)
	Follow(ctx context.Context, id string, o sandbox.FollowOptions) (*sandbox.Verdict, error)
	Signal(ctx context.Context, id string, sig syscall.Signal, o sandbox.SignalOptions) error
	Cancel(ctx context.Context, id string) error
	Forget(ctx context.Context, id string) error
	Operations(ctx context.Context) ([]sandbox.Operation, error)
	Contexts(ctx context.Context) ([]sandbox.Context, error)
	CloseContext(ctx context.Context, name string) error
	Ping(ctx context.Context) error
	Files() sandbox.FileSystem
}

// Owned is a Machine with its life. *sandbox.Sandbox is one.
type Owned interface {
	Machine
	// ID is the sandbox's.
	ID() string
	Guest(ctx context.Context) (*sandbox.Guest, error)
	Close() error
}

// Copier is an Owned that is no *sandbox.Sandbox and makes copies of itself in its own way.
type Copier interface {
	// Save keeps it as it is now; restore makes another one of that, and forget ends the keeping.
	Save(ctx context.Context) (restore func(ctx context.Context) (Owned, error), forget func(ctx context.Context) error, err error)
	// Copies makes live copies.
	Copies(ctx context.Context, n int) ([]Owned, error)
}

// files returns the file system of a machine below a directory; an empty root means all of it.
func files(m Machine, root string) sandbox.FileSystem {
	if root == "" {
		return m.Files()
	}
	return m.Files().Below(root)
}

// try makes a machine that whoever calls closes.
func (s *suite) try(ctx context.Context, b sandbox.Backend, spec sandbox.Spec) (Owned, error) {
	if s.opts.Open != nil {
		return s.opts.Open(ctx, spec)
	}
	sb, err := sandbox.Open(ctx, b, spec)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// own makes a machine that ends with the test.
func (s *suite) own(t *testing.T, b sandbox.Backend, spec sandbox.Spec) Owned {
	t.Helper()
	m, err := s.try(t.Context(), b, spec)
	if err != nil {
		t.Fatalf("open a machine: %v", err)
	}
	closing(t, m)
	return m
}

// closing ends a machine with the test.
func closing(t *testing.T, m Owned) {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close the machine: %v", err)
		}
	})
}

// lasting makes a machine that nobody need be attached to, and that is gone with the test.
func (s *suite) lasting(t *testing.T) Owned {
	t.Helper()
	b := s.backend(t)
	m, err := s.try(t.Context(), b, s.opts.Spec)
	noError(t, err)
	sb, library := m.(*sandbox.Sandbox)
	if !library {
		closing(t, m)
		return m
	}
	t.Cleanup(func() { noError(t, b.Stop(context.WithoutCancel(t.Context()), sb.ID())) })
	return m
}

// again comes back to a machine of lasting that nobody was attached to for a moment.
func (s *suite) again(t *testing.T, m Owned) Owned {
	t.Helper()
	sb, library := m.(*sandbox.Sandbox)
	if !library {
		s.opts.Restart(t)
		return m
	}
	sb.Detach()
	_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
	fails(t, "after a detach", err, v1.CodeSandboxLost)
	next, err := sandbox.Attach(t.Context(), s.backend(t), sb.ID())
	noError(t, err)
	t.Cleanup(next.Detach)
	same(t, "id", next.ID(), sb.ID())
	return next
}

// forks makes live copies of a machine, which end with the test.
func forks(t *testing.T, m Owned, n int) []Owned {
	t.Helper()
	var copies []Owned
	var err error
	if sb, library := m.(*sandbox.Sandbox); library {
		var made []*sandbox.Sandbox
		made, err = sb.Fork(t.Context(), n)
		for _, c := range made {
			copies = append(copies, c)
		}
	} else {
		copies, err = m.(Copier).Copies(t.Context(), n)
	}
	for _, c := range copies {
		closing(t, c)
	}
	noError(t, err)
	return copies
}

// library makes a sandbox for a test of what only the library has: attachments, snapshots, calls from inside.
func (s *suite) library(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	s.needLibrary(t)
	return s.open(t).(*sandbox.Sandbox)
}

// libraryPython is library for a test of cells.
func (s *suite) libraryPython(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	s.needPython(t)
	return s.library(t)
}

// needLibrary leaves a test out where machines are made in another way; why says what is otherwise there.
func (s *suite) needLibrary(t *testing.T, why ...string) {
	t.Helper()
	if s.opts.Open != nil {
		t.Skip("SKIPPED: this is about the library alone", strings.Join(why, ""))
	}
}
