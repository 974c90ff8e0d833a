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
