//go:build linux

package interpreter

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// maxDisplays and maxDisplayBytes bound the displayed values of one cell that are stored for its verdict, which
	// must fit into a frame.
	maxDisplays     = 256
	maxDisplayBytes = 2 << 20
	// asyncSend is the size from which on another goroutine sends the code: the code may not fit into the pipe, and the
	// sender must not wait for an interpreter that is sending itself.
	asyncSend = 32 << 10
)

// Cell is a cell to run.
type Cell struct {
	Profile
	Context string
	Code    []byte
	Args    [][]byte
	Options *wire.RunOptions
	// Input returns the next input that the host sends while the cell runs, if Options.Stdin is set.
	Input func() (*wire.Input, error)
}

// cellRun is a running cell.
type cellRun struct {
	Cell
	contexts *Contexts
	op       *operation.Operation
	header   map[string]any // of its frame, except the id
	fifo     *fifo          // its input; nil: none yet

	mu     sync.Mutex
	interp *interpreter // written with mu held, and only by the goroutine that runs the cell
	over   bool         // guarded by mu; the interpreter has ended the cell, so a signal would hit the next one
	killed bool         // guarded by mu; the interpreter is being killed; its frames are ignored. Never set after over

	displays  [][]byte
	shown     int
	dropped   int64
	hasResult bool
}

// Run runs a cell of an operation and returns its verdict. An error means that the cell could not run.
func (c *Contexts) Run(o *operation.Operation, cell Cell) (*wire.Verdict, *wire.Error) {
	r := &cellRun{Cell: cell, contexts: c, op: o}
	if _, bad := c.kernel(cell.Language); bad != nil {
		return nil, bad
	}
	if bad := r.prepare(); bad != nil {
		return nil, bad
	}
	// The timeout starts here, so that a cell that waits for another one or for the start of the interpreter is
	// answered in time.
	if t := cell.Options.TimeoutNs; t > 0 {
		timeout := time.AfterFunc(time.Duration(t), func() { o.End(wire.Ending_ENDING_TIMEOUT) })
		defer timeout.Stop()
	}
	defer func() { r.fifo.close() }()
	for first := true; ; first = false {
		i, bad := r.acquire()
		if bad != nil {
			return nil, bad
		}
		v := &wire.Verdict{Ending: o.Ending(), ExitCode: -1, StateKept: true}
		if i != nil {
			v, bad = r.runOn(i)
		}
		switch {
		case bad != nil:
			return nil, bad
		case v != nil:
			v.StateLostBefore = c.takeLoss(r.Context)
			return v, nil
		case !first:
			return nil, wire.Errorf("internal", "two interpreters died before they read the cell")
		}
	}
}

// prepare builds the header of the cell's frame.
func (r *cellRun) prepare() *wire.Error {
	r.header = map[string]any{}
	if len(r.Args) > 0 {
		argv := make([]string, len(r.Args))
		for k, s := range r.Args {
			argv[k] = string(s)
		}
		r.header["argv"] = argv
	}
	env, bad := variables(r.Options.Env)
	if bad != nil {
		return bad
	}
	if len(env) > 0 {
		r.header["env"] = env
	}
	if t := traceOf(env, r.Options.Metadata); t != nil {
		r.header["trace"] = t
	}
	return nil
}

// variables returns the environment of a request as a map, or nil for none. It must be valid UTF-8, because the
// interpreter receives it as JSON.
func variables(env [][]byte) (map[string]string, *wire.Error) {
	if len(env) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(env))
	for _, e := range env {
		if !utf8.Valid(e) {
			return nil, wire.Errorf("invalid_request", "invalid UTF-8 in environment variable %.80q", e)
		}
		k, v, _ := strings.Cut(string(e), "=")
		m[k] = v
	}
	return m, nil
}

// traceVariables are pairs of a metadata key that carries a trace and the environment variable by which programs
// receive it.
var traceVariables = [...][2]string{{"traceparent", "TRACEPARENT"}, {"tracestate", "TRACESTATE"}}

// traceOf returns the environment variables of the trace that a cell belongs to, or nil for none. A trace that the
// caller has set in env has precedence.
func traceOf(env, metadata map[string]string) map[string]string {
	if _, set := env["TRACEPARENT"]; set || metadata["traceparent"] == "" {
		return nil
	}
	t := map[string]string{}
	for _, v := range traceVariables {
		if s := metadata[v[0]]; s != "" && printable(s) {
			t[v[1]] = s
		}
	}
	return t
}

