// Package statefile keeps what a program must know of a sandbox that it did not start itself: a record in JSON, who has to
// end the sandbox, and a lock of whoever is attached, all of it in the sandbox's directory; and what one program has found out and the next need not.
package statefile

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
)

// Write replaces a record as a whole: a reader sees all of it or the one before.
func Write(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + "." + Random(4)
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		_ = os.Remove(tmp) // a full disk leaves a part of it
		return err
	}
	return os.Rename(tmp, path)
}

// Read reads a record.
func Read(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// Random gives so many random bytes in hex: for ids, tokens and names that nobody else has.
func Random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
