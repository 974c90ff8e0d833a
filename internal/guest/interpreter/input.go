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

// openWait is how many milliseconds an interpreter has to open the input of its cell. After that, the end of the input
// may be lost.
const openWait = 2000

// fifo is the input of a cell. The interpreter opens it by name, because its descriptors are fixed when it starts.
type fifo struct {
	path string
	hold *os.File // open for reading and writing, so that neither side waits for the other and closing unblocks a write
	w    *os.File

	inputMu sync.Mutex // held while input is written or closed
}

// openFIFO creates the input of the cell and starts to copy the input that the host sends.
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
	r.op.SetInput(func(in *wire.Input) *wire.Error { return r.accept(f, in) })
	go r.receiveInput(f)
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
	_ = f.w.Close()    // closing nil is harmless
	_ = f.hold.Close() // as above
	_ = os.Remove(f.path)
}

// receiveInput copies the input that the host sends to the cell.
func (r *cellRun) receiveInput(f *fifo) {
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
			f.inputMu.Lock()
			_, err := f.w.Write(in.Stdin)
			f.inputMu.Unlock()
			if err != nil {
				continue // the cell no longer reads
			}
		}
		if in.GetCloseStdin() {
			f.inputMu.Lock()
			r.endInput(f)
			f.inputMu.Unlock()
		}
	}
}

// accept takes input from a Feed call. Only one call at a time may wait for the cell to read; other calls return busy.
func (r *cellRun) accept(f *fifo, in *wire.Input) *wire.Error {
	if in.GetRows() > 0 {
		return wire.Errorf("invalid_request", "operation %s: not a terminal", r.op.ID)
	}
	if !f.inputMu.TryLock() {
		return wire.Errorf("busy", "operation %s has not read its earlier input", r.op.ID)
	}
	defer f.inputMu.Unlock()
	if len(in.GetStdin()) > 0 {
		if _, err := f.w.Write(in.Stdin); err != nil {
			return wire.Errorf("invalid_request", "operation %s no longer reads input", r.op.ID)
		}
	}
	if in.GetCloseStdin() {
		r.endInput(f)
	}
	return nil
}

// endInput closes the input of the cell.
//
// Preconditions: inputMu is held.
func (r *cellRun) endInput(f *fifo) {
	r.awaitReader(f.path)
	_ = f.hold.Close()
	_ = f.w.Close()
}

// awaitReader waits until the interpreter has opened the FIFO: data in a FIFO that no process has open is lost.
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
