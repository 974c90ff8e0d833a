package session

import "context"

// A session that has ended, or was never made, is over although the store may not know it yet: its disk was full at that moment. What is
// owed to the store is paid as soon as it takes it, and before anybody else gets the key, which the store would still count as taken.

// owe notes what the store must be told about a session that no longer holds its key.
func (m *Manager) owe(s *Session, pay func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owed[s] = pay
}

// settle pays what is owed for sessions of a key, or of all if it is the zero one.
func (m *Manager) settle(ctx context.Context, key Key) error {
	m.mu.Lock()
	due := map[*Session]func(context.Context) error{}
	for s, pay := range m.owed {
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
		delete(m.owed, s)
		m.mu.Unlock()
	}
	return nil
}
