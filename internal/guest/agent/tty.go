//go:build linux

package agent

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A terminal of gVisor processes input only when the line before it has been read: after a line that was typed ahead,
// Ctrl-C would have no effect, and a program that never reads could not be interrupted. On Linux such a key takes
// effect at once, and discards the type-ahead. So typeIn discards it first, and the key then finds an empty line. Where
// the kernel does it anyway, this changes nothing.

// typeIn writes input to a terminal.
func typeIn(master *os.File, p []byte) error {
	for len(p) > 0 {
		n := len(p)
		if keys := signalKeys(master, p); len(keys) > 0 {
			n = slices.IndexFunc(p, func(b byte) bool { return bytes.IndexByte(keys, b) >= 0 })
		}
		if n == 0 {
			dropTypeAhead(master)
			n = 1
		}
		if _, err := master.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// signalKeys returns the bytes of p that currently send a signal on this terminal and discard type-ahead.
func signalKeys(master *os.File, p []byte) []byte {
	if !slices.ContainsFunc(p, func(b byte) bool { return b < ' ' && b != '\r' && b != '\n' && b != '\t' && b != 0x1b }) {
		return nil // ordinary text needs no system call
	}
	t, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
	if err != nil || t.Lflag&unix.ISIG == 0 || t.Lflag&unix.NOFLSH != 0 {
		return nil
	}
	var keys []byte
	for _, k := range []int{unix.VINTR, unix.VQUIT, unix.VSUSP} {
		if b := t.Cc[k]; b != 0 && bytes.IndexByte(p, b) >= 0 {
			keys = append(keys, b)
		}
	}
	return keys
}

// dropTypeAhead discards unread input. It flushes the program's side of the terminal, because on the master side the
// flush would discard output.
func dropTypeAhead(master *os.File) {
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return
	}
	fd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return // no program has the terminal open
	}
	_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
	_ = unix.Close(fd)
}
