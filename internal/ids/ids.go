// Package ids makes random names: ids of sandboxes and snapshots, tokens, names of temporary files.
package ids

import (
	"crypto/rand"
	"encoding/hex"
)

// Hex returns n random bytes as lower-case hexadecimal digits, which file systems, host names and
// container engines all accept. Eight bytes are enough for a name that nobody else has.
func Hex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
