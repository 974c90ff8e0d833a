package main

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

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// maxLinks is how many links are followed, as by Linux.
const maxLinks = 40

func (a *app) cpCommand() *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use:   "cp SOURCE... DESTINATION",
		Short: "Copy files and directories into a session, or out of it",
		Long: `Copy files and directories into a session, or out of it. SESSION:PATH names a file in a session; a path that is not absolute is
below its home directory. A file of this machine with a colon in its name is written ./name:with:colon.

As with cp, what is copied to a directory that is there goes into it, a file that is there is replaced unless
--no-clobber is given, and SOURCE/. means what is in a directory. Directories are copied as a whole. - stands for the input or the output.
Owners are not kept; nor are devices, pipes and sockets, and, on the way out, links that lead outside of what is copied.`,
		Example: `  recluse cp data.csv work:/home/user/
  recluse cp work:results ./results
  recluse cp work:report.txt -
  tar c . | recluse cp - work:src.tar`,
		Args: cobra.MinimumNArgs(2),
		ValidArgsFunction: func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			names := a.sessionNames(c.Context(), word)
			for i, n := range names {
				name, state, _ := strings.Cut(n, "\t")
				names[i] = name + ":\t" + state
			}
			return names, cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(c *cobra.Command, args []string) error {
			return a.cp(c.Context(), args[:len(args)-1], args[len(args)-1], keep)
		},
	}
	c.Flags().BoolVarP(&keep, "no-clobber", "n", false, "never replace a file")
	return c
}

