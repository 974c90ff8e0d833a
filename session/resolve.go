package session

import (
	"context"
	"regexp"

	"github.com/recluse-dev/recluse/internal/store"
)

// idPattern matches the ids that newID returns.
var idPattern = regexp.MustCompile(`^n[0-9a-f]{16}$`)

// Resolve returns the key of a session for a key whose name may be an id. A live session with that name takes
// precedence, because a name may look like an id. The id of an ended session does not resolve to a later session with
// the same name. byID reports whether the name was an id.
func (m *Manager) Resolve(ctx context.Context, key Key) (named Key, byID bool, err error) {
	key = withTenant(key)
	if !idPattern.MatchString(key.Name) || m.holds(key) {
		return key, false, nil
	}
	rows, err := m.store.FindSessions(ctx, store.SessionQuery{ID: key.Name, Tenant: key.Tenant, Limit: 1})
	if err != nil || len(rows) == 0 {
		return key, false, err
	}
	named = Key{Tenant: key.Tenant, Name: rows[0].Name}
	if !rows[0].Live && m.holds(named) {
		return key, true, nil
	}
	return named, true, nil
}

// holds reports whether a live session has the key.
func (m *Manager) holds(key Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[key] != nil
}
