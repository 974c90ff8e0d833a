//go:build unix && !netbsd && !openbsd && !solaris && !illumos && !aix

package store

import "golang.org/x/sys/unix"

// minSpace is the number of bytes that SQLite needs to open a database: for the write-ahead log and its index.
const minSpace = 64 << 10

// hasSpace reports whether files can still be created and written in a directory. It returns true if the free space is
// unknown.
func hasSpace(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return true
	}
	free := uint64(st.Bavail) * uint64(st.Bsize) //nolint:unconvert // the types differ between systems
	return free >= minSpace && (st.Files == 0 || st.Ffree > 0)
}
