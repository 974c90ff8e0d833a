package session

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// actionNetwork begins the actions of the audit log about the network: network.set, network.allow and network.deny.
const actionNetwork = "network."

const (
	// networkRing is how many entries a network log keeps.
	networkRing = 512

	// A sandbox can open as many connections, and look up as many names, as it likes. So entries that are alike are
	// written once in a window, and once more at its end with their number. Those of more destinations than the bound
	// share an entry.
	auditWindow       = time.Minute
	auditDestinations = 32
	logWindow         = time.Second
	logDestinations   = 64
)

// networkLog is the network log of a session, in memory.
type networkLog struct {
	audited, listed repeats // entries of the audit log, denials in the ring

	mu   sync.Mutex
	seq  int64             // guarded by mu
	ring []v1.NetworkEvent // guarded by mu
	more chan struct{}     // guarded by mu; closed at the next entry; nil: no caller waits for one
}

// NetworkStats are the connections of all sessions since the manager started.
type NetworkStats struct {
	Allowed, Denied int64 // connections
	Lookups         int64 // look-ups of names that are not allowed
	Sent, Received  int64 // bytes of connections that have ended
}

// NetworkStats returns the connections of all sessions since the manager started.
func (m *Manager) NetworkStats() NetworkStats {
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	return m.counts.network
}

func (c *counts) addNetwork(e *v1.NetworkEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e.Kind {
	case v1.NetworkEventLookup:
		c.network.Lookups++
	case v1.NetworkEventDenied:
		c.network.Denied++
	case v1.NetworkEventFailed, v1.NetworkEventOpened:
		c.network.Allowed++
	case v1.NetworkEventClosed:
	}
	c.network.Sent += e.Sent
	c.network.Received += e.Received
}

// observeNetwork records a network event of the sandbox.
func (s *Session) observeNetwork(e v1.NetworkEvent) {
	s.m.counts.addNetwork(&e)
	denied := e.Action != v1.NetworkAllow
	if denied && e.Kind != v1.NetworkEventClosed {
		s.network.listed.add(e, logWindow, logDestinations, s.network.append)
	} else {
		s.network.append(e)
	}
	if denied || e.Kind != v1.NetworkEventClosed { // the end of an allowed connection is no decision
		s.network.audited.add(e, auditWindow, auditDestinations, s.auditNetwork)
	}
}

// auditNetwork adds a decision to the audit log, and a denial also to the events of the session.
func (s *Session) auditNetwork(e v1.NetworkEvent) {
	detail := e.Destination()
	if e.Rule != "" {
		detail += fmt.Sprintf(" by %q", e.Rule)
	}
	if e.Count > 1 {
		detail += fmt.Sprintf(", %d times", e.Count)
	}
	s.audit(s.m.ctx, Entry{Time: e.Time, Action: actionNetwork + string(e.Action), Detail: detail, Op: e.Op})
	if e.Action == v1.NetworkAllow {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	attrs := map[string]string{"destination": e.Destination(), "count": strconv.Itoa(e.Count)}
	s.emit(Event{Kind: "denied", Op: e.Op, Reason: e.Reason, Attrs: attrs}, false)
}

// flush records repeated entries whose window has not ended.
func (n *networkLog) flush() {
	n.listed.flush()
	n.audited.flush()
}

// append adds an entry to the log.
func (n *networkLog) append(e v1.NetworkEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// The log is lost when the server ends. By starting with the time, numbers increase nevertheless.
	n.seq = max(n.seq+1, time.Now().UnixMicro())
	e.Seq = n.seq
	if len(n.ring) >= networkRing {
		n.ring = append(n.ring[:0], n.ring[networkRing/4:]...)
	}
	n.ring = append(n.ring, e)
	if n.more != nil {
		close(n.more)
		n.more = nil
	}
}

// after returns the entries after seq, and a channel that is closed at the next entry.
func (n *networkLog) after(seq int64) (list []v1.NetworkEvent, more <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.ring {
		if e.Seq > seq {
			list = append(list, e)
		}
	}
	if n.more == nil {
		n.more = make(chan struct{})
	}
	return list, n.more
}

// NetworkLog iterates over the latest connections of the session, since the server started. The audit log has earlier
// decisions. It does not count as use.
func (s *Session) NetworkLog(ctx context.Context, o v1.NetworkLogOptions) iter.Seq2[v1.NetworkEvent, error] {
	return func(yield func(v1.NetworkEvent, error) bool) {
		for after := o.After; ; {
			s.mu.Lock()
			over := !s.rec.State.Live()
			s.mu.Unlock()
			list, more := s.network.after(after)
			for _, e := range list {
				after = e.Seq
				if !yield(e, nil) {
					return
				}
			}
			if len(list) > 0 {
				continue
			}
			if !o.Follow || over {
				return
			}
			select {
			case <-more:
			case <-s.freed:
			case <-ctx.Done():
				return
			case <-s.m.ctx.Done():
				yield(v1.NetworkEvent{}, errClosing)
				return
			}
		}
	}
}

// repeats bounds how many entries a flood of events makes.
type repeats struct {
	mu     sync.Mutex
	seen   map[repeat]*v1.NetworkEvent // guarded by mu; what was added since the first entry of the window
	record func(v1.NetworkEvent)       // guarded by mu
	timer  *time.Timer                 // guarded by mu; ends the window
}

// repeat is what entries have in common that are written once. The entry without a host stands for all others.
type repeat struct {
	action v1.NetworkAction
	host   string
	port   int
	rule   string
	op     string
}

// add records an event now, if there was none like it in the window, and otherwise at the end of the window.
func (r *repeats) add(e v1.NetworkEvent, window time.Duration, most int, record func(v1.NetworkEvent)) {
	key := repeat{e.Action, e.Host, e.Port, e.Rule, e.Op}
	r.mu.Lock()
	if r.seen == nil {
		r.seen, r.record = map[repeat]*v1.NetworkEvent{}, record
		r.timer = time.AfterFunc(window, r.flush)
	}
	known, ok := r.seen[key]
	first := !ok && len(r.seen) < most
	switch {
	case first:
		r.seen[key] = &v1.NetworkEvent{}
	case !ok:
		key = repeat{action: e.Action}
		if known = r.seen[key]; known == nil {
			known = &v1.NetworkEvent{}
			r.seen[key] = known
		}
		fallthrough
	default:
		n := known.Count + 1
		*known = e
		known.Count = n
		if key.host == "" {
			known.Host, known.Port, known.Address, known.Rule, known.Op, known.Program = "", 0, "", "", "", ""
			known.Reason, known.Connection = "too many destinations to list each", 0
		}
	}
	r.mu.Unlock()
	if first {
		record(e)
	}
}

// flush ends the window.
func (r *repeats) flush() {
	r.mu.Lock()
	seen, record := r.seen, r.record
	if r.timer != nil {
		r.timer.Stop()
	}
	r.seen, r.timer = nil, nil
	r.mu.Unlock()
	byTime := func(a, b *v1.NetworkEvent) int { return a.Time.Compare(b.Time) }
	for _, e := range slices.SortedFunc(maps.Values(seen), byTime) {
		if e.Count > 0 {
			record(*e)
		}
	}
}
