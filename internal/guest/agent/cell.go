//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// maxDisplays bounds the shown values of one cell that are kept for its verdict.
	maxDisplays     = 256
	maxDisplayBytes = 2 << 20
	// interruptWait is how long an interrupted cell may take to give up when the caller
	// has set no grace of its own.
	interruptWait = 2 * time.Second
	// deathWait is how long a dead interpreter's exit status is waited for.
	deathWait = 5 * time.Second
)

// cellEnd is the interpreter's last word on a cell.
type cellEnd struct {
	ID       uint32 `json:"id"`
	Status   string `json:"status"`
	ExitCode *int   `json:"exit_code"`
	Error    *struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
		Line      *int   `json:"line"`
	} `json:"error"`
	CPUNanos int64 `json:"cpu_ns"`
	MaxRSS   int64 `json:"maxrss"`
	Result   bool  `json:"result"`
	Spawned  int   `json:"spawned"`
}

// cell runs one Cell and answers with its verdict. It reports whether the stream can carry another call, which one with
// input never can.
func (a *Agent) cell(st *wire.Stream, req *wire.Cell, epoch uint64) (reusable bool) {
	answered := a.execute(st, req, epoch)
	return answered && !req.Stdin
}

func (a *Agent) execute(st *wire.Stream, req *wire.Cell, epoch uint64) (answered bool) {
	code := req.Code
	if req.CodeFollows {
		var bad *wire.Error
		if code, bad = receiveCode(st, code); bad != nil {
			if bad.Code == "" {
				return false
			}
			return answer(st, bad) && false // the rest of the code is still on its way
		}
	}
	name := req.Context
	if name == "" {
		name = "default"
	}
	if !goodID.MatchString(name) {
		return answer(st, failure("invalid_request", "context %q is not a name: letters, digits, dot, dash and underscore, at most 64", clip(name, 80)))
	}
	o, bad := a.ops.add(newOp{
		id: req.Id, kind: "cell", command: firstLine(code), context: name, inline: req.InlineBytes, spool: req.SpoolBytes,
		detach: req.Detach, epoch: epoch, meta: req.Metadata,
	})
	if bad != nil {
		return answer(st, bad)
	}
	if req.Stream {
		o.live = &listener{st: st}
	}
	heard := o.live
	r := &cellRun{agent: a, op: o, req: req, stream: st}
	v, bad := r.run(name, code)
	for _, s := range o.out {
		s.end()
	}
	if bad != nil {
		o.finish(&wire.Verdict{Ending: wire.Ending_ENDING_START, ExitCode: 126, StartError: bad.Message})
		return answer(st, bad)
	}
	o.finish(v)
	o.hush(heard)
	return st.Send(&wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}, Last: true}) == nil
}

func receiveCode(st *wire.Stream, code []byte) ([]byte, *wire.Error) {
	for {
		f := &wire.Frame{}
		if err := st.Receive(f); err != nil {
			return nil, &wire.Error{}
		}
		if f.GetEof() {
			return code, nil
		}
		if len(code)+len(f.GetData()) > wire.MaxCode {
			return nil, failure("too_large", "code of more than %d bytes", wire.MaxCode)
		}
		code = append(code, f.GetData()...)
	}
}

func firstLine(code []byte) string {
	for i, c := range code {
		if c == '\n' || i > 200 {
			return string(code[:i])
		}
	}
	return string(code)
}

// cellRun is a cell under way.
type cellRun struct {
	agent  *Agent
	op     *op
	req    *wire.Cell
	stream *wire.Stream
	fifo   struct { // of the cell's input
		path string
		done func()
	}

	mu     sync.Mutex
	interp *interpreter // written with mu held, and by the goroutine that runs the cell only
	over   bool         // guarded by mu; the interpreter has ended the cell, so what it hears now is meant for the next

	displays  [][]byte
	shown     int
	dropped   int64
	hasResult bool
}

func (r *cellRun) run(name string, code []byte) (*wire.Verdict, *wire.Error) {
	o := r.op
	// The time counts from here, so that a cell that waits behind another one or for the
	// interpreter's start is still answered in time.
	var timeout *time.Timer
	if r.req.TimeoutNs > 0 {
		timeout = time.AfterFunc(time.Duration(r.req.TimeoutNs), func() { o.end(wire.Ending_ENDING_TIMEOUT) })
		defer timeout.Stop()
	}
	defer func() {
		if r.fifo.done != nil {
			r.fifo.done()
		}
	}()
	for again := true; ; again = false {
		i, bad := r.take(name)
		if bad != nil {
			return nil, bad
		}
		v := &wire.Verdict{Ending: o.ending(), ExitCode: -1, StateKept: true}
		if i != nil {
			v, bad = r.runOn(i, code)
		}
		switch {
		case bad != nil:
			return nil, bad
		case v != nil:
			v.StateLostBefore = r.agent.tellLoss(name)
			return v, nil
		case !again:
			return nil, failure("internal", "two interpreters died before they took the cell")
		}
	}
}

