package session

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
)

const (
	// ringSize is how many events of a session are kept in memory. Events of operations are only kept there, because
	// the audit log has all operations.
	ringSize = 256
	// seqGap is by how much a restart increases the sequence number, so that the number of an event that was not
	// written to the store is not used again.
	seqGap = 1 << 20
)

// events are the events of a session. The session's mu guards them.
type events struct {
	seq  int64
	ring []Event
	more chan struct{} // closed at the next event; nil: no caller waits for one
}

// emit adds an event. If keep is set, it is also written to the store.
//
// Preconditions: s.mu is held.
func (s *Session) emit(e Event, keep bool) {
	s.events.seq++
	e.Seq, e.Time, e.Session = s.events.seq, time.Now().UTC(), s.key.Name
	if len(s.events.ring) >= ringSize {
		s.events.ring = append(s.events.ring[:0], s.events.ring[ringSize/4:]...)
	}
	s.events.ring = append(s.events.ring, e)
	if s.events.more != nil {
		close(s.events.more)
		s.events.more = nil
	}
	if !keep {
		return
	}
	if row, err := encodeEvent(s.id, e); err == nil { // plain data
		s.m.journal.AddEvent(row)
	}
}

// after returns the events in memory after seq, the number of the oldest event in memory, a channel that is closed at
// the next event, and whether the session has ended.
func (s *Session) after(seq int64) (list []Event, oldest int64, more <-chan struct{}, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events.ring {
		if e.Seq > seq {
			list = append(list, e)
		}
	}
	oldest = s.events.seq + 1
	if len(s.events.ring) > 0 {
		oldest = s.events.ring[0].Seq
	}
	if s.events.more == nil {
		s.events.more = make(chan struct{})
	}
	return list, oldest, s.events.more, !s.rec.State.Live()
}

// Events iterates over the events of the session. It has only the latest operations; the audit log has all of them.
func (s *Session) Events(ctx context.Context, o EventsOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		after := o.After
		checked := int64(-1)
		for {
			list, oldest, more, over := s.after(after)
			// Older events are in the store. A slow reader may need them, too.
			if after+1 < oldest && oldest != checked {
				checked = oldest
				old, err := s.m.storedEvents(ctx, s.id, after, oldest)
				if err != nil {
					yield(Event{}, err)
					return
				}
				list = append(old, list...)
			}
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
			case <-ctx.Done():
				return
			case <-s.m.ctx.Done():
				yield(Event{}, errClosing)
				return
			}
		}
	}
}

// storedEvents reads the events between two numbers from the store.
func (m *Manager) storedEvents(ctx context.Context, id string, after, before int64) ([]Event, error) {
	if err := m.journal.Flush(ctx); err != nil {
		return nil, err
	}
	rows, err := m.store.Events(ctx, id, after, 0)
	if err != nil {
		return nil, err
	}
	var out []Event
	for _, r := range rows {
		if r.Seq >= before {
			break
		}
		e, err := decodeEvent(r)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func decodeEvent(r store.Event) (e Event, err error) {
	err = json.Unmarshal(r.Data, &e)
	e.Seq = r.Seq
	return e, err
}
