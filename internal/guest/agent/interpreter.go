//go:build linux

package agent

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// maxKernelFrame bounds what an interpreter may send at once. It is not to be trusted:
// model-written code lives in it.
const maxKernelFrame = 64 << 20

// startWait is how long an interpreter may take to say hello.
const startWait = 60 * time.Second

// interpreter is one live Python process, the state of one context.
type interpreter struct {
	agent   *Agent
	context string
	nanny   *nanny.Nanny
	pid     int
	tree    int // its name for the nanny
	hello   kernelHello
	page    *kernel.Page

	turn chan struct{} // holds one token: whoever has it may run a cell

	in     int           // control, to the interpreter; blocking
	out    int           // control, from the interpreter; blocking
	frames *bufio.Reader // over out; used by the holder of the turn
	frame  []byte        // reused between frames
	sendMu sync.Mutex    // guards writes to in

	// emitMu orders what comes over the control pipe and over fds 1 and 2.
	emitMu sync.Mutex
	pipes  [2]int // fds 1 and 2 of the interpreter, -1 once ended; guarded by emitMu
	op     *op    // guarded by emitMu; whose output it is now

	seq    uint32                 // of the cell; used by the holder of the turn
	cells  int64                  // finished; used by the holder of the turn
	known  map[nanny.Process]bool // left by earlier cells; used by the holder of the turn
	events chan *nanny.Event      // from the nanny

	latest atomic.Pointer[op] // the last cell that had the turn, through which the interpreter can be signalled when it is over

	refused chan int      // calls to the host that there is no room for; see refuse
	gone    chan struct{} // closed when it is discarded

	mu      sync.Mutex
	stale   func() // guarded by mu; what must be said to it before the next cell
	running *op    // guarded by mu; whose turn it is
	closing bool   // guarded by mu; its context is being closed: no cell may begin
	dead    bool   // guarded by mu
}

type kernelHello struct {
	Python     string `json:"python"`
	PID        int    `json:"pid"`
	Executable string `json:"executable"`
}

// start is an interpreter on its way.
type start struct {
	done chan struct{}
	i    *interpreter // set before done is closed
	bad  *wire.Error  // set before done is closed
}

// interpreterFor gives the context's interpreter and starts it if there is none. It gives nil when gaveUp is closed first; the start goes
// on then, for the next one who asks.
func (a *Agent) interpreterFor(name string, gaveUp <-chan struct{}) (*interpreter, *wire.Error) {
	a.mu.Lock()
	i, s := a.interps[name], a.starts[name]
	if i == nil && s == nil {
		s = &start{done: make(chan struct{})}
		a.starts[name] = s
		go a.bring(name, s)
	}
	a.mu.Unlock()
	if i != nil {
		return i, nil
	}
	select {
	case <-s.done:
		return s.i, s.bad
	case <-gaveUp:
		return nil, nil
	}
}

// bring starts an interpreter and makes it known.
func (a *Agent) bring(name string, s *start) {
	defer close(s.done)
	a.mu.Lock()
	old := a.identity
	a.mu.Unlock()
	s.i, s.bad = a.startInterpreter(name)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.starts, name)
	if s.i == nil {
		return
	}
	if a.identity.GetGeneration() != old.GetGeneration() {
		s.i.personalise(a.envMap(old), a.envMap(a.identity)) // adopt could not know it
	}
	a.interps[name] = s.i
}

func (a *Agent) startInterpreter(name string) (*interpreter, *wire.Error) {
	python := a.lookPython()
	if python == "" {
		return nil, failure("no_python", "this sandbox has no Python")
	}
	lost := func(what string, err error) *wire.Error {
		return failure("no_python", "the Python interpreter %s: %s: %v", python, what, err)
	}
	var fds [4][2]int // stdout, stderr, control in, control out
	var made []int
	fail := func() {
		for _, fd := range made {
			_ = unix.Close(fd)
		}
	}
	for i := range fds {
		if err := unix.Pipe2(fds[i][:], unix.O_CLOEXEC); err != nil {
			fail()
			return nil, lost("no pipes", err)
		}
		made = append(made, fds[i][0], fds[i][1])
		a.handOver(fds[i][1])
	}
	null, err := openNull()
	if err != nil {
		fail()
		return nil, lost("no /dev/null", err)
	}
	page, file, err := kernel.NewPage()
	if err != nil {
		_ = unix.Close(null)
		fail()
		return nil, lost("no shared memory", err)
	}
	theirs := []int{null, fds[0][1], fds[1][1], fds[2][0], fds[3][1], int(file.Fd())}
	i := &interpreter{
		agent: a, context: name, turn: make(chan struct{}, 1), page: page,
		in: fds[2][1], out: fds[3][0], pipes: [2]int{fds[0][0], fds[1][0]},
		known: map[nanny.Process]bool{}, events: make(chan *nanny.Event, 4), refused: make(chan int, maxRefused), gone: make(chan struct{}),
	}
	i.frames = bufio.NewReaderSize(blockingReader(i.out), 32<<10)
	n, e, err := a.launch(nil, &nanny.Start{
		Path: []byte(python), Argv: [][]byte{[]byte(python), []byte("-c"), []byte(kernel.Bootstrap)},
		Env: a.environment(nil), Dir: []byte(a.cfg.Dir), Spared: true,
	}, theirs)
	i.nanny = n
	switch {
	case err == nil && e.PID == 0:
		a.giveNanny(n)
		err = errors.New(e.Error)
	case err == nil:
		i.pid, i.tree = e.PID, n.Tree()
	case errors.Is(err, nanny.ErrLost):
		a.buryNanny(n)
	}
	for _, fd := range theirs[:len(theirs)-1] {
		_ = unix.Close(fd) // the child has its own
	}
	_ = file.Close()
	if err != nil {
		for _, fd := range []int{i.in, i.out, i.pipes[0], i.pipes[1]} {
			_ = unix.Close(fd)
		}
		_ = page.Close()
		return nil, lost("did not start", err)
	}
	go i.listen()
	go i.refuse()
	for s := range i.pipes {
		go i.pump(s)
	}
	late := time.AfterFunc(startWait, func() { _ = i.nanny.SignalTree(i.tree, syscall.SIGKILL) })
	err = i.send(kernel.TypeSource, kernel.Source)
	if err == nil {
		err = i.awaitHello()
	}
	late.Stop()
	if err != nil {
		i.discard()
		return nil, lost("did not answer", err)
	}
	i.turn <- struct{}{}
	return i, nil
}

