package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

func TestProgressIsDrawnOnATerminal(t *testing.T) {
	for name, c := range map[string]struct {
		done, total int64
		want        string
	}{
		"nothing known yet":  {0, 0, "\r\x1b[Kimage box …"},
		"an unknown end":     {2_500_000, 0, "\r\x1b[Kimage box  2.5 MB"},
		"at the beginning":   {0, 8_000_000, "\r\x1b[Kimage box  [" + strings.Repeat(" ", 30) + "] 0% of 8.0 MB"},
		"in the middle":      {4_000_000, 8_000_000, "\r\x1b[Kimage box  [" + strings.Repeat("=", 15) + strings.Repeat(" ", 15) + "] 50% of 8.0 MB"},
		"gone when finished": {8_000_000, 8_000_000, "\r\x1b[K"},
	} {
		t.Run(name, func(t *testing.T) {
			master, slave, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			defer slave.Close()
			(&app{stderr: slave}).progress()("image box", c.done, c.total)
			if err := master.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(c.want))
			if n, err := io.ReadFull(master, got); err != nil || string(got) != c.want {
				t.Errorf("drawn %q, %v; want %q", got[:n], err, c.want)
			}
		})
	}
}

func TestProgressIsNotDrawnElsewhere(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, to := range map[string]io.Writer{"a pipe": w, "a buffer": &bytes.Buffer{}} {
		if (&app{stderr: to}).progress() != nil {
			t.Errorf("%s gets a bar", name)
		}
	}
}

func TestLongCallsShowTheirTime(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	if err := master.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if n, err := io.ReadFull(master, got); err != nil || string(got) != want {
			t.Errorf("drawn %q, %v; want %q", got[:n], err, want)
		}
	}
	a := &app{stderr: slave}
	more := func(context.Context) string { return ", 1 GB of 5 GB" }
	a.elapsed("a short call", time.Hour, more)()
	(&app{stderr: slave, json: true}).elapsed("with --json", 0, more)()
	done := a.elapsed("saving work", 0, more)
	expect("\r\x1b[Ksaving work … 0 s, 1 GB of 5 GB")
	done()
	if _, err := slave.WriteString("|"); err != nil {
		t.Fatal(err)
	}
	rest, err := bufio.NewReader(master).ReadString('|')
	if err != nil || !strings.HasSuffix("GB"+rest, "GB\r\x1b[K|") {
		t.Errorf("drawn %q, %v; want the line gone at the end", rest, err)
	}
}