// take waits for the turn in a live interpreter. It gives nil when the cell is to end before.
func (r *cellRun) take(name string) (*interpreter, *wire.Error) {
	a, o := r.agent, r.op
	for {
		i, bad := a.interpreterFor(name, o.ended)
		if i == nil {
			return nil, bad
		}
		select {
		case <-i.turn:
		case <-o.ended:
			return nil, nil
		}
		switch {
		case o.ending() != wire.Ending_ENDING_UNKNOWN:
			i.turn <- struct{}{}
			return nil, nil
		case !i.claim(o):
			i.turn <- struct{}{} // for the next in the queue to find out
		case i.alive():
			return i, nil
		default:
			r.bury(i)
			i.yield()
		}
	}
}

// bury does away with an interpreter that died without a cell to tell it.
//
// Preconditions: the caller holds the turn.
func (r *cellRun) bury(i *interpreter) {
	i.mu.Lock()
	told := i.closing // whoever closes a context knows
	i.mu.Unlock()
	if i.cells > 0 && !told {
		r.agent.mu.Lock()
		r.agent.untold[i.context] = true
		r.agent.mu.Unlock()
	}
	i.discard()
}

// tellLoss reports whether the context lost its state between cells. The answer is given once.
func (a *Agent) tellLoss(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	lost := a.untold[name]
	delete(a.untold, name)
	return lost
}

// runOn runs the cell on an interpreter whose turn it has. It gives no verdict when the interpreter has died and never saw the cell.
func (r *cellRun) runOn(i *interpreter, code []byte) (*wire.Verdict, *wire.Error) {
	o := r.op
	defer i.yield()
	r.mu.Lock()
	r.interp, r.over = i, false
	r.mu.Unlock()
	r.agent.own(i.nanny, o)
	defer r.agent.disown(i.nanny)
	o.mu.Lock()
	o.pid = i.pid
	o.signal = r.signal
	o.oom = false // what came over the interpreter of before
	o.mu.Unlock()
	o.armed(r.interrupt) // from now on there is something to interrupt; code may have stopped it, and then even freshen would wait for ever
	i.freshen()

	i.seq++
	header := map[string]any{"id": i.seq}
	if len(r.req.Argv) > 0 {
		argv := make([]string, len(r.req.Argv))
		for k, s := range r.req.Argv {
			argv[k] = string(s)
		}
		header["argv"] = argv
	}
	if len(r.req.Env) > 0 {
		header["env"] = r.req.Env
	}
	if r.req.Stdin {
		if r.fifo.path == "" {
			path, done, err := r.stdin()
			if err != nil {
				return nil, failure("internal", "no pipe for the cell's input: %v", err)
			}
			r.fifo.path, r.fifo.done = path, done
		}
		header["stdin"] = r.fifo.path
	}
	payload, err := headed(header, code)
	if err != nil {
		return nil, failure("internal", "%v", err)
	}
	i.emitMu.Lock()
	i.op = o
	i.emitMu.Unlock()
	end, err := r.converse(payload)
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	if !errors.Is(err, errUntaken) || o.ending() != wire.Ending_ENDING_UNKNOWN {
		if v := r.verdict(end, err); v != nil {
			return v, nil
		}
	}
	i.emitMu.Lock()
	i.op = nil
	i.emitMu.Unlock()
	r.bury(i)
	return nil, nil
}

// errUntaken says that the interpreter has gone without having read the cell.
var errUntaken = errors.New("the interpreter died before it took the cell")

// tell sends a signal to the interpreter, unless the cell has ended.
func (r *cellRun) tell(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		_ = r.interp.nanny.Signal(r.interp.pid, s, false)
	}
}

// interrupt asks the cell to stop, and ends the interpreter if it does not.
func (r *cellRun) interrupt() {
	r.tell(syscall.SIGINT)
	grace := time.Duration(r.req.GraceNs)
	if grace <= 0 {
		grace = interruptWait
	}
	go func() {
		again := time.NewTicker(grace / 4)
		defer again.Stop()
		last := time.NewTimer(grace)
		defer last.Stop()
		for {
			select {
			case <-r.op.done:
				return
			case <-again.C:
				// Code may swallow one interrupt; a stopped interpreter hears none.
				r.tell(syscall.SIGCONT)
				r.tell(syscall.SIGINT)
			case <-last.C:
				r.mu.Lock()
				defer r.mu.Unlock()
				if !r.over {
					_ = r.interp.nanny.SignalTree(r.interp.pid, syscall.SIGKILL)
				}
				return
			}
		}
	}()
}

