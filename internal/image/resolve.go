package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxLinks is how many symlinks one path may pass, as in the Linux kernel.
const maxLinks = 40

// resolve finds what name means for a process whose root directory is root, and returns it relative to root, without
// symlinks: absolute symlinks start at root again and ".." stops there, as after a chroot. [os.Root] alone refuses absolute
// symlinks, of which images are full. A part that does not exist is kept as it is, so the result may not exist; use
// root.Lstat on it.
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
			missing = false // what is left exists, or the next look says that it does not
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
