package bundle

import (
	"fmt"
	"io/fs"
	"syscall"
)

// fingerprint returns a value that changes when the file changes. It does not read the file. It includes the change
// time, because a modification time can be set back.
func fingerprint(fi fs.FileInfo) string {
	id := fmt.Sprintf("%d:%d", fi.Size(), fi.ModTime().UnixNano())
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		id += fmt.Sprintf(":%d:%d:%d", st.Dev, st.Ino, st.Ctim.Nano())
	}
	return id
}
