//go:build linux

package interpreter

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// openWait is how many milliseconds an interpreter has to open the input of its cell before the end of that input may be lost on it.
const openWait = 2000

// fifo is the input of a cell. The interpreter opens it by name, because its descriptors were settled when it started.
type fifo struct {
	path string
	hold *os.File // opened for both, so that neither side waits for the other and closing unblocks a write
	w    *os.File

	feeding sync.Mutex // held while input is written or ended
}

// openFIFO makes the cell's input and begins to carry what the host sends.
func (r *cellRun) openFIFO() (*fifo, error) {
	cfg := r.contexts.cfg
	f := &fifo{path: filepath.Join(cfg.State, r.op.ID+".stdin")}
	if err := unix.Mkfifo(f.path, 0o600); err != nil {
		return nil, err
	}
	if u := r.interp.profile.User; cfg.SwitchUser {
		if err := os.Chown(f.path, u.UID, u.GID); err != nil {
			_ = os.Remove(f.path)
			return nil, err
		}
	}
	if err := f.open(); err != nil {
		f.close()
		return nil, err
	}
	r.op.Accept(func(in *wire.Input) *wire.Error { return r.accept(f, in) })
	go r.carryInput(f)
	return f, nil
}

func (f *fifo) open() (err error) {
	if f.hold, err = os.OpenFile(f.path, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	f.w, err = os.OpenFile(f.path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	return err
}

// close removes the FIFO; f may be nil.
func (f *fifo) close() {
	if f == nil {
		return
	}
	_ = f.w.Close()    // nil is closed already
	_ = f.hold.Close() // as above
	_ = os.Remove(f.path)
}

func (r *cellRun) carryInput(f *fifo) {
	for {
		in, err := r.Input()
		if err != nil {
			if !r.Options.Detach {
				r.op.End(wire.Ending_ENDING_CANCELLED)
			}
			if !r.Options.Detach || !r.Options.KeepStdin {
				_ = f.w.Close()
			}
			return
		}
		if len(in.GetStdin()) > 0 {
			f.feeding.Lock()
			_, err := f.w.Write(in.Stdin)
			f.feeding.Unlock()
			if err != nil {
				continue // the cell no longer reads it
			}
		}
		if in.GetCloseStdin() {
			f.feeding.Lock()
			r.endInput(f)
			f.feeding.Unlock()
		}
	}
}

// accept takes input from a call of its own. One call at a time may wait for the cell to read; other calls return busy.
func (r *cellRun) accept(f *fifo, in *wire.Input) *wire.Error {
	if in.GetRows() > 0 {
		return wire.Errorf("invalid_request", "operation %s: not a terminal", r.op.ID)
	}
	if !f.feeding.TryLock() {
		return wire.Errorf("busy", "operation %s has not read its earlier input", r.op.ID)
	}
	defer f.feeding.Unlock()
	if len(in.GetStdin()) > 0 {
		if _, err := f.w.Write(in.Stdin); err != nil {
			return wire.Errorf("invalid_request", "operation %s reads no input any more", r.op.ID)
		}
	}
	if in.GetCloseStdin() {
		r.endInput(f)
	}
	return nil
}

// endInput ends the cell's input.
//
// Preconditions: feeding is held.
func (r *cellRun) endInput(f *fifo) {
	r.awaitReader(f.path)
	_ = f.hold.Close()
	_ = f.w.Close()
}

// awaitReader waits until the interpreter has opened the FIFO: what was written to a FIFO that nothing has open is lost.
func (r *cellRun) awaitReader(path string) {
	for range openWait {
		if r.op.Finished() {
			return
		}
		r.mu.Lock()
		pid := r.interp.pid
		r.mu.Unlock()
		links, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err == nil {
			for _, l := range links {
				if t, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, l.Name())); err == nil && t == path {
					return
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
}
