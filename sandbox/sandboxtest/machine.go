package sandboxtest

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Machine has the methods of a sandbox that most of the suite needs. *sandbox.Sandbox implements it. With a small
// adapter, a session of this program or of a server also does.
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
	Ports(ctx context.Context) ([]sandbox.Port, error)
	WaitPort(ctx context.Context, port uint16, timeout time.Duration) (sandbox.Port, error)
	DialPort(ctx context.Context, port uint16) (sandbox.PortConn, error)
}

// Owned is a Machine that the suite made and must close. *sandbox.Sandbox implements it.
type Owned interface {
	Machine
	// ID returns the ID of the sandbox.
	ID() string
	Guest(ctx context.Context) (*sandbox.Guest, error)
	Close() error
}

// Copier is implemented by an Owned that is not a *sandbox.Sandbox and can make copies of itself.
type Copier interface {
	// Save takes a snapshot. restore makes a machine from the snapshot, and forget deletes the snapshot.
	Save(ctx context.Context) (
		restore func(ctx context.Context) (Owned, error), forget func(ctx context.Context) error, err error,
	)
	// Copies makes n live copies.
	Copies(ctx context.Context, n int) ([]Owned, error)
}

// files returns the file system of a machine below a directory; an empty root means all of it.
func files(m Machine, root string) sandbox.FileSystem {
	if root == "" {
		return m.Files()
	}
	return m.Files().Below(root)
}

// openMachine makes a machine. The caller must close it.
func (s *suite) openMachine(ctx context.Context, b sandbox.Backend, spec sandbox.Spec) (Owned, error) {
	if s.opts.Open != nil {
		return s.opts.Open(ctx, spec)
	}
	sb, err := sandbox.Open(ctx, b, spec)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// mustOpen makes a machine that ends with the test.
func (s *suite) mustOpen(t *testing.T, b sandbox.Backend, spec sandbox.Spec) Owned {
	t.Helper()
	m, err := s.openMachine(t.Context(), b, spec)
	if err != nil {
		t.Fatalf("open a machine: %v", err)
	}
	closeAtEnd(t, m)
	return m
}

// closeAtEnd closes a machine at the end of the test.
func closeAtEnd(t *testing.T, m Owned) {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close the machine: %v", err)
		}
	})
}

// openDetachable makes a machine that stays when the test detaches from it. The machine ends with the test.
func (s *suite) openDetachable(t *testing.T, changes ...func(*sandbox.Spec)) Owned {
	t.Helper()
	b, spec := s.backend(t), s.opts.Spec
	for _, change := range changes {
		change(&spec)
	}
	m, err := s.openMachine(t.Context(), b, spec)
	noError(t, err)
	sb, library := m.(*sandbox.Sandbox)
	if !library {
		closeAtEnd(t, m)
		return m
	}
	t.Cleanup(func() { noError(t, b.Stop(context.WithoutCancel(t.Context()), sb.ID())) })
	return m
}

// reattach detaches from a machine of openDetachable and attaches to it again.
func (s *suite) reattach(t *testing.T, m Owned) Owned {
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

// forks makes n live copies of a machine. They end with the test.
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
		closeAtEnd(t, c)
	}
	noError(t, err)
	return copies
}

// library makes a sandbox for a test of something that only the library has: attachments, snapshots, host calls.
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

// needLibrary skips the test if machines are not made with the library. why is added to the message.
func (s *suite) needLibrary(t *testing.T, why ...string) {
	t.Helper()
	if s.opts.Open != nil {
		t.Skip("SKIPPED: a feature of the library alone", strings.Join(why, ""))
	}
}
