package session

import (
	"cmp"
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxName is the longest name of a session, a tenant or a snapshot.
const maxName = 128

// withTenant sets the default tenant of a key that has none.
func withTenant(k Key) Key {
	k.Tenant = cmp.Or(k.Tenant, DefaultTenant)
	return k
}

// checkKey rejects an invalid key. A live session is found without it, whatever its name.
func checkKey(k Key) error {
	if err := checkName("session", k.Name); err != nil {
		return err
	}
	return checkName("tenant", k.Tenant)
}

// checkName rejects an invalid name of a session, a tenant or a snapshot. The characters @ and : are not part of one: session@name is a
// snapshot, and session:path a file.
func checkName(what, name string) error {
	bad := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	})
	// A path of "." or ".." is taken for another place before a server gets to see it.
	if name == "" || name == "." || name == ".." || len(name) > maxName || bad >= 0 {
		return &v1.Error{
			Code: v1.CodeInvalidKey, Op: "check name", Message: fmt.Sprintf("invalid %s name %.140q", what, name),
			Remedy: fmt.Sprintf("use 1 to %d letters, digits, and - _ ., not only dots", maxName),
		}
	}
	return nil
}

// parseRef splits "session@snapshot"; the session defaults to the given one.
func parseRef(ref, session string) (string, string, error) {
	of, name, found := strings.Cut(ref, "@")
	if !found {
		of, name = session, ref
	}
	if err := checkName("session", of); err != nil {
		return "", "", err
	}
	return of, name, checkName("snapshot", name)
}
