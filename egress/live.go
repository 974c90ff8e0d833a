package egress

// Live returns the open connections, as events with the bytes so far.
func (g *Gateway) Live() []Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Event, 0, len(g.conns))
	for _, c := range g.conns {
		out = append(out, Event{
			Kind:       EventConnected,
			ID:         c.id,
			Generation: c.generation,
			Time:       c.started,
			Request:    c.request,
			Decision:   c.decision,
			Address:    c.addr,
			Up:         c.up.Load(),
			Down:       c.down.Load(),
		})
	}
	return out
}
