package image

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncTree flushes everything below dir to disk. One syncfs is much cheaper than an fsync of each of ten thousand
// files.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	return nil
}
