package session

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// longestExtension is what a policy without a limit allows at once. A few of them do not overflow a duration.
const longestExtension = 10 * 365 * 24 * time.Hour

// Extend extends the lifetime of the session; 0: as much as its policy allows at once, or DefaultExtension if that
// has no limit.
func (s *Session) Extend(ctx context.Context, by time.Duration) (Info, error) {
	s.mu.Lock()
	p := s.rec.Policy
	if by == 0 {
		by = p.Extension.Std()
		if by == v1.NoLimit {
			by = DefaultExtension
		}
	}
	err := s.extendable(by)
	counts := err == nil && p.TTL != v1.NoLimit
	if counts {
		s.rec.Extended++
		s.rec.ExtendedBy += by
	}
	s.mu.Unlock()
	if err == nil {
		err = s.save(ctx)
	}
	if counts {
		s.extended(by, err)
	}
	s.audit(ctx, Entry{Action: "extend", Detail: by.String(), Error: errorCode(err)})
	return s.Info(), err
}

// extended emits the event of an extension, or takes the extension back if it could not be written.
func (s *Session) extended(by time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.rec.Extended--
		s.rec.ExtendedBy -= by
		return
	}
	s.emit(Event{Kind: "extended", Attrs: map[string]string{"by": by.String()}}, true)
}

// extendable returns why a lifetime cannot be extended, or nil.
//
// Preconditions: s.mu is held.
func (s *Session) extendable(by time.Duration) error {
	p := s.rec.Policy
	if !s.rec.State.Live() {
		return s.refusal(time.Now())
	}
	most := p.Extension.Std()
	if most == v1.NoLimit {
		most = longestExtension
	}
	if by <= 0 || by > most {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "extend session", Message: by.String() + " is out of range", Remedy: "more than 0, and at most " + most.String() + " at once"}
	}
	if p.TTL != v1.NoLimit && s.rec.Extended >= max(0, p.Extensions) {
		return &v1.Error{Code: v1.CodeNoExtension, Op: "extend session", Message: "it was extended as often as it may be", Remedy: "take a snapshot and open a new session from it"}
	}
	return nil
}