func (r *cellRun) signal(s int32, tree bool) error {
	r.op.mu.Lock()
	r.op.asked = s
	r.op.mu.Unlock()
	r.mu.Lock()
	i := r.interp
	r.mu.Unlock()
	if tree {
		return i.nanny.SignalTree(i.pid, syscall.Signal(s))
	}
	return i.nanny.Signal(i.pid, syscall.Signal(s), false)
}

// converse sends the cell and listens until its end. An error means that the
// interpreter has gone, errUntaken that it did before it could run the cell.
func (r *cellRun) converse(payload [][]byte) (*cellEnd, error) {
	i := r.interp
	// Large code must not wait for an interpreter that is busy telling us something.
	sent := make(chan error, 1)
	if size := len(payload[len(payload)-1]); size > 32<<10 {
		go func() { sent <- i.send(kernel.TypeExecute, payload...) }()
	} else if err := i.send(kernel.TypeExecute, payload...); err != nil {
		return nil, fmt.Errorf("%w: %w", errUntaken, err)
	} else {
		sent <- nil
	}
	quiet := true // nothing but the cell has been sent
	for {
		typ, p, err := i.read()
		if err != nil {
			select {
			case failed := <-sent:
				if failed != nil || quiet && i.unread() > 0 {
					return nil, fmt.Errorf("%w: %w", errUntaken, err)
				}
			case <-time.After(follow):
			}
			return nil, err
		}
		switch typ {
		case kernel.TypeOutput:
			if len(p) < 5 {
				return nil, fmt.Errorf("output frame of %d bytes", len(p))
			}
			stream := int(p[4])
			if stream != 1 && stream != 2 {
				return nil, fmt.Errorf("output on stream %d", stream)
			}
			i.emitMu.Lock()
			i.deliver(stream, p[5:])
			i.emitMu.Unlock()
		case kernel.TypeDisplay:
			if err := r.display(p); err != nil {
				return nil, err
			}
		case kernel.TypeCall:
			quiet = false
			if err := r.hostCall(p); err != nil {
				return nil, err
			}
		case kernel.TypeEnd:
			end := &cellEnd{}
			if err := json.Unmarshal(p, end); err != nil {
				return nil, err
			}
			if end.ID != i.seq {
				continue // of a cell before; ours is still to come
			}
			i.emitMu.Lock()
			i.drain()
			i.emitMu.Unlock()
			return end, nil
		}
	}
}

func (r *cellRun) display(p []byte) error {
	h, body, err := kernel.Header(p)
	if err != nil {
		return err
	}
	var head struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(h, &head); err != nil {
		return err
	}
	result := head.Kind == "result"
	if result && len(body) > maxDisplayBytes || !result && (len(r.displays) >= maxDisplays || r.shown+len(body) > maxDisplayBytes) {
		r.dropped++
		return nil
	}
	bundle := append([]byte(nil), body...)
	r.shown += len(bundle)
	r.displays = append(r.displays, bundle)
	r.hasResult = result
	if r.req.Stream && !r.hasResult {
		// The verdict has it too.
		r.op.say(len(bundle), func(p []byte) *wire.Frame {
			return &wire.Frame{Body: &wire.Frame_Display{Display: &wire.Display{Bundle: p}}}
		}, bundle)
	}
	return nil
}

