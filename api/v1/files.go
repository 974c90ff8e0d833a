package v1

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"iter"
	"path"
	"time"
)

// FileSystem reads and writes the files of a sandbox, with the rights of the user that code runs as there. A sandbox, a
// session and a session of a remote server each have one, and all behave alike.
//
// Relative paths start in the sandbox's working directory, Spec.Dir, like those of commands. The working directory is
// the home directory unless the spec or the image sets another one. The empty path is the working directory itself. In
// a FileSystem that Below returns, all paths start at its root and cannot leave it, whatever symbolic links it
// contains. The same rules apply over HTTP, MCP and the command line.
//
// Writing replaces a file unless the options set Exclusive. Names are bytes: they may contain anything but NUL. An
// error for a missing file, an existing file or a denied access matches fs.ErrNotExist, fs.ErrExist or
// fs.ErrPermission.
type FileSystem interface {
	// Below returns a FileSystem that is confined to a directory. Implementations use BelowRoot.
	Below(dir string) FileSystem

	// Read copies a regular file to w.
	Read(ctx context.Context, name string, w io.Writer) (*FileInfo, error)
	// ReadRange copies limit bytes, starting at offset. With limit 0 it copies up to the size that the file has when
	// the read starts.
	ReadRange(ctx context.Context, name string, offset, limit int64, w io.Writer) (*FileInfo, error)
	// ReadAll returns a whole file of at most 64 MiB.
	ReadAll(ctx context.Context, name string) ([]byte, error)

	// Write creates or replaces a file atomically. After a failure or the end of ctx it waits up to one second for a
	// pending Read of r; only that one Read may still be pending when Write returns.
	Write(ctx context.Context, name string, r io.Reader, opts WriteOptions) (*FileInfo, error)
	// WriteAll is Write for data in memory.
	WriteAll(ctx context.Context, name string, data []byte, opts WriteOptions) error

	// Stat describes a file; it does not follow a symbolic link.
	Stat(ctx context.Context, name string) (*FileInfo, error)
	// List iterates over the entries of a directory, sorted by name.
	List(ctx context.Context, name string, opts ListOptions) iter.Seq2[*FileInfo, error]
	// Page returns at most limit entries of a directory, starting after the entry that after names. Pass "" for the
	// first page and the Next of the previous page for the others. Entries that are created or removed between two
	// pages neither repeat nor hide other entries.
	Page(ctx context.Context, name string, opts ListOptions, after string, limit int) (FilePage, error)

	// Mkdir creates a directory.
	Mkdir(ctx context.Context, name string, opts MkdirOptions) error
	// Move renames a file or a directory.
	Move(ctx context.Context, from, to string, opts MoveOptions) error
	// Remove removes a file, a symbolic link or an empty directory.
	Remove(ctx context.Context, name string, opts RemoveOptions) error

	// Watch reports changes to a file, or to the entries of a directory, until ctx ends or fn returns an error.
	Watch(ctx context.Context, name string, opts WatchOptions, fn func(FileEvent) error) error

	// Upload unpacks a tar stream into a directory and never outside of it. It reads r as Write does.
	Upload(ctx context.Context, dir string, r io.Reader, opts TarOptions) (*TarStats, error)
	// Download writes files and directories as a tar stream.
	Download(ctx context.Context, w io.Writer, names ...string) (*TarStats, error)
}

// ReadAll implements FileSystem.ReadAll with ReadRange.
func ReadAll(ctx context.Context, f FileSystem, name string) ([]byte, error) {
	const maxSize = 64 << 20
	var b bytes.Buffer
	info, err := f.ReadRange(ctx, name, 0, maxSize, &b)
	if err != nil {
		return nil, err
	}
	if info.Size > maxSize {
		return nil, &Error{
			Code:    CodeTooLarge,
			Op:      "read file",
			Message: "the file is larger than 64 MiB",
			Remedy:  "use Read",
		}
	}
	return b.Bytes(), nil
}

// BelowRoot returns the root of Below(dir) for a FileSystem with this root. An empty root is the whole file system. The
// result is relative if it starts in the working directory.
func BelowRoot(root, dir string) string {
	if root == "" {
		return path.Clean(dir)
	}
	return path.Join(root, path.Join("/", dir))
}

// MkdirOptions are the options of Mkdir.
type MkdirOptions struct {
	Parents bool // create missing parents, and accept a directory that exists
}

// MoveOptions are the options of Move.
type MoveOptions struct {
	Exclusive bool // never replace a file
}

// RemoveOptions are the options of Remove.
type RemoveOptions struct {
	Recursive bool // remove a directory with everything in it
}

// WatchOptions are the options of Watch.
type WatchOptions struct {
	Recursive bool // also watch the directories below
}

// FileInfo describes a file.
type FileInfo struct {
	Path    string      `json:"path" doc:"absolute path, or the path below the root of the request"`
	Size    int64       `json:"size" doc:"bytes"`
	Mode    fs.FileMode `json:"mode" doc:"permissions and kind, as the bits of Go's fs.FileMode"`
	ModTime time.Time   `json:"mod_time" doc:"time of the last change"`
	UID     int         `json:"uid" doc:"user that owns the file"`
	GID     int         `json:"gid" doc:"group that owns the file"`
	Link    string      `json:"link,omitempty" doc:"target of a symbolic link"`
	Kind    string      `json:"kind" enum:"file,dir,symlink,fifo,socket,device" doc:"kind of file"`
	Name    string      `json:"name,omitempty" doc:"path as it was sent; only in the answer to a write"`
	SHA256  string      `json:"sha256,omitempty" doc:"SHA-256 of the contents, in hexadecimal; only in the answer to a write, unless it was an append"`
}

