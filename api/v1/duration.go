package v1

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// NoLimit switches a limit off: a timeout, a lifetime, a retention, a budget. As text it is "none". Zero means the
// default instead. It is untyped, so that it can be used for durations, counts and amounts of money.
const NoLimit = -1

const none = "none"

// ErrNegative is returned for a negative duration.
var ErrNegative = errors.New("negative duration")

// Duration is a time span in JSON, in flags and in the configuration. All of them write it as text: "90s", "1h30m",
// "7d", or "none" for [NoLimit]. A plain number is a number of seconds, and the empty text is zero.
type Duration time.Duration

// ParseDuration parses the text of a Duration. It rejects negative durations.
func ParseDuration(text string) (Duration, error) {
	switch text {
	case "":
		return 0, nil
	case none:
		return NoLimit, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return Duration(time.Duration(n) * 24 * time.Hour), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		d, err = time.ParseDuration(text + "s")
	}
	if err != nil {
		return 0, fmt.Errorf("invalid duration %q: want a time like 90s, 1h30m, 7d or none", text)
	}
	if d < 0 {
		return 0, fmt.Errorf("%w %q", ErrNegative, text)
	}
	return Duration(d), nil
}

// Std returns d as a time.Duration. NoLimit is negative.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns the shortest text that ParseDuration reads as d.
func (d Duration) String() string {
	const day = 24 * time.Hour
	t := time.Duration(d)
	switch {
	case d == NoLimit:
		return none
	case t == 0:
		return "0" // package pflag does not show "0" as a default
	case t >= day && t%day == 0:
		return strconv.FormatInt(int64(t/day), 10) + "d"
	}
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler, and with it the JSON form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, and with it the JSON form.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := ParseDuration(string(text))
	if err == nil {
		*d = v
	}
	return err
}

// Set implements the Value interface of package pflag. It rejects zero: to get the default, leave the flag out.
func (d *Duration) Set(text string) error {
	v, err := ParseDuration(text)
	if err != nil || v == 0 {
		return fmt.Errorf("invalid duration %q: want a time above zero like 90s, 30m, 7d or none", text)
	}
	*d = v
	return nil
}

// Type returns the name of a flag's value in help texts.
func (*Duration) Type() string { return "duration" }
