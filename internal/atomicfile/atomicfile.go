// Package atomicfile replaces files as a whole: a reader sees the old content or the new, never a part.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path, or creates it. The new content is on the disk before the file gets
// its name, so that it also survives a crash of the machine.
func Write(path string, data []byte, perm fs.FileMode) error { return write(path, data, perm) }

// WriteVolatile is Write for content that no crash of the machine outlives anyway, such as the record of
// a running sandbox. It does not wait for the disk, which takes 1 ms on a fast one and 10 ms or more on
// others: too long for the start of a sandbox.
func WriteVolatile(path string, data []byte, perm fs.FileMode) error {
	return replace(path, data, perm, func(*os.File) error { return nil })
}

// WriteJSON is WriteVolatile for a value as JSON, readable for its owner alone.
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteVolatile(path, data, 0o600)
}

// ReadJSON decodes a file into v.
func ReadJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// replace writes a temporary file beside path, calls sync, and renames the file.
func replace(path string, data []byte, perm fs.FileMode, sync func(*os.File) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = sync(tmp)
	}
	err = errors.Join(err, tmp.Chmod(perm), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
