package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// DefaultIdleExit is the default of server.idle_exit.
const DefaultIdleExit = v1.Duration(time.Minute)

// Size is a number of bytes, written as 4096, 64k, 256m or 1.5GiB. All units are powers of 1024.
type Size int64

func (s Size) String() string { return v1.FormatBytes(int64(s)) }

// ParseSize parses a size.
func ParseSize(text string) (Size, error) {
	n, err := v1.ParseBytes(text)
	return Size(n), err
}

// Secret is a text that is never printed.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[redacted]"
}

// GoString redacts the secret in %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText redacts the secret in JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// set parses text into the struct field v, by the type and tags of the key.
func set(f field, v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *v1.Duration:
		if text == v1.Duration(v1.NoLimit).String() && f.tag.Get("none") == "" {
			return errors.New("none is not allowed")
		}
		return p.Set(text)
	case *v1.Quota:
		if text == "" {
			return nil // config show prints an unset value this way
		}
		return f.bound(p).Set(text)
	case *v1.RunLimits:
		limit := f.limit(p)
		if text == "0" && limit.Min == nil {
			text = v1.Duration(v1.NoLimit).String() // with a limit of zero, nothing could run
		}
		return limit.Set(text)
	case *Size:
		n, err := ParseSize(text)
		if err != nil {
			return err
		}
		*p = n
	case *int64: // a size, in the types of package v1
		n, err := ParseSize(text)
		if err != nil {
			return err
		}
		*p = int64(n)
	case *Secret:
		*p = Secret(text)
	case *string:
		if words := strings.Fields(f.tag.Get("oneof")); len(words) > 0 && !slices.Contains(words, text) {
			return fmt.Errorf("invalid value %q: want one of %s", text, strings.Join(words, ", "))
		}
		*p = text
	case *bool:
		switch text {
		case "true", "yes", "on":
			*p = true
		case "false", "no", "off":
			*p = false
		default:
			return fmt.Errorf("invalid value %q: want true or false", text)
		}
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("invalid number %q: want an integer", text)
		}
		if err := checkMin(f, float64(n)); err != nil {
			return err
		}
		*p = n
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("invalid number %q", text)
		}
		if err := checkMin(f, n); err != nil {
			return err
		}
		*p = n
	case *[]string:
		*p = nil
		for word := range strings.SplitSeq(text, ",") {
			if word = strings.TrimSpace(word); word != "" {
				*p = append(*p, word)
			}
		}
	default:
		panic("key has a type that cannot be parsed: " + f.key)
	}
	return nil
}

// checkMin returns an error if n is below the minimum of the key.
func checkMin(f field, n float64) error {
	minimum, err := strconv.ParseFloat(f.tag.Get("min"), 64)
	if err == nil && n < minimum {
		return fmt.Errorf("%v is below %v", n, minimum)
	}
	return nil
}

// text returns the value of the key in c as text that set parses. A secret is redacted.
func (f field) text(c *Config) string {
	switch v := f.in(c).Interface().(type) {
	case []string:
		return strings.Join(v, ",")
	case v1.RunLimits:
		return f.limit(&v).String()
	case v1.Quota:
		return f.bound(&v).String()
	case int64:
		return Size(v).String()
	default:
		return fmt.Sprint(v)
	}
}
