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
	// maxFrame bounds what an interpreter may send at once.
	maxFrame = 64 << 20
	// keptFrame is the largest buffer that is kept for the next frame.
	keptFrame = 1 << 20
)

// interpreter is one live process, the state of one context.
type interpreter struct {
	contexts *Contexts
	context  string
	profile  Profile // complete
	version  string
	nanny    *nanny.Nanny
	pid      int
	tree     int // its name for the nanny
	page     *kernel.Page

	turn chan struct{} // holds one token: whoever has it may run a cell

	in     int           // control, to the interpreter; blocking
	out    int           // control, from the interpreter; blocking
	frames *bufio.Reader // over out; used by the holder of the turn
	frame  []byte        // reused between frames
	sendMu sync.Mutex    // guards writes to in

	// emitMu orders what comes over the control pipe and over fds 1 and 2.
	emitMu sync.Mutex
	pipes  [2]int               // guarded by emitMu; fds 1 and 2 of the interpreter, -1 once ended
	op     *operation.Operation // guarded by emitMu; whose output it is now

	seq    uint32                                 // of the cell; used by the holder of the turn
	cells  int64                                  // finished; used by the holder of the turn
	known  map[nanny.Process]bool                 // left by earlier cells; used by the holder of the turn
	left   atomic.Pointer[map[nanny.Process]bool] // known, for others; what it points to does not change
	events chan *nanny.Event                      // from the nanny

	latest atomic.Pointer[operation.Operation] // the last cell that had the turn, through which the interpreter can be signalled when it is over

	refused chan int      // calls to the host that there is no room for; see refuse
	gone    chan struct{} // closed when it is discarded

	mu      sync.Mutex
	stale   func()               // guarded by mu; what must be done before the next cell
	running *operation.Operation // guarded by mu; whose turn it is
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

// listen passes the nanny's events on. Lists are answers that the holder of the turn waits for; the rest tells that the interpreter has
// ended.
func (i *interpreter) listen() {
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

// personalise renews what two copies of an interpreter must not share. It is done before the next cell: the interpreter listens only
// between cells.
func (i *interpreter) personalise(old, env map[string]string) {
	var unset []string
	for k := range old {
		if _, ok := env[k]; !ok {
			unset = append(unset, k)
		}
	}
	entropy := make([]byte, 32)
	_, _ = rand.Read(entropy) // never fails
	renew := func() {
		h, err := withHeader(map[string]any{"env": env, "unset": unset, "reseed": true, "entropy": hex.EncodeToString(entropy)}, nil)
		if err != nil || i.send(kernel.TypePersonalise, h...) != nil {
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
	i.stale = renew
}

// freshen does what personalise has left to do.
//
// Preconditions: the caller holds the turn.
func (i *interpreter) freshen() {
	i.mu.Lock()
	renew := i.stale
	i.stale = nil
	i.mu.Unlock()
	if renew != nil {
		renew()
	}
}

// claim makes o the operation whose turn it is, unless the interpreter is of no use any more.
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

// yield passes the turn on.
func (i *interpreter) yield() {
	i.mu.Lock()
	i.running = nil
	i.mu.Unlock()
	i.turn <- struct{}{}
}

// alive reports that it has not died since its last cell, as far as can be seen.
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

// discarded reports that nothing is left of it.
func (i *interpreter) discarded() bool {
	select {
	case <-i.gone:
		return true
	default:
		return false
	}
}

// unread returns how much of what was sent to the interpreter it has not read.
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

// close ends the interpreter of a context that is closed, and the cell that runs in it. Descriptors are closed only when nothing uses
// them any more.
func (i *interpreter) close() {
	i.mu.Lock()
	i.closing = true
	o := i.running
	i.mu.Unlock()
	i.contexts.forget(i)
	i.contexts.tellLoss(i.context) // whoever closes a context knows
	if o != nil {
		o.Mark(wire.Ending_ENDING_KILLED) // there is no use in asking it to stop
	}
	_ = i.nanny.SignalTree(i.tree, syscall.SIGKILL)
	<-i.turn
	i.discard()
	i.yield()
}

// discard ends the interpreter and everything below it.
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
	i.contexts.cfg.Nannies.CloseDead(i.nanny) // in case it was the nanny that died
	i.sendMu.Lock()
	_ = unix.Close(i.in)
	i.in = -1
	i.sendMu.Unlock()
	_ = unix.Close(i.out)
	_ = i.page.Close()
}
