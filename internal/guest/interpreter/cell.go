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
	// maxDisplays and maxDisplayBytes bound the displayed values of one cell that are kept for its verdict, which must fit into a frame.
	maxDisplays     = 256
	maxDisplayBytes = 2 << 20
	// sentAside is the size from which on code is sent by another goroutine: it may not fit into the pipe, and must not wait for an
	// interpreter that is busy sending something itself.
	sentAside = 32 << 10
)

// Cell is what is run.
type Cell struct {
	Profile
	Context string
	Code    []byte
	Args    [][]byte
	Options *wire.RunOptions
	// Input returns what the host sends while the cell runs, if Options.Stdin is set.
	Input func() (*wire.Input, error)
}

// cellRun is a cell under way.
type cellRun struct {
	Cell
	contexts *Contexts
	op       *operation.Operation
	header   map[string]any // of its frame, but for the id
	fifo     *fifo          // of its input; nil: none yet

	mu     sync.Mutex
	interp *interpreter // written with mu held, and by the goroutine that runs the cell only
	over   bool         // guarded by mu; the interpreter has ended the cell, so a signal would hit the next one
	killed bool         // guarded by mu; the interpreter is being killed, whatever it sends meanwhile; never set after over

	displays  [][]byte
	shown     int
	dropped   int64
	hasResult bool
}

// Run runs a cell of an operation and returns its verdict. Its error says that the cell could not be run.
func (c *Contexts) Run(o *operation.Operation, cell Cell) (*wire.Verdict, *wire.Error) {
	r := &cellRun{Cell: cell, contexts: c, op: o}
	if _, bad := c.kernel(cell.Language); bad != nil {
		return nil, bad
	}
	if bad := r.prepare(); bad != nil {
		return nil, bad
	}
	// The time counts from here, so that a cell that waits behind another one or for the interpreter's start is still answered in time.
	if t := cell.Options.TimeoutNs; t > 0 {
		timeout := time.AfterFunc(time.Duration(t), func() { o.End(wire.Ending_ENDING_TIMEOUT) })
		defer timeout.Stop()
	}
	defer func() { r.fifo.close() }()
	for again := true; ; again = false {
		i, bad := r.take()
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
			v.StateLostBefore = c.tellLoss(r.Context)
			return v, nil
		case !again:
			return nil, wire.Errorf("internal", "two interpreters died before they took the cell")
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

// variables returns the environment of a request as a map, nil for none. The interpreter takes JSON, which holds nothing but UTF-8.
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

// traceVariables are the metadata in which a trace comes, and the variables by which programs receive one.
var traceVariables = [...][2]string{{"traceparent", "TRACEPARENT"}, {"tracestate", "TRACESTATE"}}

// traceOf returns the variables of the trace that a cell belongs to, nil for none. A trace that the caller has set in env stays.
func traceOf(env, metadata map[string]string) map[string]string {
	if _, set := env["TRACEPARENT"]; set || metadata["traceparent"] == "" {
		return nil
	}
	t := map[string]string{}
	for _, v := range traceVariables {
		if s := metadata[v[0]]; s != "" && visible(s) {
			t[v[1]] = s
		}
	}
	return t
}

// visible reports that a text holds nothing that an environment cannot.
func visible(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// take waits for the turn in a live interpreter. It returns nil when the cell is to end before.
func (r *cellRun) take() (*interpreter, *wire.Error) {
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
			i.turn <- struct{}{} // for the next in the queue to find out
		case i.alive():
			return i, nil
		default:
			r.bury(i)
			i.yield()
		}
	}
}

// runOn runs the cell on an interpreter whose turn it has. It returns no verdict when the interpreter has died and never saw the cell.
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
	o.Left(func() bool { return i.latest.Load() == o && !i.discarded() })
	o.Memory.Restart(i.pid)
	o.Arm(r.interrupt) // from now on there is something to interrupt; code may have stopped it, and then even freshen would wait for ever
	i.freshen()

	i.seq++
	r.header["id"] = i.seq
	if r.Options.Stdin {
		if r.fifo == nil {
			f, err := r.openFIFO()
			if err != nil {
				return nil, wire.Errorf("internal", "no pipe for the cell's input: %v", err)
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
	end, err := r.converse(payload)
	r.mu.Lock()
	r.over = true
	if r.killed && err == nil {
		err = errKilled // it may have ended the cell while the signal was under way
	}
	r.mu.Unlock()
	if !errors.Is(err, errUntaken) || o.Ending() != wire.Ending_ENDING_UNKNOWN {
		if v := r.verdict(end, err); v != nil {
			return v, nil
		}
	}
	i.setOutput(nil)
	r.bury(i)
	return nil, nil
}

var (
	// errKilled says that the interpreter was killed because it did not heed interrupts.
	errKilled = errors.New("the interpreter is being killed")
	// errUntaken says that the interpreter has gone without having read the cell.
	errUntaken = errors.New("the interpreter died before it took the cell")
)

// converse sends the cell and reads frames until its end. An error means that the interpreter has gone, errUntaken that it did before it
// could run the cell.
func (r *cellRun) converse(payload [][]byte) (*cellEnd, error) {
	i := r.interp
	sent := make(chan error, 1)
	if len(r.Code) > sentAside {
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
			case <-time.After(operation.Follow):
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
				continue // of an earlier cell; ours is still to come
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
	if r.Options.Stream && !r.hasResult {
		r.op.Display(bundle)
	}
	return nil
}
