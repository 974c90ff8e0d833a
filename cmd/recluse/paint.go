package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"
)

// paint is how marks and words look on our output.
type paint struct {
	good, bad, none string
	bold, dim, off  string
}

// paint gives colours on a terminal whose user wants them. All marks are equally wide, as tables need.
func (a *app) paint() paint {
	p := paint{good: "✓", bad: "✗", none: " "}
	f, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return p
	}
	p.good, p.bad, p.none = "\x1b[32m✓\x1b[0m", "\x1b[31m✗\x1b[0m", "\x1b[39m \x1b[0m"
	p.bold, p.dim, p.off = "\x1b[1m", "\x1b[2m", "\x1b[0m"
	return p
}

func (p paint) mark(ok bool) string {
	if ok {
		return p.good
	}
	return p.bad
}

// short prints a duration as people like to read it.
func short(d time.Duration) string {
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
