package api

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// Duration is a time span as people write it: "90s", "1h30m", or "none". Zero asks for the default.
type Duration time.Duration

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) {
	if d == sandbox.NoLimit {
		return []byte(`"none"`), nil
	}
	return json.Marshal(time.Duration(d).String())
}

// UnmarshalJSON implements json.Unmarshaler. A negative time is refused: there is none that it could mean.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf(`a time is a text like "90s" or "none", not %s`, b)
	}
	if s == "none" {
		*d = sandbox.NoLimit
		return nil
	}
	if s == "" {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`%q is no time: write it like "90s", "1h30m" or "none"`, s)
	}
	if v < 0 {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "read request", Message: fmt.Sprintf("a time of %s: negative", s)}
	}
	*d = Duration(v)
	return nil
}
