package session

import (
	"maps"

	"github.com/recluse-dev/recluse/sandbox"
)

// notice tells of something that others did to the sandbox, and that has cost it nothing. What is seen again when somebody attaches anew is told once.
func (s *Session) notice(sb *sandbox.Sandbox, i sandbox.Incident) {
	s.mu.Lock()
	last := s.rec.Incident
	if s.sb != sb || last != nil && last.Code == i.Code && maps.Equal(last.Attrs, i.Attrs) {
		s.mu.Unlock()
		return
	}
	s.rec.Incident, s.dirty = &i, true
	attrs := map[string]string{"code": string(i.Code)}
	maps.Copy(attrs, i.Attrs)
	s.emit(Event{Kind: "incident", Reason: i.Message, Attrs: attrs}, true)
	s.mu.Unlock()
	s.m.log.WarnContext(s.m.ctx, "something was done to a sandbox behind our back", "session", s.key.String(), "sandbox", sb.ID(), "code", i.Code, "what", i.Message)
	s.audit(s.m.ctx, Entry{Action: "incident", Detail: i.Message})
}
