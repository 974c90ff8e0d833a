package session

import (
	"cmp"
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxName is the maximum length of the name of a session, a tenant or a snapshot.
const maxName = 128

// withTenant returns k. If k has no tenant, withTenant sets the default tenant.
func withTenant(k Key) Key {
	k.Tenant = cmp.Or(k.Tenant, DefaultTenant)
	return k
}

// checkKey rejects an invalid key. Callers look for a live session first, so that it is found whatever its name is.
func checkKey(k Key) error {
	if err := checkName("session", k.Name); err != nil {
		return err
	}
	return checkName("tenant", k.Tenant)
}

// checkName rejects an invalid name of a session, a tenant or a snapshot. Names must not contain @ and :, because
// session@name is a snapshot, and session:path is a file.
func checkName(what, name string) error {
	bad := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	})
	// HTTP clients resolve "." and ".." in a URL path before the server receives it.
	if name == "" || name == "." || name == ".." || len(name) > maxName || bad >= 0 {
		return &v1.Error{
			Code:    v1.CodeInvalidKey,
			Op:      "check name",
			Message: fmt.Sprintf("invalid %s name %.140q", what, name),
			Remedy:  fmt.Sprintf("use 1 to %d letters, digits, and - _ ., not only dots", maxName),
		}
	}
	return nil
}

// parseRef splits the reference "session@snapshot". If ref is only the name of a snapshot, parseRef returns the given
// session.
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
