package session

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// longestExtension is how far one Extend can move the expiry. Even several of them do not overflow a time.Time.
const longestExtension = 10 * 365 * 24 * time.Hour

// Extend moves the expiry of the session: to a duration after the current expiry, or after now if that is later.
// Duration 0 means DefaultExtension. Extend can be called any number of times, but not beyond the operator's max_age:
// then the error is quota_exceeded. A session without an expiry stays without one.
func (s *Session) Extend(ctx context.Context, by time.Duration) (Info, error) {
	if by == 0 {
		by = DefaultExtension
	}
	err := s.extend(ctx, by)
	s.audit(ctx, Entry{Action: "extend", Detail: by.String(), Error: errorCode(err)})
	return s.Info(), err
}

func (s *Session) extend(ctx context.Context, by time.Duration) error {
	if by <= 0 || by > longestExtension {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "extend session",
			Message: by.String() + " is out of range",
			Remedy:  "use a duration above 0 and up to " + longestExtension.String(),
		}
	}
	s.mu.Lock()
	quotaOwner := s.rec.owner()
	s.mu.Unlock()
	b, err := s.m.bounds(ctx, quotaOwner)
	if err != nil {
		return err
	}
	before, after, err := s.moveExpiry(b, by)
	if err != nil || before.Equal(after) {
		return err
	}
	err = s.save(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		attrs := map[string]string{"by": by.String(), "expires": after.Format(time.RFC3339Nano)}
		s.emit(Event{Kind: "extended", Attrs: attrs}, true)
	} else if s.rec.Expires.Equal(after) {
		s.rec.Expires = before
	}
	return err
}

// moveExpiry moves the expiry of the session, and returns the old and the new expiry. They are equal if it did not
// move.
func (s *Session) moveExpiry(b bounds, by time.Duration) (before, after time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.rec.Expires
	if !s.rec.State.Live() || s.rec.State == v1.StateEnding {
		return before, before, s.refusal(time.Now())
	}
	if before.IsZero() {
		return before, before, nil
	}
	from := before
	if now := time.Now().UTC(); now.After(from) {
		from = now
	}
	if err := b.extendable(from.Sub(s.rec.Created), by); err != nil {
		return before, before, err
	}
	s.rec.Expires = from.Add(by)
	return before, s.rec.Expires, nil
}

// SetExpiry sets the expiry of the session, earlier or later than the current one; zero: none. It is never beyond the
// operator's max_age: a later time is the error quota_exceeded, and none means max_age.
func (s *Session) SetExpiry(ctx context.Context, at time.Time) error {
	err := s.setExpiry(ctx, at.UTC())
	s.audit(ctx, Entry{Action: "expiry", Detail: at.UTC().Format(time.RFC3339), Error: errorCode(err)})
	return err
}

func (s *Session) setExpiry(ctx context.Context, at time.Time) error {
	s.mu.Lock()
	quotaOwner, created := s.rec.owner(), s.rec.Created
	s.mu.Unlock()
	b, err := s.m.bounds(ctx, quotaOwner)
	if err != nil {
		return err
	}
	if at.IsZero() {
		at = expiryOf(created, b.maxAge())
	} else if _, err := b.expires(v1.Duration(max(1, at.Sub(created)))); err != nil {
		return err
	}
	s.mu.Lock()
	if !s.rec.State.Live() || s.rec.State == v1.StateEnding {
		defer s.mu.Unlock()
		return s.refusal(time.Now())
	}
	before := s.rec.Expires
	s.rec.Expires = at
	s.mu.Unlock()
	err = s.save(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.emit(Event{Kind: "extended", Attrs: map[string]string{"expires": at.Format(time.RFC3339Nano)}}, true)
	} else if s.rec.Expires.Equal(at) {
		s.rec.Expires = before
	}
	return err
}
