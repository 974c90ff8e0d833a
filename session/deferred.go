package session

import "context"

// A session that has ended, or whose creation failed, is over even if the store could not be written because its disk
// was full. The manager defers the write until the store can be written. It makes the write before it creates a new
// session with the same key: otherwise the store would have two live sessions with one key.

// deferWrite keeps a failed write for a session that no longer holds its key.
func (m *Manager) deferWrite(s *Session, write func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deferred[s] = write
}

// writeDeferred makes the deferred writes of a key, or all deferred writes if key is zero.
func (m *Manager) writeDeferred(ctx context.Context, key Key) error {
	m.mu.Lock()
	due := map[*Session]func(context.Context) error{}
	for s, write := range m.deferred {
		if key == (Key{}) || s.key == key {
			due[s] = write
		}
	}
	m.mu.Unlock()
	for s, write := range due {
		if err := write(ctx); err != nil {
			return err
		}
		m.mu.Lock()
		delete(m.deferred, s)
		m.mu.Unlock()
	}
	return nil
}
