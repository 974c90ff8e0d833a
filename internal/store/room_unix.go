//go:build unix && !netbsd && !openbsd && !solaris && !illumos && !aix

package store

import "golang.org/x/sys/unix"

// leastRoom is what a store needs to begin: its log and the index of that.
const leastRoom = 64 << 10

// hasRoom says whether files can still be made and written in a directory, as far as is known.
func hasRoom(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return true
	}
	return uint64(st.Bavail)*uint64(st.Bsize) >= leastRoom && (st.Files == 0 || st.Ffree > 0) //nolint:unconvert // their types differ between systems
}
