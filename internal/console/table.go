// Package console writes results for people and for programs: tables, marks, times and sizes, and JSON.
package console

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/docker/go-units"
)

// Table prints rows in columns, the first of them as a heading.
func Table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i, cell := range r {
			r[i] = OneLine(cell)
		}
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// OneLine makes text harmless on a terminal: what came out of a sandbox must not move the cursor there.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// Clip shortens text to n letters.
func Clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// Plural returns a number of things.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Ago returns how long ago a moment was.
func Ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Span(time.Since(t))
}

// Ahead returns how far away a moment is; nil is never.
func Ahead(t *time.Time) string {
	if t == nil {
		return "never"
	}
	if d := time.Until(*t); d > 0 {
		return Span(d)
	}
	return "now"
}

// Span returns a duration in its largest two units.
func Span(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}

// Short returns how long something took.
func Short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

// Bytes returns a size as people read it.
func Bytes(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB"})
}
