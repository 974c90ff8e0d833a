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

// StripControl removes control characters except newlines and tabs, so that text of a model cannot control the
// terminal.
func StripControl(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, s)
}

// oneLine is StripControl with all white space replaced by single spaces.
func oneLine(s string) string { return strings.Join(strings.Fields(StripControl(s)), " ") }

// clip shortens a text to n characters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// count returns a number with the singular or plural of a noun.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// thousands formats a number with commas between groups of three digits.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// elapsed formats the duration of a part of a run, with tenths of a second below 10 s. For ages, which are rounded to
// seconds, use console.Span.
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

// costText formats the cost of a usage.
func costText(u llm.Usage) string {
	switch {
	case u.Cost == 0 && u.Unpriced:
		return "price unknown"
	case u.Unpriced:
		return fmt.Sprintf("more than $%.4f", u.Cost)
	}
	return fmt.Sprintf("$%.4f", u.Cost)
}

// usageLine returns one line with the calls, tokens, cost and duration of a run.
func usageLine(u llm.Usage, took time.Duration) string {
	return strings.Join([]string{
		count(u.Calls, "model call", "model calls"), count(u.Tokens(), "token", "tokens"), costText(u), elapsed(took),
	}, " · ")
}

// contextLine returns one line that describes a context.
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
		s += "; " + count(int64(c.Skipped), "file that is not text is", "files that are not text are") + " left out"
	}
	return oneLine(s)
}

// Summary returns a few lines about a run that has ended: turns, usage and coverage.
func Summary(r *rlm.Result) []string {
	first := count(int64(r.Turns), "turn", "turns")
	if r.Plain {
		first = "plain call, because the context is small"
	}
	if r.Children > 0 {
		first += ", " + count(r.Children, "child run", "child runs")
	}
	if r.Cached > 0 {
		first += ", " + count(r.Cached, "call", "calls") + " from the cache"
	}
	lines := []string{first + " · " + usageLine(r.Usage, r.Wall)}
	if c := r.Coverage; c != nil && c.Bytes > 0 {
		lines = append(lines, fmt.Sprintf("models have read %.1f %% of the context (%s of %s bytes)",
			c.Percent, thousands(c.Read), thousands(c.Bytes)))
	}
	if c := r.Coverage; c != nil {
		for _, o := range c.Omitted {
			files := count(int64(o.Files), "file of the context is", "files of the context are")
			lines = append(lines, fmt.Sprintf("%s not counted (%s bytes): %s", files, thousands(o.Bytes), o.Why))
		}
	}
	return lines
}
