package console

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestSizesAndTimes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1500: "1.5 kB", 123_456_789: "123.5 MB", 2e9: "2 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 61 * time.Second: "1m01s", 90 * time.Minute: "1h30m", 50 * time.Hour: "2d02h"} {
		if got := Span(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{500 * time.Microsecond: "0.50 ms", 5 * time.Millisecond: "5.0 ms", 50 * time.Millisecond: "50 ms", 1500 * time.Millisecond: "1.50 s"} {
		if got := Short(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	if past := time.Now().Add(-time.Hour); Ago(time.Time{}) != "-" || Ahead(nil) != "never" || Ahead(&past) != "now" {
		t.Error("a moment that is none, or over")
	}
}

func TestTableIsHarmless(t *testing.T) {
	var out bytes.Buffer
	if err := Table(&out, [][]string{{"A", "B"}, {"x\x1b[2J\ny", Clip("abcdef", 3)}}); err != nil || out.String() != "A        B\nx [2J y  ab…\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestTableFitsTheWidth(t *testing.T) {
	var out bytes.Buffer
	if err := Table(&out, [][]string{{"NAME", "STATE", "WHY"}, {strings.Repeat("n", 50), "ready", strings.Repeat("w", 90)}}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > DefaultWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestWrap(t *testing.T) {
	const in = "one two three\nfour five\n\n  kept as\n  it is\n\na-word-that-is-too-long b\n"
	if got, want := Wrap(in, 10), "one two\nthree four\nfive\n\n  kept as\n  it is\n\na-word-that-is-too-long\nb"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFailure(t *testing.T) {
	if NewFailure(nil) != nil {
		t.Error("no error is a failure")
	}
	plain := NewFailure(errors.New("broken"))
	if plain.Code != v1.CodeInternal || plain.String() != "broken" {
		t.Errorf("%+v", plain)
	}
	inner := &v1.Error{Code: v1.CodeNotFound, Message: "inner", Remedy: "look elsewhere"}
	f := NewFailure(&v1.Error{Code: v1.CodeUnavailable, Op: "ask", Message: "nobody answers", Retry: true, Err: inner})
	if f.Code != v1.CodeUnavailable || !f.Retry || f.Remedy != "look elsewhere" || f.String() != "ask: nobody answers: inner" {
		t.Errorf("%+v", f)
	}
}
