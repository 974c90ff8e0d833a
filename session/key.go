package session

import (
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxName is the longest name of a session, a tenant or a snapshot.
const maxName = 128

// checkKey sets the default tenant and rejects an invalid key.
func checkKey(k Key) (Key, error) {
	if k.Tenant == "" {
		k.Tenant = DefaultTenant
	}
	if err := checkName("session", k.Name); err != nil {
		return k, err
	}
	return k, checkName("tenant", k.Tenant)
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
			Code: v1.CodeInvalidKey, Op: "check name", Message: fmt.Sprintf("%.140q is no name of a %s", name, what),
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