// verdict gives nil when the interpreter has ended and the cell had no part in that.
func (r *cellRun) verdict(end *cellEnd, err error) *wire.Verdict {
	o, i := r.op, r.interp
	v := &wire.Verdict{Displays: r.displays, HasResult: r.hasResult, DisplaysDropped: r.dropped, ExitCode: -1}
	if err != nil {
		return r.obituary(v)
	}
	i.cells++
	i.mu.Lock()
	v.StateKept = !i.closing
	i.mu.Unlock()
	v.CpuNs, v.PeakMemory = end.CPUNanos, end.MaxRSS
	why := o.ending()
	switch {
	case why != wire.Ending_ENDING_UNKNOWN && end.Status != "ok":
		v.Ending = why
		if why == wire.Ending_ENDING_KILLED {
			v.Signal = int32(syscall.SIGKILL)
		}
	default:
		v.Ending = wire.Ending_ENDING_EXIT
		v.ExitCode = 0
		if end.ExitCode != nil {
			v.ExitCode = int32(*end.ExitCode)
		} else if end.Status != "ok" {
			v.ExitCode = 1
		}
	}
	if end.Error != nil {
		v.CellError = &wire.CellError{Name: clip(end.Error.Name, 200), Value: clip(end.Error.Value, 64<<10), Traceback: clip(end.Error.Traceback, 256<<10)}
		if end.Error.Line != nil {
			v.CellError.Line = int32(*end.Error.Line)
		}
	}
	kill := v.Ending == why && why != wire.Ending_ENDING_UNKNOWN || r.req.KillSurvivors
	// After an interrupt the list is asked for in any case: once it is answered the signal has
	// been sent, and cannot hit the next cell.
	if kill || end.Spawned > 0 || len(i.known) > 0 || why != wire.Ending_ENDING_UNKNOWN {
		r.survivors(v, kill)
	}
	i.emitMu.Lock()
	i.op = nil
	i.emitMu.Unlock()
	return v
}

// survivors lists what this cell left alive, and ends it if asked.
func (r *cellRun) survivors(v *wire.Verdict, kill bool) {
	i := r.interp
	all, ok := i.list()
	fresh := i.fresh(all)
	for k, p := range fresh {
		if k < 64 {
			v.Survivors = append(v.Survivors, &wire.Process{Pid: int32(p.PID), Command: p.Command, Killed: kill})
		}
	}
	v.SurvivorsTotal = int64(len(fresh))
	deadline := time.Now().Add(killWait)
	for kill && ok && len(fresh) > 0 && time.Now().Before(deadline) {
		_ = i.nanny.Kill(fresh)
		time.Sleep(time.Millisecond)
		all, ok = i.list()
		fresh = i.fresh(all)
	}
	if ok {
		i.remember(all)
	}
}

// obituary says how the interpreter died. It gives nil when it left, by a thread of a cell before, and had not reached the first line of
// this one: an exit status would be taken for the cell's own. A signal is told, for code that cannot even be read may have brought it about.
func (r *cellRun) obituary(v *wire.Verdict) *wire.Verdict {
	o, i := r.op, r.interp
	// It may have closed its end and live on, or have become another program; it is of no use any more. One that is
	// about to end has a moment to say how.
	exited := r.awaitDeath(follow)
	if exited == nil {
		_ = i.nanny.Signal(i.pid, syscall.SIGKILL, false)
		exited = r.awaitDeath(deathWait)
	}
	i.emitMu.Lock()
	i.drain()
	i.op = nil
	i.emitMu.Unlock()
	if exited != nil {
		o.judge(syscall.WaitStatus(exited.Status))
	}
	o.mu.Lock()
	why, asked, oom := o.why, o.asked, o.oom
	o.mu.Unlock()
	v.Ending, v.Signal = wire.Ending_ENDING_SIGNAL, int32(syscall.SIGKILL)
	if exited != nil {
		v.Signal = 0
		ws := syscall.WaitStatus(exited.Status)
		if ws.Exited() && i.page.Begun() != i.seq && why == wire.Ending_ENDING_UNKNOWN && !oom {
			return nil
		}
		v.CpuNs, v.PeakMemory = exited.Usage.CPUNanos, exited.Usage.MaxRSS
		if ws.Signaled() {
			v.Signal = int32(ws.Signal())
		} else {
			v.Ending, v.ExitCode = wire.Ending_ENDING_EXIT, int32(ws.ExitStatus())
		}
		for k, p := range exited.Survivors {
			if k < 64 {
				v.Survivors = append(v.Survivors, &wire.Process{Pid: int32(p.PID), Command: p.Command, Killed: true})
			}
		}
		v.SurvivorsTotal = int64(exited.Total)
	}
	switch {
	case why != wire.Ending_ENDING_UNKNOWN:
		v.Ending, v.ExitCode = why, -1
	case oom:
		v.Ending, v.ExitCode = wire.Ending_ENDING_MEMORY, -1
	case asked != 0 && asked == v.Signal:
		v.Ending = wire.Ending_ENDING_KILLED
	}
	i.discard()
	return v
}

func (r *cellRun) awaitDeath(limit time.Duration) *nanny.Event {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		select {
		case e, ok := <-r.interp.events:
			if !ok {
				return nil
			}
			if e.Exited {
				return e
			}
		case <-late.C:
			return nil
		}
	}
}

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
				if !r.req.Detach {
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
			if in.GetCancel() {
				r.op.end(wire.Ending_ENDING_CANCELLED)
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
