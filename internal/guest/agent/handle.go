//go:build linux

package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// handle answers one call and reports whether the stream can carry another.
func (a *Agent) handle(ctx context.Context, st *wire.Stream, req *wire.Request, epoch uint64) bool {
	switch c := req.Call.(type) {
	case *wire.Request_Ping:
		return answer(st, nil)
	case *wire.Request_Cell:
		return a.cell(st, c.Cell, epoch)
	case *wire.Request_Exec:
		return a.command(st, c.Exec, epoch)
	case *wire.Request_Info:
		return last(st, &wire.Frame{Body: &wire.Frame_Info{Info: a.info()}})
	case *wire.Request_ListOps:
		ops := &wire.Ops{}
		for _, o := range a.ops.all() {
			ops.Ops = append(ops.Ops, o.describe())
		}
		return last(st, &wire.Frame{Body: &wire.Frame_Ops{Ops: ops}})
	case *wire.Request_Follow:
		a.follow(ctx, st, c.Follow)
		return false
	case *wire.Request_Signal:
		return answer(st, a.signal(c.Signal))
	case *wire.Request_Forget:
		return answer(st, a.ops.forget(c.Forget.Id))
	case *wire.Request_Warm:
		return answer(st, a.warm(c.Warm))
	case *wire.Request_Contexts:
		return a.contexts(st, c.Contexts)
	case *wire.Request_Quiesce:
		debug.FreeOSMemory()
		h := &wire.Held{}
		for _, p := range proc.HeldFiles() {
			h.Paths = append(h.Paths, []byte(p))
		}
		return last(st, &wire.Frame{Body: &wire.Frame_Held{Held: h}})
	}
	if reusable, known := a.fileCall(ctx, st, req); known {
		return reusable
	}
	return answer(st, failure("not_supported", "this guest (protocol %d) does not know the call; it is older than the host", wire.Protocol))
}

// last sends the closing frame of a call.
func last(st *wire.Stream, f *wire.Frame) bool {
	f.Last = true
	return st.Send(f) == nil
}

// answer closes a call that gives nothing but success or an error.
func answer(st *wire.Stream, bad *wire.Error) bool {
	if bad != nil {
		return last(st, &wire.Frame{Body: &wire.Frame_Error{Error: bad}})
	}
	return last(st, &wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
}

func (a *Agent) info() *wire.Guest {
	g := &wire.Guest{
		Version: Version, Python: a.lookPython(), Shell: a.shell(), Uid: uint32(max(a.cfg.UID, 0)), Home: a.cfg.Home,
		UptimeNs: time.Since(a.born).Nanoseconds(), Cpus: int32(runtime.NumCPU()),
	}
	if a.cfg.UID < 0 {
		g.Uid = uint32(unix.Getuid())
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		g.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
	}
	if m, ok := meminfo(); ok {
		g.Memory = m.total
	}
	return g
}

func (a *Agent) signal(s *wire.Signal) *wire.Error {
	o, bad := a.ops.get(s.Id)
	if bad != nil {
		return bad
	}
	if s.Cancel {
		o.end(wire.Ending_ENDING_CANCELLED)
		return nil
	}
	o.mu.Lock()
	send, over := o.signal, o.verdict != nil
	o.mu.Unlock()
	var err error
	switch {
	case over && !s.Tree:
		return failure("not_found", "operation %s has ended", s.Id)
	case send == nil:
		return failure("busy", "operation %s has not started yet", s.Id)
	case s.Signal <= 0 || s.Signal > 64:
		return failure("invalid_request", "%d is not a signal", s.Signal)
	default:
		err = send(s.Signal, s.Tree)
	}
	if err != nil {
		return failure("not_found", "operation %s: %v", s.Id, err)
	}
	return nil
}

// heed gives a context that ends when the host closes its side of a call, which then has the stream to itself.
func heed(ctx context.Context, st *wire.Stream) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_ = st.Receive(&wire.Frame{}) // nothing comes but the end
		st.Close()                    // else a send would wait for a window that nobody opens
	}()
	return ctx, cancel
}

