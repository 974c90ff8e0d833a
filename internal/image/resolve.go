package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symlinks in one path, as in the Linux kernel.
const maxLinks = 40

// resolve resolves name as a process whose root directory is root would. It returns a path relative to root without
// symlinks. Absolute symlinks start at root, and ".." stops at root, as after a chroot. [os.Root] alone rejects
// absolute symlinks, which are frequent in images. The part of name that does not exist is kept unchanged, so the
// result may not exist; check it with root.Lstat.
func resolve(root *os.Root, name string) (string, error) {
	links := maxLinks
	var done []string
	todo := strings.Split(name, "/")
	missing := false
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(done) > 0 {
				done = done[:len(done)-1]
			}
			missing = false // the rest may exist; the next Lstat finds out
			continue
		}
		if missing {
			done = append(done, part)
			continue
		}
		next := path.Join(append(done[:len(done):len(done)], part)...)
		info, err := root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = true
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink != 0:
			if links--; links < 0 {
				return "", &fs.PathError{Op: "resolve", Path: name, Err: syscall.ELOOP}
			}
			target, err := root.Readlink(next)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(target, "/") {
				done = nil
			}
			if len(target)+len(name) > maxName {
				return "", &fs.PathError{Op: "resolve", Path: name, Err: syscall.ENAMETOOLONG}
			}
			todo = append(strings.Split(target, "/"), todo...)
			continue
		}
		done = append(done, part)
	}
	if len(done) == 0 {
		return ".", nil
	}
	return path.Join(done...), nil
}
