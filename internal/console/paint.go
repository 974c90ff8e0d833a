package console

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Paint has the marks and the text styles of an output. All marks have the same width, as tables need.
type Paint struct {
	Good, Bad, None string
	Bold, Dim, Off  string
}

// NewPaint returns the marks and styles for w. They have colours if w is a terminal, NO_COLOR is not set and TERM is
// not dumb.
func NewPaint(w io.Writer) Paint {
	p := Paint{Good: "✓", Bad: "✗", None: " "}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return p
	}
	p.Good, p.Bad, p.None = "\x1b[32m✓\x1b[0m", "\x1b[31m✗\x1b[0m", "\x1b[39m \x1b[0m"
	p.Bold, p.Dim, p.Off = "\x1b[1m", "\x1b[2m", "\x1b[0m"
	return p
}

// Mark returns the mark for success or failure.
func (p Paint) Mark(ok bool) string {
	if ok {
		return p.Good
	}
	return p.Bad
}
