//go:build linux

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// stdin makes a FIFO for the cell's input. The interpreter opens it by name, because
// its descriptors were settled at its birth.
func (r *cellRun) stdin() (path string, done func(), err error) {
	path = filepath.Join(r.agent.cfg.State, r.op.id+".stdin")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return "", nil, err
	}
	if r.agent.cfg.UID > 0 {
		if err := os.Chown(path, r.agent.cfg.UID, r.agent.cfg.GID); err != nil {
			_ = os.Remove(path)
			return "", nil, err
		}
	}
	// Opened for both, so that neither side waits for the other and closing unblocks a write.
	hold, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		_ = os.Remove(path)
		return "", nil, err
	}
	w, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		_ = hold.Close()
		_ = os.Remove(path)
		return "", nil, err
	}
	go func() {
		defer w.Close()
		for {
			f := &wire.Frame{}
			if err := r.stream.Receive(f); err != nil {
				if !r.req.Options.Detach {
					r.op.end(wire.Ending_ENDING_CANCELLED)
				}
				break
			}
			in := f.GetInput()
			if len(in.GetStdin()) > 0 {
				if _, err := w.Write(in.Stdin); err != nil {
					continue // nobody reads it any more
				}
			}
			if in.GetCloseStdin() {
				r.awaitReader(hold)
				_ = hold.Close()
				_ = w.Close()
			}
		}
	}()
	return path, func() {
		_ = w.Close()
		_ = hold.Close()
		_ = os.Remove(path)
	}, nil
}

// awaitReader keeps the FIFO open until the interpreter has opened it too: what was
// written to a FIFO that nobody has open is lost.
func (r *cellRun) awaitReader(hold *os.File) {
	for range 2000 {
		if r.op.finished() {
			return
		}
		r.mu.Lock()
		pid := r.interp.pid
		r.mu.Unlock()
		links, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err == nil {
			for _, l := range links {
				if t, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, l.Name())); err == nil && t == hold.Name() {
					return
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
}
