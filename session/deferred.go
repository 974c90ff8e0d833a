package session

import "context"

// A session that has ended, or could not be created, is over even if the store could not be written because its disk
// was full. The write is deferred until the store can be written, and comes before a new session of the same key,
// which the store would still take for a second one.

// deferWrite keeps a write about a session that no longer holds its key.
func (m *Manager) deferWrite(s *Session, pay func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deferred[s] = pay
}

// writeDeferred makes the deferred writes of a key, or all of them if it is zero.
func (m *Manager) writeDeferred(ctx context.Context, key Key) error {
	m.mu.Lock()
	due := map[*Session]func(context.Context) error{}
	for s, pay := range m.deferred {
		if key == (Key{}) || s.key == key {
			due[s] = pay
		}
	}
	m.mu.Unlock()
	for s, pay := range due {
		if err := pay(ctx); err != nil {
			return err
		}
		m.mu.Lock()
		delete(m.deferred, s)
		m.mu.Unlock()
	}
	return nil
}
