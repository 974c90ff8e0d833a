package console

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Paint is how marks and words look on an output. All marks are equally wide, as tables need.
type Paint struct {
	Good, Bad, None string
	Bold, Dim, Off  string
}

// NewPaint has colours on a terminal whose user wants them.
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

// Mark returns the mark of something that is as it should be, or not.
func (p Paint) Mark(ok bool) string {
	if ok {
		return p.Good
	}
	return p.Bad
}
