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

// DefaultLinger is how long a server that was started by itself stays with nothing to look after.
const DefaultLinger = v1.Duration(time.Minute)

// Size is a number of bytes, written 4096, 64k, 256m, 1.5GiB; all units are powers of 1024.
type Size int64

func (s Size) String() string { return v1.FormatBytes(int64(s)) }

// ParseSize reads a size.
func ParseSize(text string) (Size, error) {
	n, err := v1.ParseBytes(text)
	return Size(n), err
}

// Secret is a text that is never shown.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[redacted]"
}

// GoString keeps it out of %#v as well.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText keeps it out of JSON as well.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// set reads one scalar into a field, by the field's type and tags.
func set(f field, v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *v1.Duration:
		if text == v1.Duration(v1.NoLimit).String() && f.tag.Get("none") == "" {
			return errors.New("it cannot be switched off")
		}
		return p.Set(text)
	case *v1.Quota:
		if text == "" {
			return nil // as config show prints a bound that is not set
		}
		return f.bound(p).Set(text)
	case *v1.RunLimits:
		limit := f.limit(p)
		if text == "0" && limit.Min == nil {
			text = v1.Duration(v1.NoLimit).String() // a limit of nothing would let nothing run
		}
		return limit.Set(text)
	case *Size:
		n, err := ParseSize(text)
		if err != nil {
			return err
		}
		*p = n
	case *int64: // of bytes, in the types of package v1
		n, err := ParseSize(text)
		if err != nil {
			return err
		}
		*p = int64(n)
	case *Secret:
		*p = Secret(text)
	case *string:
		if words := strings.Fields(f.tag.Get("oneof")); len(words) > 0 && !slices.Contains(words, text) {
			return fmt.Errorf("%q is none of %s", text, strings.Join(words, ", "))
		}
		*p = text
	case *bool:
		switch text {
		case "true", "yes", "on":
			*p = true
		case "false", "no", "off":
			*p = false
		default:
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		if err := atLeast(f, float64(n)); err != nil {
			return err
		}
		*p = n
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("%q is not a number", text)
		}
		if err := atLeast(f, n); err != nil {
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
		panic("a field of a type that cannot be read: " + f.key)
	}
	return nil
}

func atLeast(f field, n float64) error {
	least, err := strconv.ParseFloat(f.tag.Get("min"), 64)
	if err == nil && n < least {
		return fmt.Errorf("%v is below %v", n, least)
	}
	return nil
}

// text returns a value as set reads it; a secret is not written.
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
