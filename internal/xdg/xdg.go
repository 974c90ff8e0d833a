// Package xdg returns the directories of recluse: below the XDG directories if they are set, else below the home
// directory, else in a private directory below the one for temporary files. The last is for users without a usable
// home, such as nobody or an arbitrary uid in a container.
//
// Programs are executed from the cache, and snapshots contain the memory of sandboxes. So a directory is used only if
// it belongs to the calling user, and access by other users is removed.
package xdg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// name is the name of our directory in each parent.
const name = "recluse"

// Cache returns the directory for files that can be created again. It creates the directory if necessary.
func Cache() (string, error) { return cache.find() }

// Data returns the directory for files that cannot be created again. It creates the directory if necessary.
func Data() (string, error) { return data.find() }

// kind is a kind of directory.
type kind struct {
	word     string // name in messages
	variable string // environment variable of the XDG specification
	home     string // default path below the home directory
	temp     string // path below our private directory, if there is no home
}

var (
	cache = kind{word: "cache", variable: "XDG_CACHE_HOME", home: ".cache", temp: "cache"}
	data  = kind{word: "data", variable: "XDG_DATA_HOME", home: filepath.Join(".local", "share"), temp: "data"}
)

func (k kind) find() (string, error) {
	fail := func(err error) error {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "find the " + k.word + " directory",
			Message: "no usable directory",
			Remedy:  "set " + k.variable + " to a directory that this user can write",
			Err:     err,
		}
	}
	// The specification requires that a relative path is ignored. An absolute path is always used or an error, because
	// files that are silently written elsewhere would be lost.
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
		// A missing home is not created: that of the user nobody is called /nonexistent for a reason.
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
	err := Private(private) // all users share the parent, so another user may have created it first
	if err == nil {
		err = Private(dir)
	}
	if err == nil {
		return dir, nil
	}
	return "", fail(errors.Join(append(tried, err)...))
}

// Private creates dir and its parents if necessary. It fails unless dir is a directory that this user owns and can
// write. It removes access by other users.
func Private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Lstat, because the owner of a link could change its target.
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
		return fmt.Errorf("%s is not writable", dir)
	}
	if closable && fi.Mode().Perm()&0o077 != 0 {
		return os.Chmod(dir, 0o700)
	}
	return nil
}