// follow sends an operation's output from absolute offsets on, then its verdict.
func (a *Agent) follow(ctx context.Context, st *wire.Stream, req *wire.Follow) {
	o, bad := a.ops.get(req.Id)
	if bad != nil {
		answer(st, bad)
		return
	}
	ctx, cancel := heed(ctx, st)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		for _, s := range o.out {
			s.wake()
		}
	})
	defer stop()
	offsets := [2]int64{max(0, req.StdoutOffset), max(0, req.StderrOffset)}
	errs := make(chan error, 2)
	for s := range offsets {
		go func() {
			buf := make([]byte, wire.Chunk)
			for {
				n, skipped := o.out[s].read(ctx, buf, offsets[s], !req.NoWait)
				if n == 0 {
					errs <- nil
					return
				}
				offsets[s] += skipped
				err := st.Send(&wire.Frame{Body: &wire.Frame_Output{Output: &wire.Output{
					Stream: uint32(s + 1), Offset: offsets[s], Data: buf[:n], Skipped: skipped,
				}}})
				if err != nil {
					errs <- err
					return
				}
				offsets[s] += int64(n)
			}
		}()
	}
	for range offsets {
		if err := <-errs; err != nil {
			st.Close() // for the other one
		}
	}
	if req.NoWait && !o.finished() {
		last(st, &wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
		return
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		return
	}
	o.mu.Lock()
	v := o.verdict
	o.mu.Unlock()
	last(st, &wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}})
}

// warm starts what the first calls would otherwise wait for.
func (a *Agent) warm(w *wire.Warm) *wire.Error {
	if w.Interpreter {
		i, bad := a.interpreterFor("default", nil)
		if bad != nil {
			return bad
		}
		a.rehearse(i)
	}
	if w.Command {
		n, err := a.takeNanny()
		if err != nil {
			return failure("internal", "%v", err)
		}
		a.giveNanny(n)
	}
	return nil
}

// rehearse runs a cell that changes nothing, so that the first real one finds every page of guest and interpreter touched: after a restore that
// is what takes most of its time. While a cell runs there is nothing to rehearse.
func (a *Agent) rehearse(i *interpreter) {
	select {
	case <-i.turn:
	default:
		return
	}
	i.freshen() // a copy is made its own self now
	seq, cells := i.seq, i.cells
	i.turn <- struct{}{}
	if cells > 0 {
		return
	}
	o, bad := a.ops.add(newOp{id: "rehearsal", kind: "cell", context: i.context, detach: true})
	if bad != nil {
		return
	}
	r := &cellRun{agent: a, op: o, req: &wire.Cell{Options: &wire.RunOptions{TimeoutNs: int64(rehearsal)}}}
	v, bad := r.run(i.context, []byte("1 + 1\nNone"))
	for _, s := range o.out {
		s.end()
	}
	if bad != nil {
		v = &wire.Verdict{Ending: wire.Ending_ENDING_START}
	}
	o.finish(v)
	_ = a.ops.forget(o.id) // nobody has heard of it
	select {
	case <-i.turn:
		if i.seq == seq+1 { // nobody was faster
			i.seq, i.cells = seq, cells
		}
		i.turn <- struct{}{}
	default:
	}
}

// rehearsal bounds the cell that rehearse runs.
const rehearsal = 5 * time.Second

func (a *Agent) contexts(st *wire.Stream, req *wire.Contexts) bool {
	if req.Close != "" {
		a.mu.Lock()
		i, s := a.interps[req.Close], a.starts[req.Close]
		a.mu.Unlock()
		if i == nil && s != nil {
			<-s.done
			i = s.i
		}
		if i == nil {
			return answer(st, failure("not_found", "no context %q", clip(req.Close, 80)))
		}
		i.shut()
		return answer(st, nil)
	}
	list := &wire.ContextList{}
	a.mu.Lock()
	for name, i := range a.interps {
		list.Contexts = append(list.Contexts, &wire.ContextInfo{Name: name, Pid: int32(i.pid), Language: "python", Version: i.hello.Python, Busy: len(i.turn) == 0})
	}
	a.mu.Unlock()
	return last(st, &wire.Frame{Body: &wire.Frame_Contexts{Contexts: list}})
}
