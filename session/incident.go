package session

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// notice tells of something that others did to the sandbox, and that has cost it nothing. What is seen again when somebody attaches anew is told once.
func (s *Session) notice(sb *sandbox.Sandbox, i sandbox.Incident) {
	s.mu.Lock()
	known := slices.ContainsFunc(s.rec.Incidents, func(x sandbox.Incident) bool { return x.Code == i.Code && maps.Equal(x.Attrs, i.Attrs) })
	if !s.attachment.has(sb) || known {
		s.mu.Unlock()
		return
	}
	s.befall(i)
	s.mu.Unlock()
	s.m.log.WarnContext(s.m.ctx, "something was done to a sandbox behind our back", "session", s.key.String(), "sandbox", sb.ID(), "code", i.Code, "what", i.Message)
	s.audit(s.m.ctx, Entry{Action: "incident", Detail: i.Message})
}

// befall notes an incident, and tells whoever follows the session.
//
// Preconditions: mu is held.
func (s *Session) befall(i sandbox.Incident) {
	others := slices.DeleteFunc(slices.Clone(s.rec.Incidents), func(x sandbox.Incident) bool { return x.Code == i.Code }) // who has them reads them
	s.rec.Incidents, s.dirty = append(others, i), true
	attrs := map[string]string{"code": string(i.Code)}
	maps.Copy(attrs, i.Attrs)
	s.emit(Event{Kind: "incident", Reason: i.Message, Attrs: attrs}, true)
}

// incidentOf is why a sandbox that may live on cannot be reached, such as one that somebody has paused.
func incidentOf(cause error) sandbox.Incident {
	i := sandbox.Incident{Code: sandbox.CodeOf(cause), Message: cause.Error(), Time: time.Now().UTC()}
	if e, ok := errors.AsType[*sandbox.Error](cause); ok && e.Message != "" {
		i.Message = e.Message
	}
	return i
}
