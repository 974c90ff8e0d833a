//go:build !linux

package bundle

import (
	"fmt"
	"io/fs"
)

// fingerprint returns a value that changes when the file changes. It does not read the file.
func fingerprint(fi fs.FileInfo) string {
	return fmt.Sprintf("%d:%d", fi.Size(), fi.ModTime().UnixNano())
}
