package runview

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// Harmless makes text safe on a terminal: what a model wrote must not move the cursor. Lines stay lines.
func Harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, s)
}

// oneLine is Harmless on a single line.
func oneLine(s string) string { return strings.Join(strings.Fields(Harmless(s)), " ") }

// clip shortens text to n letters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// count says a number of things.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// thousands writes a number as people read it.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// elapsed writes how long a part of a run takes, with tenths of a second while they matter. Ages, which are rounded to seconds, are console.Span.
func elapsed(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d:%02d min", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d:%02d h", int(d.Hours()), int(d.Minutes())%60)
}

// money writes a cost.
func money(u llm.Usage) string {
	switch {
	case u.Cost == 0 && u.Unpriced:
		return "price unknown"
	case u.Unpriced:
		return fmt.Sprintf("more than $%.4f", u.Cost)
	}
	return fmt.Sprintf("$%.4f", u.Cost)
}

// spent is one line about what a run took.
func spent(u llm.Usage, took time.Duration) string {
	return strings.Join([]string{
		count(u.Calls, "model call", "model calls"), count(u.Tokens(), "token", "tokens"), money(u), elapsed(took),
	}, " · ")
}

// contextLine describes what a question is about.
func contextLine(c v1.ContextNote) string {
	s := c.Variable
	if c.Name != "" {
		s += " (" + c.Name + ")"
	}
	s += ": " + c.Type
	if c.Size > 0 {
		unit := " items"
		if c.Type == "str" {
			unit = " characters"
		}
		s += " of " + thousands(c.Size) + unit
	}
	if c.Skipped > 0 {
		s += "; " + count(int64(c.Skipped), "file that is no text is", "files that are no text are") + " left out"
	}
	return oneLine(s)
}

// Summary tells how a run ended, in a few lines.
func Summary(r *rlm.Result) []string {
	first := count(int64(r.Turns), "turn", "turns")
	if r.Plain {
		first = "asked directly, the context is small"
	}
	if r.Children > 0 {
		first += ", " + count(r.Children, "child run", "child runs")
	}
	if r.Cached > 0 {
		first += ", " + count(r.Cached, "call", "calls") + " from the cache"
	}
	lines := []string{first + " · " + spent(r.Usage, r.Wall)}
	if c := r.Coverage; c != nil && c.Bytes > 0 {
		lines = append(lines, fmt.Sprintf("models have read %.1f %% of the context (%s of %s bytes)", c.Percent, thousands(c.Read), thousands(c.Bytes)))
	}
	if c := r.Coverage; c != nil {
		for _, o := range c.Omitted {
			lines = append(lines, fmt.Sprintf("%s not counted (%s bytes): %s", count(int64(o.Files), "file of the context is", "files of the context are"), thousands(o.Bytes), o.Why))
		}
	}
	return lines
}