// Uploaded returns the manifest entry for a file that was sent as name and has been written.
func (i FileInfo) Uploaded(name string) Uploaded {
	return Uploaded{Name: Text(name), Path: Text(i.Path), Size: i.Size, SHA256: i.SHA256}
}

// MarshalJSON writes the names as [Text].
func (i FileInfo) MarshalJSON() ([]byte, error) {
	type plain FileInfo
	return json.Marshal(struct {
		plain
		Path Text `json:"path"`
		Link Text `json:"link,omitempty"`
		Name Text `json:"name,omitempty"`
	}{plain(i), Text(i.Path), Text(i.Link), Text(i.Name)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *FileInfo) UnmarshalJSON(b []byte) error {
	type plain FileInfo
	in := struct {
		*plain
		Path Text `json:"path"`
		Link Text `json:"link"`
		Name Text `json:"name"`
	}{plain: (*plain)(i)}
	err := json.Unmarshal(b, &in)
	i.Path, i.Link, i.Name = string(in.Path), string(in.Link), string(in.Name)
	return err
}

// WriteOptions are the options of Write.
type WriteOptions struct {
	Mode      fs.FileMode // permission bits; 0: those of the replaced file, or 0644
	Parents   bool        // create missing directories
	Exclusive bool        // never overwrite
	Append    bool        // add to the end, not atomically
}

// ListOptions are the options of List and Page.
type ListOptions struct {
	Recursive bool
	Depth     int // with Recursive; 0: all
	// Unreadable, if not nil, is incremented for each entry that could not be examined and each directory that could
	// not be entered. These are missing in the listing.
	Unreadable *int64
}

// FilePage is one page of a directory listing.
type FilePage struct {
	Files      []*FileInfo `json:"files" doc:"entries, sorted by path"`
	Next       Text        `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
	Unreadable int64       `json:"unreadable,omitempty" doc:"entries of this page that could not be examined, and directories that could not be entered"`
}

// FileEvent is a change that Watch observed. The first event is always "ready"; "overflow" reports that events were
// missed.
type FileEvent struct {
	Op   string `json:"op" enum:"ready,create,modify,remove,rename,overflow" doc:"what happened; ready is always the first event; overflow: some events were missed"`
	Path string `json:"path" doc:"path that changed"`
	From string `json:"from,omitempty" doc:"earlier path, of a rename"`
}

// MarshalJSON writes the names as [Text].
func (e FileEvent) MarshalJSON() ([]byte, error) {
	return json.Marshal(fileEventJSON{e.Op, Text(e.Path), Text(e.From)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *FileEvent) UnmarshalJSON(b []byte) error {
	var in fileEventJSON
	err := json.Unmarshal(b, &in)
	*e = FileEvent{in.Op, string(in.Path), string(in.From)}
	return err
}

type fileEventJSON struct {
	Op   string `json:"op"`
	Path Text   `json:"path"`
	From Text   `json:"from,omitempty"`
}

// TarStats describes what was packed or unpacked.
type TarStats struct {
	Entries      int64     `json:"entries" doc:"files and directories that were packed or unpacked"`
	Bytes        int64     `json:"bytes" doc:"bytes of their contents"`
	Skipped      []TarNote `json:"skipped,omitempty" doc:"devices, FIFOs and sockets that were left out; at most 1000 are named"`
	SkippedCount int64     `json:"skipped_count,omitempty" doc:"number of entries that were left out"`
	Changed      []Text    `json:"changed,omitempty" doc:"files that changed while they were read"`
	ChangedCount int64     `json:"changed_count,omitempty" doc:"number of files that changed while they were read"`
}

// TarNote names an entry that was left out.
type TarNote struct {
	Path   Text   `json:"path" doc:"path of the entry"`
	Reason string `json:"reason" doc:"why it was left out"`
}

// TarOptions are the options of Upload.
type TarOptions struct {
	MaxBytes, MaxEntries int64 // 0: the guest's own limits
	Parents              bool  // create the directory to unpack into
	Exclusive            bool  // never replace a file
}

// MkdirRequest requests a new directory.
type MkdirRequest struct {
	Path    Text `json:"path" doc:"directory to create"`
	Parents bool `json:"parents,omitempty" doc:"create missing parents, and accept a directory that exists"`
}

// MoveRequest requests a rename.
type MoveRequest struct {
	From      Text `json:"from" doc:"present path"`
	To        Text `json:"to" doc:"new path"`
	Exclusive bool `json:"exclusive,omitempty" doc:"never replace an existing file"`
}

// Uploaded is one file of a manifest: of a batch upload, of a copy with cp, or of a write by the MCP tool files. A file
// that could not be written has a problem and no checksum.
type Uploaded struct {
	Name    Text     `json:"name" doc:"name of the file as it was sent"`
	Path    Text     `json:"path" doc:"path of the file now"`
	Size    int64    `json:"size" doc:"bytes"`
	SHA256  string   `json:"sha256,omitempty" doc:"SHA-256 of the contents, in hexadecimal"`
	Problem *Problem `json:"problem,omitempty" doc:"why the file could not be written"`
}

// Uploads is the answer to an upload of several files.
type Uploads struct {
	Files  []Uploaded `json:"files" doc:"one entry per file that was sent"`
	Failed int        `json:"failed" doc:"number of files that could not be written"`
}
