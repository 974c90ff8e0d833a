package sandboxtest

import (
	"context"
	"io"
	"iter"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

// Machine is what most of the suite needs of a sandbox. *sandbox.Sandbox is one; so is a session, in this program or over a
// connection, with a few lines around it.
type Machine interface {
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	Start(ctx context.Context, c sandbox.Command) (string, error)
	Follow(ctx context.Context, id string, o sandbox.FollowOptions) (*sandbox.Verdict, error)
	Signal(ctx context.Context, id string, sig syscall.Signal, tree bool) error
	Cancel(ctx context.Context, id string) error
	Forget(ctx context.Context, id string) error
	Operations(ctx context.Context) ([]sandbox.Operation, error)
	Contexts(ctx context.Context) ([]sandbox.Context, error)
	CloseContext(ctx context.Context, name string) error
	Ping(ctx context.Context) error
}

// Filer is a Machine that is no *sandbox.Sandbox and says itself where its files are. An empty root is all of them.
type Filer interface{ FilesBelow(root string) Files }

// Files is what the suite needs of a sandbox's files.
type Files interface {
	Read(ctx context.Context, name string, w io.Writer) (*sandbox.FileInfo, error)
	ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*sandbox.FileInfo, error)
	ReadAll(ctx context.Context, name string) ([]byte, error)
	Write(ctx context.Context, name string, r io.Reader, o sandbox.WriteOptions) (*sandbox.FileInfo, error)
	WriteAll(ctx context.Context, name string, data []byte, o sandbox.WriteOptions) error
	Stat(ctx context.Context, name string) (*sandbox.FileInfo, error)
	List(ctx context.Context, name string, o sandbox.ListOptions) iter.Seq2[*sandbox.FileInfo, error]
	Mkdir(ctx context.Context, name string, parents bool) error
	Move(ctx context.Context, from, to string, exclusive bool) error
	Remove(ctx context.Context, name string, recursive bool) error
	Watch(ctx context.Context, name string, recursive bool, fn func(sandbox.FileEvent) error) error
	Upload(ctx context.Context, dir string, r io.Reader, o sandbox.TarOptions) (*sandbox.TarStats, error)
	Download(ctx context.Context, w io.Writer, names ...string) (*sandbox.TarStats, error)
}

// files gives the files of a machine below a directory.
func files(m Machine, root string) Files {
	if sb, ok := m.(*sandbox.Sandbox); ok {
		if root == "" {
			return sb.Files()
		}
		return sb.Files().Below(root)
	}
	return m.(Filer).FilesBelow(root)
}

// library makes a sandbox for a test of what only the library has: attachments, snapshots, calls from inside.
func (s *suite) library(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	return s.librarySpec(t, s.backend(t), s.opts.Spec)
}

// libraryPython is library for a test of cells.
func (s *suite) libraryPython(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	s.needPython(t)
	return s.library(t)
}

func (s *suite) needLibrary(t *testing.T) {
	t.Helper()
	if s.opts.Open != nil {
		t.Skip("SKIPPED: this is about the library alone")
	}
}

func (s *suite) librarySpec(t *testing.T, b sandbox.Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	s.needLibrary(t)
	sb, err := sandbox.Open(t.Context(), b, spec)
	if err != nil {
		t.Fatalf("open a sandbox: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close the sandbox: %v", err)
		}
	})
	return sb
}
