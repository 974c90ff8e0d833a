package sandbox

import (
	"context"
	"io"
	"iter"
)

// FileSystem reads and writes the files of a sandbox, with the rights of the user that code runs as there. A sandbox, a
// session and a session of a remote server each have one, and all behave alike.
//
// Paths are absolute, or relative to the root of the FileSystem, and cannot leave that root, whatever symbolic links it
// contains. Names are bytes: they may contain anything but NUL. An error for a missing file, a file that exists already or
// a denied access matches fs.ErrNotExist, fs.ErrExist or fs.ErrPermission.
type FileSystem interface {
	// Below returns a FileSystem that is confined to a directory.
	Below(dir string) FileSystem

	// Read copies a regular file to w.
	Read(ctx context.Context, name string, w io.Writer) (*FileInfo, error)
	// ReadRange copies limit bytes from offset on; limit 0: up to the size the file has at the beginning.
	ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*FileInfo, error)
	// ReadAll returns a whole file of at most 64 MiB.
	ReadAll(ctx context.Context, name string) ([]byte, error)

	// Write creates or replaces a file atomically. It does not read r after it has returned, except for one Read that
	// did not return within a second of a failure, or of the end of ctx.
	Write(ctx context.Context, name string, r io.Reader, opts WriteOptions) (*FileInfo, error)
	// WriteAll is Write for data in memory.
	WriteAll(ctx context.Context, name string, data []byte, opts WriteOptions) error

	// Stat describes a file; it does not follow a symbolic link.
	Stat(ctx context.Context, name string) (*FileInfo, error)
	// List iterates over the entries of a directory, sorted by name.
	List(ctx context.Context, name string, opts ListOptions) iter.Seq2[*FileInfo, error]
	// Page returns at most limit entries of a directory that follow after, which is empty for the first page and the
	// Next of the previous page otherwise. Entries that are created or removed between two pages neither repeat nor
	// hide others.
	Page(ctx context.Context, name string, opts ListOptions, after string, limit int) (FilePage, error)

	// Mkdir creates a directory.
	Mkdir(ctx context.Context, name string, opts MkdirOptions) error
	// Move renames a file or a directory.
	Move(ctx context.Context, from, to string, opts MoveOptions) error
	// Remove removes a file, a symbolic link or an empty directory.
	Remove(ctx context.Context, name string, opts RemoveOptions) error

	// Watch reports changes of a file or of the entries of a directory until ctx ends or fn returns an error.
	Watch(ctx context.Context, name string, opts WatchOptions, fn func(FileEvent) error) error

	// Upload unpacks a tar stream into a directory, and nowhere else. It reads r as Write does.
	Upload(ctx context.Context, dir string, r io.Reader, opts TarOptions) (*TarStats, error)
	// Download writes files and directories as a tar stream.
	Download(ctx context.Context, w io.Writer, names ...string) (*TarStats, error)
}

// MkdirOptions says how a directory is created.
type MkdirOptions struct {
	Parents bool // create missing parents, and accept a directory that exists
}

// MoveOptions says how a file is renamed.
type MoveOptions struct {
	Exclusive bool // never replace a file
}

// RemoveOptions says what is removed.
type RemoveOptions struct {
	Recursive bool // a directory with everything in it
}

// WatchOptions says what is watched.
type WatchOptions struct {
	Recursive bool // also the directories below
}
