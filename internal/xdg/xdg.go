// Package xdg says where recluse keeps its files: under the XDG directories when they are
// set, else below the home directory, else in a private directory below the one for
// temporary files, so that a user without a usable home (nobody, a container's arbitrary
// uid) can work too.
//
// Programs are executed from the cache and snapshots hold the memory of sandboxes, so a
// directory is used only if it belongs to the calling user, and it is closed to everybody else.
package xdg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// name is ours in every directory.
const name = "recluse"

// Cache gives the directory for what can be made again, and makes it if need be.
func Cache() (string, error) { return cache.find() }

// Data gives the directory for what cannot be made again, and makes it if need be.
func Data() (string, error) { return data.find() }

// kind is one sort of directory.
type kind struct {
	word     string // for messages
	variable string // of the XDG specification
	home     string // its default, below the home directory
	temp     string // below our private directory, where there is no home
}

var (
	cache = kind{word: "cache", variable: "XDG_CACHE_HOME", home: ".cache", temp: "cache"}
	data  = kind{word: "data", variable: "XDG_DATA_HOME", home: filepath.Join(".local", "share"), temp: "data"}
)

func (k kind) find() (string, error) {
	fail := func(err error) error {
		return &v1.Error{
			Code: v1.CodeInternal, Op: "find the " + k.word + " directory", Message: "there is no usable one",
			Remedy: "set " + k.variable + " to a directory that this user can write", Err: err,
		}
	}
	// The specification says that a relative path is to be ignored. Any other value is an order:
	// files that silently went elsewhere would be lost files.
	if d := os.Getenv(k.variable); filepath.IsAbs(d) {
		dir := filepath.Join(d, name)
		if err := Private(dir); err != nil {
			return "", fail(err)
		}
		return dir, nil
	}
	var tried []error
	if d := os.Getenv("HOME"); filepath.IsAbs(d) {
		dir := filepath.Join(d, k.home, name)
		// A home that does not exist is not made: that of nobody is called /nonexistent for a reason.
		_, err := os.Stat(d)
		if err == nil {
			err = Private(dir)
		}
		if err == nil {
			return dir, nil
		}
		tried = append(tried, err)
	} else if dir, err := k.system(); err == nil {
		return dir, nil
	}
	private := filepath.Join(os.TempDir(), name+"-"+strconv.Itoa(os.Getuid()))
	dir := filepath.Join(private, k.temp)
	err := Private(private) // in a directory that all users share: somebody may have been here first
	if err == nil {
		err = Private(dir)
	}
	if err == nil {
		return dir, nil
	}
	return "", fail(errors.Join(append(tried, err)...))
}

// Private makes dir, and its parents, if it is not there. It fails unless dir is then a
// directory of this user's own that it can write; access by others is taken away.
func Private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Not Stat: a link could be turned elsewhere by whoever owns it.
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSymlink != 0 && owned(fi) {
		if fi, err = os.Stat(dir); err != nil {
			return err
		}
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if !owned(fi) {
		return fmt.Errorf("%s belongs to another user", dir)
	}
	if !writable(dir) {
		return fmt.Errorf("%s cannot be written", dir)
	}
	if closable && fi.Mode().Perm()&0o077 != 0 {
		return os.Chmod(dir, 0o700)
	}
	return nil
}
