package sandbox

import "time"

// Incident is something that others did to a sandbox behind our back, and that it has outlived. What ends a sandbox is no incident, but the error
// that calls end with.
type Incident struct {
	Code    Code              `json:"code"`
	Message string            `json:"message"`
	Time    time.Time         `json:"time"`            // when it was noticed
	Attrs   map[string]string `json:"attrs,omitempty"` // such as the old and the new name
}

// Witness is a Machine that notices incidents.
type Witness interface {
	// OnIncident sets who hears of them, one after the other; those that nobody has heard of are told at once.
	OnIncident(f func(Incident))
}

// OnIncident sets who hears of incidents. Where a backend notices none, nobody does.
func (s *Sandbox) OnIncident(f func(Incident)) {
	if w, ok := s.machine.(Witness); ok {
		w.OnIncident(f)
	}
}
