package session

import (
	"errors"
	"maps"
	"slices"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// onIncident records an incident: other programs did something to the sandbox without ending it. An incident that is
// reported again after attaching is recorded once.
func (s *Session) onIncident(sb *sandbox.Sandbox, i sandbox.Incident) {
	s.mu.Lock()
	known := slices.ContainsFunc(s.rec.Incidents, func(x sandbox.Incident) bool {
		return x.Code == i.Code && maps.Equal(x.Attrs, i.Attrs)
	})
	if !s.attachment.has(sb) || known {
		s.mu.Unlock()
		return
	}
	s.recordIncident(i)
	s.mu.Unlock()
	s.m.log.WarnContext(s.m.ctx, "sandbox was changed from outside",
		"session", s.key.String(), "sandbox", sb.ID(), "code", i.Code, "what", i.Message)
	s.audit(s.m.ctx, Entry{Action: "incident", Detail: i.Message})
}

// recordIncident adds an incident to the record and the events.
//
// Preconditions: s.mu is held.
func (s *Session) recordIncident(i sandbox.Incident) {
	others := slices.Clone(s.rec.Incidents) // callers of Info share the slice
	others = slices.DeleteFunc(others, func(x sandbox.Incident) bool { return x.Code == i.Code })
	s.rec.Incidents, s.dirty = append(others, i), true
	attrs := map[string]string{"code": string(i.Code)}
	maps.Copy(attrs, i.Attrs)
	s.emit(Event{Kind: "incident", Reason: i.Message, Attrs: attrs}, true)
}

// incidentOf returns the incident for a sandbox that is unreachable, for example because it was paused from outside.
func incidentOf(cause error) sandbox.Incident {
	i := sandbox.Incident{Code: v1.CodeOf(cause), Message: cause.Error(), Time: time.Now().UTC()}
	if e, ok := errors.AsType[*v1.Error](cause); ok && e.Message != "" {
		i.Message = e.Message
	}
	return i
}
