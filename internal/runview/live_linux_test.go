package runview

import (
	"io"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
)

func TestLiveGivesTheTerminalBack(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	written := make(chan string)
	go func() {
		b, _ := io.ReadAll(master) // reading fails when the other end is closed
		written <- string(b)
	}()
	s := beginning(t)
	s.finish()
	l := NewLive(slave)
	for _, e := range s.events {
		l.Event(e)
	}
	l.Note("stopping")
	l.Close()
	slave.Close()
	out := <-written
	wants(t, ansi.Strip(out), "turn 2", "ended without an answer: turns")
	if shown, hidden := strings.LastIndex(out, showCursor), strings.LastIndex(out, "\x1b[?25l"); shown < hidden {
		t.Error("the cursor is left hidden")
	}
}
