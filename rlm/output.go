package rlm

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// cut shortens a text to limit characters, half from its beginning and half from its end, with a note of its length
// between them.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := utf8.RuneCountInString(s)
	if n <= limit {
		return s
	}
	half := limit / 2
	return fmt.Sprintf("%s\n[… %d of %d characters cut …]\n%s",
		firstRunes(s, half), n-2*half, n, lastRunes(s, half))
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func lastRunes(s string, n int) string {
	at := len(s)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	return s[at:]
}

// streamText returns stdout or stderr of a cell as valid UTF-8, shortened to limit characters, with a note of what is
// missing.
func streamText(o sandbox.Output, limit int) string {
	if o.Cut() <= 0 {
		return cut(strings.ToValidUTF8(o.String(), "\uFFFD"), limit)
	}
	where := ""
	if o.File != "" {
		where = fmt.Sprintf("; its first %d bytes are in %s", o.InFile, o.File)
	}
	half := limit / 2
	return fmt.Sprintf("%s\n[… the output had %d bytes, only its beginning and end are shown%s …]\n%s",
		firstRunes(strings.ToValidUTF8(string(o.Head), "\uFFFD"), half), o.Produced, where,
		lastRunes(strings.ToValidUTF8(string(o.Tail), "\uFFFD"), half))
}

// observe returns what the model sees of a cell or command: its output, result and error, and how it ended. The total
// is about limit characters.
func observe(e *v1.CellEnded, timeout time.Duration, limit int) string {
	var b strings.Builder
	part := func(title, text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			if title != "" {
				b.WriteString(title + "\n")
			}
			b.WriteString(text + "\n")
		}
	}
	part("", e.Stdout)
	part("[stderr]", e.Stderr)
	part("[value]", e.Result)
	part("", e.Error)
	switch e.Ended {
	case v1.EndedTimeout:
		fmt.Fprintf(&b, "[stopped: it ran for more than %s]\n", timeout)
	case v1.EndedMemory:
		b.WriteString("[killed: it used more memory than the sandbox has]\n")
	case v1.EndedSignal, v1.EndedKilled:
		b.WriteString("[the process was killed by a signal]\n")
	case v1.EndedExit, v1.EndedCancelled, v1.EndedStart: // no note: the output or the error is enough
	}
	if e.Ended == v1.EndedExit && e.ExitCode != 0 && e.Error == "" {
		fmt.Fprintf(&b, "[exit status %d]\n", e.ExitCode)
	}
	if !e.StateKept {
		b.WriteString("[the interpreter was lost and restarted: your variables are gone, the context was loaded again]\n")
	}
	if len(e.Restored) > 0 {
		fmt.Fprintf(&b, "[these names are reserved, and were restored: %s]\n", strings.Join(e.Restored, ", "))
	}
	if b.Len() == 0 {
		return "[no output]\n"
	}
	return cut(b.String(), limit+1000)
}
