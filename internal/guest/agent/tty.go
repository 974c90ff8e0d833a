//go:build linux

package agent

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// gVisor's terminals look at what is typed only when the line before it has been read: behind a line that was typed ahead, Ctrl-C would
// reach nobody, and a program that never reads could not be interrupted. On Linux such a key is heard at once, and throws away what was typed
// ahead. So that is done here first, and then the key finds an empty line; where the kernel does it too, nothing is changed.

// typeIn writes what was typed to a terminal.
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

// signalKeys gives those bytes of p that are a signal on this terminal now, and end what was typed ahead.
func signalKeys(master *os.File, p []byte) []byte {
	if !slices.ContainsFunc(p, func(b byte) bool { return b < ' ' && b != '\r' && b != '\n' && b != '\t' && b != 0x1b }) {
		return nil // ordinary text is not worth a call
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

// dropTypeAhead throws away what was typed and not read. That is asked for at the program's end of the terminal: at ours it would
// mean the output.
func dropTypeAhead(master *os.File) {
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return
	}
	fd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return // nobody is left to read it
	}
	_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
	_ = unix.Close(fd)
}
