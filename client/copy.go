package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxLinks is the maximum number of symbolic links to follow, as on Linux.
const maxLinks = 40

// CopyOptions are the options of CopyIn and CopyOut.
type CopyOptions struct {
	NoClobber bool      // do not replace existing files
	Stdin     io.Reader // the source "-" of CopyIn
	Stdout    io.Writer // the destination "-" of CopyOut
}

// Copied is the result of CopyIn and CopyOut.
type Copied struct {
	Files   int64    `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped,omitempty"` // what was not copied, with the reason
	Changed []string `json:"changed,omitempty"` // files that changed while they were read
	// Manifest lists the copied files: the name at the source, the path at the destination, size and SHA-256.
	Manifest []v1.Uploaded `json:"manifest"`
}

// CopyIn copies files and directories of this machine into the session. As with cp, a destination that is a directory
// receives the sources, and SOURCE/. means the content of a directory. Owners, devices, pipes and sockets are not
// copied.
func (s *Session) CopyIn(ctx context.Context, sources []string, dst string, o CopyOptions) (*Copied, error) {
	c := s.copier(o)
	return &c.Copied, c.into(ctx, sources, dst)
}

// CopyOut copies files and directories of the session to this machine, with the rules of CopyIn. Links that lead
// outside of the copied directory are not copied.
func (s *Session) CopyOut(ctx context.Context, sources []string, dst string, o CopyOptions) (*Copied, error) {
	c := s.copier(o)
	return &c.Copied, c.outOf(ctx, sources, dst)
}

// copier copies between this machine and one session.
type copier struct {
	files v1.FileSystem
	opts  CopyOptions
	Copied
	received map[string]v1.Uploaded // files of this machine, by path
}

func (s *Session) copier(o CopyOptions) *copier {
	return &copier{
		files:    s.Files(),
		opts:     o,
		Copied:   Copied{Manifest: []v1.Uploaded{}},
		received: map[string]v1.Uploaded{},
	}
}

// inside returns an absolute path of the session. It queries the session for the directory of relative paths. A
// trailing slash is kept.
func (c *copier) inside(ctx context.Context, file string) (string, error) {
	dir := strings.HasSuffix(file, "/")
	if !path.IsAbs(file) {
		i, err := c.files.Stat(ctx, "")
		if err != nil {
			return "", err
		}
		file = path.Join(i.Path, file)
	}
	if file = path.Clean(file); dir && file != "/" {
		file += "/"
	}
	return file, nil
}

// isDir reports whether file is a directory in the session.
func (c *copier) isDir(ctx context.Context, file string) (bool, error) {
	i, err := c.files.Stat(ctx, strings.TrimSuffix(file, "/")+"/.")
	switch {
	case err == nil:
		return i.Kind == "dir", nil
	case v1.CodeOf(err) == v1.CodeFileNotFound, v1.CodeOf(err) == v1.CodeFileNotDirectory:
		return false, nil
	}
	return false, err
}

