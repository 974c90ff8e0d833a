// Package console writes results for people and for programs: tables, marks, times and sizes, and JSON.
package console

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/docker/go-units"
	"golang.org/x/term"
)

// DefaultWidth is the width of texts and tables if the output is not a terminal.
const DefaultWidth = 80

// Width returns the number of columns of a terminal, or DefaultWidth for any other output.
func Width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return DefaultWidth
}

// minLastColumn is the minimum width of the last column of a table, however wide the others are.
const minLastColumn = 8

// Table prints rows in columns. With three or more columns, the last one is cut to the width of the output. A table of
// two columns is a list of names and values, which are not cut.
func Table(w io.Writer, rows [][]string) error {
	const gap = 2
	var widths []int
	for _, r := range rows {
		widths = append(widths, make([]int, max(0, len(r)-len(widths)))...)
		for i, cell := range r {
			r[i] = OneLine(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	left := Width(w)
	for i, n := range widths {
		if i < len(widths)-1 {
			left -= n + gap
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, r := range rows {
		if last := len(widths) - 1; len(r) == len(widths) && last > 1 {
			r[last] = Clip(r[last], max(left, minLastColumn))
		}
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// Wrap breaks paragraphs, which are separated by empty lines, into lines of at most width columns. A paragraph with an
// indented line is not changed.
func Wrap(text string, width int) string {
	paragraphs := strings.Split(strings.TrimRight(text, "\n"), "\n\n")
	for i, p := range paragraphs {
		if strings.HasPrefix(p, " ") || strings.Contains(p, "\n ") {
			continue
		}
		var b strings.Builder
		column := 0
		for _, word := range strings.Fields(p) {
			n := utf8.RuneCountInString(word)
			switch {
			case column == 0:
			case column+1+n > width:
				b.WriteByte('\n')
				column = 0
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += n
		}
		paragraphs[i] = b.String()
	}
	return strings.Join(paragraphs, "\n\n")
}

// OneLine replaces control characters with spaces, so that output of a sandbox cannot move the cursor of a terminal.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// Clip shortens text to n characters.
func Clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// Plural returns n with the singular or plural noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Ago returns the time since t, or "-" for the zero time.
func Ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Span(time.Since(t))
}

// Ahead returns the time until t, "now" if t has passed, or "never" if t is nil.
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

// Short returns a duration with a precision for measurements.
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

// Bytes returns a size in units of 1000.
func Bytes(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB"})
}
