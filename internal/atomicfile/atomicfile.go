// Package atomicfile replaces whole files: a reader sees the old or the new content, never a mixture.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path, or creates it. The new content is on the disk before the rename, so it survives a
// crash of the machine.
func Write(path string, data []byte, perm fs.FileMode) error { return write(path, data, perm) }

// WriteVolatile is Write for content that is useless after a crash of the machine, such as the record of a running
// sandbox. It does not wait for the disk. Waiting takes 1 ms on a fast disk and 10 ms or more on others, which is too
// long for the start of a sandbox.
func WriteVolatile(path string, data []byte, perm fs.FileMode) error {
	return replace(path, data, perm, func(*os.File) error { return nil })
}

// WriteJSON writes v as JSON with WriteVolatile. Only the owner can read the file.
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteVolatile(path, data, 0o600)
}

// ReadJSON decodes a JSON file into v.
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
