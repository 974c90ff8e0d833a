//go:build !unix

package atomicfile

import (
	"io/fs"
	"os"
)

func write(path string, data []byte, perm fs.FileMode) error {
	return replace(path, data, perm, (*os.File).Sync)
}
