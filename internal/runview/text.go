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
// terminal. It also removes the characters that change the direction of text, which can make text look like another
// one.
func StripControl(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
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

// elapsed formats the duration of a part of a run, with tenths of a second below 10 s and milliseconds below 0.1 s. For
// ages, which are rounded to seconds, use console.Span.
func elapsed(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
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
	case u.Estimated && u.Cost > 0:
		return fmt.Sprintf("≈$%.4f", u.Cost)
	}
	return fmt.Sprintf("$%.4f", u.Cost)
}

// tokensText formats the tokens of a usage.
func tokensText(u llm.Usage) string {
	s := count(u.Tokens(), "token", "tokens")
	if u.Estimated {
		return "≈" + s
	}
	return s
}

// usageLine returns one line with the calls, tokens, cost and duration of a run.
func usageLine(u llm.Usage, took time.Duration) string {
	return strings.Join(usageParts(u, took), " · ")
}

func usageParts(u llm.Usage, took time.Duration) []string {
	return []string{count(u.Calls, "model call", "model calls"), tokensText(u), costText(u), elapsed(took)}
}

// budgetParts returns what is left of the limits of a run, in words. Limits that are switched off are left out.
func (r *run) budgetParts(now time.Time) []string {
	var parts []string
	l := r.limits
	if l.Tokens != nil && *l.Tokens >= 0 {
		parts = append(parts, count(max(0, *l.Tokens-r.usage.Tokens()), "token", "tokens"))
	}
	if l.Cost != nil && *l.Cost >= 0 {
		parts = append(parts, fmt.Sprintf("$%.4f", max(0, *l.Cost-r.usage.Cost)))
	}
	if l.Time != nil && l.Time.Std() >= 0 {
		parts = append(parts, elapsed(max(0, l.Time.Std()-r.worked(now))))
	}
	if l.Calls != nil && *l.Calls >= 0 {
		parts = append(parts, count(max(0, *l.Calls-r.usage.Calls), "model call", "model calls"))
	}
	if l.Turns != nil && len(r.root.turns) > 0 {
		parts = append(parts, count(int64(max(0, *l.Turns-r.root.last().n)), "turn", "turns"))
	}
	return parts
}

// coverageText returns how much of the context models have read, in words.
//
// Preconditions: total is not 0.
func coverageText(read, total int64) string {
	return fmt.Sprintf("%s (%s of %s bytes)", coverageShort(read, total), thousands(read), thousands(total))
}

// coverageShort is coverageText without the bytes.
func coverageShort(read, total int64) string {
	return fmt.Sprintf("models have read %.1f %% of the context", 100*float64(read)/float64(total))
}

// endText returns how a run or a child run ended, in words.
func endText(reason v1.RunReason, why string) string {
	if reason == v1.ReasonAnswered {
		return "answered"
	}
	s := "ended without an answer: " + string(reason)
	if why = oneLine(why); why != "" && why != string(reason) {
		s += ": " + why
	}
	return s
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
		lines = append(lines, coverageText(c.Read, c.Bytes))
	}
	if c := r.Coverage; c != nil {
		for _, o := range c.Omitted {
			files := count(int64(o.Files), "file of the context is", "files of the context are")
			lines = append(lines, fmt.Sprintf("%s not counted (%s bytes): %s", files, thousands(o.Bytes), o.Why))
		}
	}
	return lines
}
