//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
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

// cell runs one Cell and answers with its verdict. It reports whether the stream can carry another call, which one with
// input never can.
func (a *Agent) cell(st *wire.Stream, req *wire.Cell, epoch uint64) (reusable bool) {
	if req.Options == nil {
		req.Options = &wire.RunOptions{}
	}
	answered := a.execute(st, req, epoch)
	return answered && !req.Options.Stdin
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
		id: req.Options.Id, kind: "cell", command: firstLine(code), context: name, inline: req.Options.InlineBytes, spool: req.Options.SpoolBytes,
		detach: req.Options.Detach, epoch: epoch, meta: req.Options.Metadata,
	})
	if bad != nil {
		return answer(st, bad)
	}
	if req.Options.Stream {
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
	killed bool         // guarded by mu; the interpreter is being ended, whatever it says meanwhile; not after over

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
	if r.req.Options.TimeoutNs > 0 {
		timeout = time.AfterFunc(time.Duration(r.req.Options.TimeoutNs), func() { o.end(wire.Ending_ENDING_TIMEOUT) })
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

// runOn runs the cell on an interpreter whose turn it has. It gives no verdict when the interpreter has died and never saw the cell.
func (r *cellRun) runOn(i *interpreter, code []byte) (*wire.Verdict, *wire.Error) {
	o := r.op
	defer i.yield()
	r.mu.Lock()
	r.interp, r.over, r.killed = i, false, false
	r.mu.Unlock()
	r.agent.own(i.nanny, o)
	defer r.agent.disown(i.nanny)
	i.latest.Store(o)
	o.mu.Lock()
	o.pid = i.pid
	o.signal = r.signal
	o.left = func() bool { return i.latest.Load() == o && !i.discarded() }
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
	env, bad := variables(r.req.Options.Env)
	if bad != nil {
		return nil, bad
	}
	if len(env) > 0 {
		header["env"] = env
	}
	if t := traceOf(env, r.req.Options.Metadata); t != nil {
		header["trace"] = t
	}
	if r.req.Options.Stdin {
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
	if r.killed && err == nil {
		err = errKilled // it may have said that the cell has ended while the signal was on its way
	}
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

// traceVariables are the metadata in which a trace comes, and the variables by which programs are handed one.
var traceVariables = [...][2]string{{"traceparent", "TRACEPARENT"}, {"tracestate", "TRACESTATE"}}

// variables returns the environment of a request as a map, nil for none. The interpreter takes JSON, which holds nothing but UTF-8.
func variables(env [][]byte) (map[string]string, *wire.Error) {
	if len(env) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(env))
	for _, e := range env {
		if !utf8.Valid(e) {
			return nil, failure("invalid_request", "invalid UTF-8 in environment variable %.80q", e)
		}
		k, v, _ := strings.Cut(string(e), "=")
		m[k] = v
	}
	return m, nil
}

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

// visible says that a text has nothing in it that an environment cannot hold.
func visible(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// errKilled says that the interpreter was ended for not listening.
var errKilled = errors.New("the interpreter is being killed")

// errUntaken says that the interpreter has gone without having read the cell.
var errUntaken = errors.New("the interpreter died before it took the cell")

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
	if r.req.Options.Stream && !r.hasResult {
		// The verdict has it too.
		r.op.say(func(p []byte) []proto.Message {
			return []proto.Message{&wire.Frame{Body: &wire.Frame_Display{Display: &wire.Display{Bundle: p}}}}
		}, bundle)
	}
	return nil
}