// into copies files of this machine into the session.
func (c *copier) into(ctx context.Context, sources []string, dst string) error {
	dst, err := c.inside(ctx, dst)
	if err != nil {
		return err
	}
	dir, err := c.isDir(ctx, dst)
	if err != nil {
		return err
	}
	if !dir && (len(sources) > 1 || strings.HasSuffix(dst, "/")) {
		return &v1.Error{
			Code:    v1.CodeFileNotDirectory,
			Op:      "copy to " + dst,
			Message: "directory not found in the session",
			Remedy:  "create the directory first, or copy one source to a new name",
		}
	}
	for _, src := range sources {
		if src == "-" {
			if dir {
				return &v1.Error{
					Code:    v1.CodeInvalidRequest,
					Op:      "copy stdin",
					Message: dst + " is a directory",
					Remedy:  "give a file name in that directory",
				}
			}
			if err := c.send(ctx, c.opts.Stdin, src, dst, 0); err != nil {
				return err
			}
			continue
		}
		fi, err := os.Stat(src)
		if err != nil {
			return unreadable(src, err)
		}
		at := dst
		if dir && !onlyContent(src) {
			abs, err := filepath.Abs(src)
			if err != nil {
				return unreadable(src, err)
			}
			at = path.Join(dst, filepath.Base(abs))
		}
		switch {
		case fi.IsDir():
			err = c.sendTree(ctx, src, strings.TrimSuffix(at, "/"))
		case fi.Mode().IsRegular():
			err = c.sendFile(ctx, src, at, fi.Mode())
		default:
			err = &v1.Error{
				Code:    v1.CodeFileNotRegular,
				Op:      "copy " + src,
				Message: "neither a regular file nor a directory",
				Remedy:  "to copy what can be read from it, use recluse cp - SESSION:PATH < FILE",
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// onlyContent reports whether src has the form SOURCE/., which means the content of a directory.
func onlyContent(src string) bool {
	return src == "." || strings.HasSuffix(filepath.ToSlash(src), "/.")
}

func unreadable(file string, err error) error {
	return localError("copy "+file, "cannot read the file", err)
}

func unwritable(file string, err error) error {
	return localError("write "+file, "cannot write the file", err)
}

// localError returns the error for a file of this machine. op contains the name of the file.
func localError(op, message string, err error) error {
	code := v1.CodeInvalidRequest
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = v1.CodeFileNotFound
	case errors.Is(err, fs.ErrExist):
		code = v1.CodeFileExists
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &v1.Error{Code: code, Op: op, Message: message, Err: err}
}

func (c *copier) sendFile(ctx context.Context, src, dst string, mode fs.FileMode) error {
	f, err := os.Open(src)
	if err != nil {
		return unreadable(src, err)
	}
	defer f.Close()
	return c.send(ctx, f, src, dst, mode.Perm())
}

func (c *copier) send(ctx context.Context, r io.Reader, src, dst string, mode fs.FileMode) error {
	i, err := c.files.Write(ctx, dst, r, v1.WriteOptions{Mode: mode, Exclusive: c.opts.NoClobber})
	if err != nil {
		return err
	}
	c.Files++
	c.Bytes += i.Size
	c.Manifest = append(c.Manifest, i.Uploaded(src))
	return nil
}

// outOf copies files of the session to this machine.
func (c *copier) outOf(ctx context.Context, sources []string, dst string) error {
	if dst == "-" {
		for _, src := range sources {
			if _, err := c.files.Read(ctx, src, c.opts.Stdout); err != nil {
				return err
			}
		}
		return nil
	}
	fi, err := os.Stat(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unwritable(dst, err)
	}
	dir := err == nil && fi.IsDir()
	if !dir && (len(sources) > 1 || strings.HasSuffix(dst, "/")) {
		return &v1.Error{
			Code:    v1.CodeFileNotDirectory,
			Op:      "copy to " + dst,
			Message: "directory not found",
			Remedy:  "create the directory first, or copy one source to a new name",
		}
	}
	for _, src := range sources {
		from, err := c.inside(ctx, src)
		if err != nil {
			return err
		}
		at := dst
		if dir && !onlyContent(src) {
			at = filepath.Join(dst, path.Base(from))
		}
		from, i, err := c.resolve(ctx, path.Clean(from))
		if err != nil {
			return err
		}
		switch i.Kind {
		case "dir":
			err = c.fetchTree(ctx, from, at)
		case "file":
			err = c.fetchFile(ctx, from, at, i.Mode)
		default:
			err = &v1.Error{
				Code:    v1.CodeFileNotRegular,
				Op:      "copy " + from,
				Message: fmt.Sprintf("cannot copy a %s", i.Kind),
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resolve follows symbolic links, as cp does with its arguments. It returns the final path.
func (c *copier) resolve(ctx context.Context, file string) (string, *v1.FileInfo, error) {
	for range maxLinks {
		i, err := c.files.Stat(ctx, file)
		if err != nil || i.Kind != "symlink" {
			return file, i, err
		}
		if path.IsAbs(i.Link) {
			file = path.Clean(i.Link)
		} else {
			file = path.Join(path.Dir(file), i.Link)
		}
	}
	return "", nil, &v1.Error{Code: v1.CodeFileNotFound, Op: "copy " + file, Message: "too many symbolic links"}
}

// fetchFile copies a file of the session to this machine. It writes to a temporary file first, so that a failed copy
// does not change an existing file.
func (c *copier) fetchFile(ctx context.Context, src, dst string, mode fs.FileMode) error {
	root, err := os.OpenRoot(filepath.Dir(dst))
	if err != nil {
		return unwritable(dst, err)
	}
	defer root.Close()
	return c.receive(root, src, filepath.Base(dst), mode, func(w io.Writer) (int64, error) {
		i, err := c.files.Read(ctx, src, w)
		if err != nil {
			return 0, err
		}
		return i.Size, nil
	})
}