// remotePath takes SESSION:PATH apart; ok is false for a file of this machine. Names of sessions may have colons, too: the last
// one before the first slash counts.
func remotePath(arg string) (name, file string, ok bool) {
	head := arg
	if i := strings.IndexAny(arg, `/\`); i >= 0 {
		head = arg[:i]
	}
	i := strings.LastIndexByte(head, ':')
	if i <= 0 {
		return "", "", false
	}
	return arg[:i], arg[i+1:], true
}

// copied counts, for the result.
type copied struct {
	Files   int64    `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped,omitempty"`
}

func (a *app) cp(ctx context.Context, sources []string, to string, keep bool) error {
	name, dst, in := remotePath(to)
	var remote []string
	for _, s := range sources {
		from, file, ok := remotePath(s)
		switch {
		case ok == in:
			return usage("one side must be a file of this machine, the other SESSION:PATH")
		case ok && name != "" && from != name:
			return usage("all sources must be in one session")
		case ok:
			name, remote = from, append(remote, file)
		}
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	// What is copied into a session makes it; what is copied out of it must be there.
	s, _, done, err := a.openSession(ctx, name, nil, session.OpenOptions{Existing: !in})
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	g, err := s.Guest(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	c := copier{app: a, files: s.Files(), home: g.Home, keep: keep}
	if in {
		err = c.into(ctx, sources, dst)
	} else {
		err = c.outOf(ctx, remote, to)
	}
	if err != nil {
		return cause(ctx, err)
	}
	if to == "-" {
		return nil
	}
	if a.json {
		return writeJSON(a.stdout, c.copied)
	}
	for _, s := range c.Skipped {
		a.say("left out: %s", oneLine(s))
	}
	return nil
}

// copier copies between this machine and one session.
type copier struct {
	app   *app
	files sandbox.FileSystem
	home  string
	keep  bool
	copied
}

// inside makes a path of the session absolute.
func (c *copier) inside(file string) string {
	dir := strings.HasSuffix(file, "/")
	if !path.IsAbs(file) {
		file = path.Join(c.home, file)
	}
	if file = path.Clean(file); dir && file != "/" {
		file += "/"
	}
	return file
}

// isDir reports whether there is a directory in the session.
func (c *copier) isDir(ctx context.Context, file string) (bool, error) {
	i, err := c.files.Stat(ctx, strings.TrimSuffix(file, "/")+"/.")
	switch {
	case err == nil:
		return i.Kind == "dir", nil
	case sandbox.CodeOf(err) == sandbox.CodeFileNotFound, sandbox.CodeOf(err) == sandbox.CodeFileNotDirectory:
		return false, nil
	}
	return false, err
}

// into copies files of this machine into the session.
func (c *copier) into(ctx context.Context, sources []string, dst string) error {
	dst = c.inside(dst)
	dir, err := c.isDir(ctx, dst)
	if err != nil {
		return err
	}
	if !dir && (len(sources) > 1 || strings.HasSuffix(dst, "/")) {
		return &sandbox.Error{Code: sandbox.CodeFileNotDirectory, Op: "copy to " + dst, Message: "there is no such directory in the session", Remedy: "make it first, or copy one thing to a new name"}
	}
	for _, src := range sources {
		if src == "-" {
			if dir {
				return usage("the input needs a name: %s is a directory", dst)
			}
			if err := c.send(ctx, c.app.stdin, dst, 0); err != nil {
				return err
			}
			continue
		}
		fi, err := os.Stat(src)
		if err != nil {
			return unreadable(src, err)
		}
		at := dst
		if dir && !contents(src) {
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
			err = &sandbox.Error{Code: sandbox.CodeFileNotRegular, Op: "copy " + src, Message: "it is neither a file nor a directory", Remedy: "recluse cp - SESSION:PATH < FILE copies what can be read from it"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// contents reports SOURCE/., which means what is in a directory.
func contents(src string) bool {
	return src == "." || strings.HasSuffix(filepath.ToSlash(src), "/.")
}

func unreadable(file string, err error) error {
	code := sandbox.CodeInvalidRequest
	if errors.Is(err, fs.ErrNotExist) {
		code = sandbox.CodeFileNotFound
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &sandbox.Error{Code: code, Op: "copy " + file, Message: "it cannot be read", Err: err}
}

func (c *copier) sendFile(ctx context.Context, src, dst string, mode fs.FileMode) error {
	f, err := os.Open(src)
	if err != nil {
		return unreadable(src, err)
	}
	defer f.Close()
	return c.send(ctx, f, dst, mode.Perm())
}

func (c *copier) send(ctx context.Context, r io.Reader, dst string, mode fs.FileMode) error {
	i, err := c.files.Write(ctx, dst, r, sandbox.WriteOptions{Mode: mode, Exclusive: c.keep})
	if err != nil {
		return err
	}
	c.Files++
	c.Bytes += i.Size
	return nil
}

// outOf copies files of the session to this machine.
func (c *copier) outOf(ctx context.Context, sources []string, dst string) error {
	if dst == "-" {
		for _, src := range sources {
			if _, err := c.files.Read(ctx, c.inside(src), c.app.stdout); err != nil {
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
		return &sandbox.Error{Code: sandbox.CodeFileNotDirectory, Op: "copy to " + dst, Message: "there is no such directory", Remedy: "make it first, or copy one thing to a new name"}
	}
	for _, src := range sources {
		from := c.inside(src)
		at := dst
		if dir && !contents(src) {
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
			err = &sandbox.Error{Code: sandbox.CodeFileNotRegular, Op: "copy " + from, Message: fmt.Sprintf("it is a %s", i.Kind)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resolve follows what is a link itself, as cp does with what it is given by name.
func (c *copier) resolve(ctx context.Context, file string) (string, *sandbox.FileInfo, error) {
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
	return "", nil, &sandbox.Error{Code: sandbox.CodeFileNotFound, Op: "copy " + file, Message: "links lead in a circle"}
}

func unwritable(file string, err error) error {
	code := sandbox.CodeInvalidRequest
	if errors.Is(err, fs.ErrExist) {
		code = sandbox.CodeFileExists
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &sandbox.Error{Code: code, Op: "write " + file, Message: "it cannot be written", Err: err}
}

// fetchFile writes beside the file first: one that could not be copied as a whole leaves the old one as it was.
func (c *copier) fetchFile(ctx context.Context, src, dst string, mode fs.FileMode) error {
	root, err := os.OpenRoot(filepath.Dir(dst))
	if err != nil {
		return unwritable(dst, err)
	}
	defer root.Close()
	return c.receive(root, filepath.Base(dst), mode, func(w io.Writer) (int64, error) {
		i, err := c.files.Read(ctx, src, w)
		if err != nil {
			return 0, err
		}
		return i.Size, nil
	})
}