func (i *interpreter) awaitHello() error {
	typ, payload, err := i.read()
	if err != nil {
		return err
	}
	if typ != kernel.TypeHello {
		return fmt.Errorf("said %q instead of hello", typ)
	}
	return json.Unmarshal(payload, &i.hello)
}

func (i *interpreter) read() (byte, []byte, error) {
	typ, payload, err := kernel.ReadFrame(i.frames, i.frame, maxKernelFrame)
	if cap(payload) > cap(i.frame) && cap(payload) <= 1<<20 {
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

func headed(header any, body []byte) ([][]byte, error) {
	h, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	n := len(h)
	return [][]byte{{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, h, body}, nil
}

// listen hands the nanny's words on. Lists are answers that the holder of the turn
// waits for; the rest tells that the interpreter has ended.
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

// list asks the nanny what lives below it besides the interpreter.
func (i *interpreter) list() ([]nanny.Process, bool) {
	if i.nanny.RequestList() != nil {
		return nil, false
	}
	for e := range i.events {
		if e.Listed {
			return e.Survivors, true
		}
		if e.Exited || e.Empty {
			return nil, false
		}
	}
	return nil, false
}

// fresh gives what lives now and was not left by an earlier cell, nor started by such a one.
func (i *interpreter) fresh(all []nanny.Process) []nanny.Process {
	byPID := map[int]nanny.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	old := func(p nanny.Process) bool { return i.known[nanny.Process{PID: p.PID, Start: p.Start}] }
	var out []nanny.Process
	for _, p := range all {
		inherited := false
		for q, ok := p, true; ok && !inherited; q, ok = byPID[q.PPID] {
			inherited = old(q)
		}
		if !inherited {
			out = append(out, p)
		}
	}
	return out
}

func (i *interpreter) remember(all []nanny.Process) {
	clear(i.known)
	for _, p := range all {
		i.known[nanny.Process{PID: p.PID, Start: p.Start}] = true
	}
}

// personalise renews what two copies of an interpreter must not share. If a cell
// runs now, it is done before the next one: the interpreter listens only between cells.
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
		h, err := headed(map[string]any{"env": env, "unset": unset, "reseed": true, "entropy": hex.EncodeToString(entropy)}, nil)
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

// claim makes o the one whose turn it is, unless the interpreter is of no use any more.
//
// Preconditions: the caller holds the turn.
func (i *interpreter) claim(o *op) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dead || i.closing {
		return false
	}
	i.running = o
	return true
}

// yield gives the turn to the next.
func (i *interpreter) yield() {
	i.mu.Lock()
	i.running = nil
	i.mu.Unlock()
	i.turn <- struct{}{}
}

// alive tells whether it has not died since its last cell, as far as can be seen.
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
	return polled(i.out)&(unix.POLLHUP|unix.POLLERR) == 0
}

// discarded says that nothing is left of it.
func (i *interpreter) discarded() bool {
	select {
	case <-i.gone:
		return true
	default:
		return false
	}
}

// unread is how much of what it was sent it has not read.
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

// shut ends the interpreter of a context that is closed, and the cell that runs in it. Descriptors are closed only when nobody uses them any more.
func (i *interpreter) shut() {
	i.mu.Lock()
	i.closing = true
	o := i.running
	i.mu.Unlock()
	a := i.agent
	a.mu.Lock()
	if a.interps[i.context] == i {
		delete(a.interps, i.context)
	}
	delete(a.untold, i.context)
	a.mu.Unlock()
	if o != nil {
		o.mark(wire.Ending_ENDING_KILLED) // there is no use in asking it to stop
	}
	_ = i.nanny.SignalTree(i.tree, syscall.SIGKILL)
	<-i.turn
	i.discard()
	i.yield()
}

// discard ends the interpreter and everything below it.
//
// Preconditions: the caller holds the turn, or nobody else knows the interpreter.
func (i *interpreter) discard() {
	i.mu.Lock()
	if i.dead {
		i.mu.Unlock()
		return
	}
	i.dead = true
	i.mu.Unlock()
	close(i.gone)
	a := i.agent
	a.mu.Lock()
	if a.interps[i.context] == i {
		delete(a.interps, i.context)
	}
	a.mu.Unlock()
	_ = i.nanny.SignalTree(i.tree, syscall.SIGKILL)
	for e := range i.events {
		if e.Empty {
			break
		}
	}
	a.buryNanny(i.nanny) // in case it was the nanny that died
	i.sendMu.Lock()
	_ = unix.Close(i.in)
	i.in = -1
	i.sendMu.Unlock()
	_ = unix.Close(i.out)
	_ = i.page.Close()
}
