//go:build linux

package interpreter

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// maxFrame bounds a frame of an interpreter.
	maxFrame = 64 << 20
	// keptFrame is the largest buffer that is kept for the next frame.
	keptFrame = 1 << 20
)

// interpreter is the live process of one context.
type interpreter struct {
	contexts *Contexts
	context  string
	profile  Profile // complete
	version  string
	nanny    *nanny.Nanny
	pid      int
	tree     int // number of its tree at the nanny
	page     *kernel.Page

	turn chan struct{} // holds one token: its holder may run a cell

	in     int           // control, to the interpreter; blocking
	out    int           // control, from the interpreter; blocking
	frames *bufio.Reader // over out; used by the holder of the turn
	frame  []byte        // reused between frames
	sendMu sync.Mutex    // guards writes to in

	reading atomic.Bool // a cell reads out
	holding atomic.Bool // something that was read from out is not delivered yet

	// emitMu orders output of the control pipe and of fds 1 and 2.
	emitMu sync.Mutex
	pipes  [2]int               // guarded by emitMu; fds 1 and 2 of the interpreter, -1 after their end
	op     *operation.Operation // guarded by emitMu; the cell that receives output now

	seq    uint32                                 // number of the last cell; used by the holder of the turn
	cells  int64                                  // number of finished cells; used by the holder of the turn
	known  map[nanny.Process]bool                 // survivors of earlier cells; used by the holder of the turn
	left   atomic.Pointer[map[nanny.Process]bool] // copy of known for other goroutines; the map does not change
	events chan *nanny.Event                      // from the nanny

	// latest is the last cell that had the turn. After its end, the interpreter can be signalled through it.
	latest atomic.Pointer[operation.Operation]

	refused chan int      // rejected calls to the host; see sendRefusals
	gone    chan struct{} // closed when the interpreter is discarded

	mu      sync.Mutex
	renewal func()               // guarded by mu; must be called before the next cell; nil: nothing to do
	running *operation.Operation // guarded by mu; the operation that has the turn
	closing bool                 // guarded by mu; its context is being closed: no cell may begin
	dead    bool                 // guarded by mu
}

func (i *interpreter) read() (byte, []byte, error) {
	typ, payload, err := kernel.ReadFrame(i.frames, i.frame, maxFrame)
	if cap(payload) > cap(i.frame) && cap(payload) <= keptFrame {
		i.frame = payload[:0]
	}
	return typ, payload, err
}

// send writes one frame to the interpreter.
func (i *interpreter) send(typ byte, payload ...[]byte) error {
	b := kernel.AppendFrame(nil, typ, payload...)
	i.sendMu.Lock()
	defer i.sendMu.Unlock()
	if i.in < 0 {
		return os.ErrClosed
	}
	for len(b) > 0 {
		n, err := unix.Write(i.in, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// withHeader returns the payload of a frame with a header.
func withHeader(header any, body []byte) ([][]byte, error) {
	h, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	n := len(h)
	return [][]byte{{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, h, body}, nil
}

// forwardEvents forwards the events of the nanny. Lists are answers for the holder of the turn; all other events mean
// that the interpreter has ended.
func (i *interpreter) forwardEvents() {
	defer close(i.events)
	for {
		e, err := i.nanny.Next()
		if err != nil {
			return
		}
		i.events <- e
		if e.Empty {
			return
		}
	}
}

// scheduleRenewal requests the renewal of everything that two copies of an interpreter must not share. It happens
// before the next cell, because the interpreter reads frames only between cells.
func (i *interpreter) scheduleRenewal(old, env map[string]string) {
	var unset []string
	for k := range old {
		if _, ok := env[k]; !ok {
			unset = append(unset, k)
		}
	}
	entropy := make([]byte, 32)
	_, _ = rand.Read(entropy) // never fails
	renew := func() {
		header := map[string]any{"env": env, "unset": unset, "reseed": true, "entropy": hex.EncodeToString(entropy)}
		h, err := withHeader(header, nil)
		if err != nil || i.send(kernel.TypeRenew, h...) != nil {
			return
		}
		for {
			typ, _, err := i.read()
			if err != nil || typ == kernel.TypeAck {
				return
			}
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.renewal = renew
}

// renewIfDue executes a scheduled renewal.
//
// Preconditions: the caller holds the turn.
func (i *interpreter) renewIfDue() {
	i.mu.Lock()
	renew := i.renewal
	i.renewal = nil
	i.mu.Unlock()
	if renew != nil {
		renew()
	}
}

// claim makes o the operation that has the turn. It returns false if the interpreter is dead or being closed.
//
// Preconditions: the caller holds the turn.
func (i *interpreter) claim(o *operation.Operation) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dead || i.closing {
		return false
	}
	i.running = o
	return true
}

// yield passes on the turn.
func (i *interpreter) yield() {
	i.mu.Lock()
	i.running = nil
	i.mu.Unlock()
	i.turn <- struct{}{}
}

// alive reports whether the interpreter has not died since its last cell, as far as the guest can see.
//
// Preconditions: the caller holds the turn.
func (i *interpreter) alive() bool {
	select {
	case e, ok := <-i.events:
		if !ok || e.Exited || e.Empty {
			return false
		}
	default:
	}
	return blocking.Ready(i.out)&(unix.POLLHUP|unix.POLLERR) == 0
}

// discarded reports whether the interpreter and everything below it have ended.
func (i *interpreter) discarded() bool {
	select {
	case <-i.gone:
		return true
	default:
		return false
	}
}

// unread returns the number of bytes sent to the interpreter that it has not read.
func (i *interpreter) unread() int {
	i.sendMu.Lock()
	defer i.sendMu.Unlock()
	if i.in < 0 {
		return 0
	}
	n, err := unix.IoctlGetInt(i.in, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// close ends an interpreter whose context is closed, and the cell that runs in it. It closes the descriptors only after
// their last use.
func (i *interpreter) close() {
	i.mu.Lock()
	i.closing = true
	o := i.running
	i.mu.Unlock()
	i.contexts.forget(i)
	i.contexts.takeLoss(i.context) // the caller of Close knows about the loss
	if o != nil {
		o.MarkEnding(wire.Ending_ENDING_KILLED) // an interrupt would be useless
	}
	_ = i.nanny.SignalTree(i.tree, syscall.SIGKILL)
	<-i.turn
	i.discard()
	i.yield()
}

// discard kills the interpreter and everything below it.
//
// Preconditions: the caller holds the turn, or nothing else knows the interpreter.
func (i *interpreter) discard() {
	i.mu.Lock()
	if i.dead {
		i.mu.Unlock()
		return
	}
	i.dead = true
	i.mu.Unlock()
	close(i.gone)
	i.contexts.forget(i)
	_ = i.nanny.SignalTree(i.tree, syscall.SIGKILL)
	for e := range i.events {
		if e.Empty {
			break
		}
	}
	i.contexts.cfg.Nannies.CloseDead(i.nanny) // in case the nanny has died
	i.sendMu.Lock()
	_ = unix.Close(i.in)
	i.in = -1
	i.sendMu.Unlock()
	_ = unix.Close(i.out)
	_ = i.page.Close()
}