// printable reports whether s consists of printable ASCII characters.
func printable(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// acquire waits for the turn in a live interpreter. It returns nil if the cell is ended before.
func (r *cellRun) acquire() (*interpreter, *wire.Error) {
	o := r.op
	for {
		i, bad := r.contexts.get(r.Context, r.Profile, o.Ended())
		if i == nil || bad != nil {
			return nil, bad
		}
		select {
		case <-i.turn:
		case <-o.Ended():
			return nil, nil
		}
		switch {
		case o.Ending() != wire.Ending_ENDING_UNKNOWN:
			i.turn <- struct{}{}
			return nil, nil
		case !i.claim(o):
			i.turn <- struct{}{} // the next cell in the queue also finds the interpreter unusable
		case i.alive():
			return i, nil
		default:
			r.discardDead(i)
			i.yield()
		}
	}
}

// runOn runs the cell on an interpreter whose turn it holds. It returns no verdict if the interpreter died before it
// read the cell.
func (r *cellRun) runOn(i *interpreter) (*wire.Verdict, *wire.Error) {
	o := r.op
	defer i.yield()
	r.mu.Lock()
	r.interp, r.over, r.killed = i, false, false
	r.mu.Unlock()
	nannies := r.contexts.cfg.Nannies
	nannies.Own(i.nanny, o)
	defer nannies.Disown(i.nanny)
	i.latest.Store(o)
	o.Run(i.pid, r.signal)
	o.SetSurvivors(func() bool { return i.latest.Load() == o && !i.discarded() })
	o.Memory.Restart(i.pid)
	// From now on the interpreter can be interrupted. That must come before renewIfDue, which would wait for ever if
	// code has stopped the interpreter.
	o.SetStop(r.interrupt)
	i.renewIfDue()

	i.seq++
	r.header["id"] = i.seq
	if r.Options.Stdin {
		if r.fifo == nil {
			f, err := r.openFIFO()
			if err != nil {
				return nil, wire.Errorf("internal", "create the input of the cell: %v", err)
			}
			r.fifo = f
		}
		r.header["stdin"] = r.fifo.path
	}
	payload, err := withHeader(r.header, r.Code)
	if err != nil {
		return nil, wire.Errorf("internal", "%v", err)
	}
	i.setOutput(o)
	end, err := r.execute(payload)
	r.mu.Lock()
	r.over = true
	if r.killed && err == nil {
		err = errKilled // it may have ended the cell while the signal was in transit
	}
	r.mu.Unlock()
	if !errors.Is(err, errNotRead) || o.Ending() != wire.Ending_ENDING_UNKNOWN {
		if v := r.verdict(end, err); v != nil {
			return v, nil
		}
	}
	i.setOutput(nil)
	r.discardDead(i)
	return nil, nil
}

var (
	// errKilled means that the interpreter was killed because it ignored interrupts.
	errKilled = errors.New("the interpreter is being killed")
	// errNotRead means that the interpreter has ended without reading the cell.
	errNotRead = errors.New("the interpreter died before it read the cell")
)

// execute sends the cell and reads frames until its end. An error means that the interpreter has ended; errNotRead
// means that it ended before it could run the cell.
func (r *cellRun) execute(payload [][]byte) (*cellEnd, error) {
	i := r.interp
	sent := make(chan error, 1)
	if len(r.Code) > asyncSend {
		go func() { sent <- i.send(kernel.TypeExecute, payload...) }()
	} else if err := i.send(kernel.TypeExecute, payload...); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotRead, err)
	} else {
		sent <- nil
	}
	onlyCell := true // nothing but the cell has been sent
	i.reading.Store(true)
	defer func() {
		i.holding.Store(false)
		i.reading.Store(false)
	}()
	for {
		typ, p, err := i.read()
		if err != nil {
			select {
			case failed := <-sent:
				if failed != nil || onlyCell && i.unread() > 0 {
					return nil, fmt.Errorf("%w: %w", errNotRead, err)
				}
			case <-time.After(operation.DrainWait):
			}
			return nil, err
		}
		switch typ {
		case kernel.TypeOutput:
			if len(p) < 5 {
				return nil, fmt.Errorf("invalid output frame of %d bytes", len(p))
			}
			stream := int(p[4])
			if stream != 1 && stream != 2 {
				return nil, fmt.Errorf("invalid output stream %d", stream)
			}
			i.emitMu.Lock()
			i.deliver(stream, p[5:])
			i.emitMu.Unlock()
		case kernel.TypeDisplay:
			if err := r.display(p); err != nil {
				return nil, err
			}
		case kernel.TypeCall:
			onlyCell = false
			if err := r.hostCall(p); err != nil {
				return nil, err
			}
		case kernel.TypeEnd:
			end := &cellEnd{}
			if err := json.Unmarshal(p, end); err != nil {
				return nil, err
			}
			if end.ID != i.seq {
				continue // of an earlier cell
			}
			i.emitMu.Lock()
			i.drain()
			i.emitMu.Unlock()
			return end, nil
		}
	}
}

// display handles a displayed value: it stores it for the verdict, and sends it at once if output is streamed.
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
	if result && len(body) > maxDisplayBytes ||
		!result && (len(r.displays) >= maxDisplays || r.shown+len(body) > maxDisplayBytes) {
		r.dropped++
		return nil
	}
	bundle := append([]byte(nil), body...)
	r.shown += len(bundle)
	r.displays = append(r.displays, bundle)
	r.hasResult = result
	if r.Options.Stream && !r.hasResult {
		r.op.Display(bundle)
	}
	return nil
}
