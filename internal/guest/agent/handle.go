//go:build linux

package agent

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/kernel/python"
	"github.com/recluse-dev/recluse/internal/guest/memory"
	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// handle answers one call, and reports whether the stream can carry another.
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
		for _, o := range a.ops.All() {
			ops.Ops = append(ops.Ops, o.Describe())
		}
		ops.Ops = append(ops.Ops, a.listSurvivors()...)
		return last(st, &wire.Frame{Body: &wire.Frame_Ops{Ops: ops}})
	case *wire.Request_Follow:
		a.follow(ctx, st, c.Follow)
		return false
	case *wire.Request_Signal:
		o, bad := a.ops.Get(c.Signal.Id)
		if bad == nil {
			return answer(st, o.Signal(c.Signal))
		}
		if failed, known := a.signalSurvivor(c.Signal); known {
			bad = failed
		}
		return answer(st, bad)
	case *wire.Request_Feed:
		o, bad := a.ops.Get(c.Feed.Id)
		if bad == nil {
			bad = o.Feed(c.Feed.GetInput())
		}
		return answer(st, bad)
	case *wire.Request_Forget:
		return answer(st, a.ops.Forget(c.Forget.Id))
	case *wire.Request_Warm:
		return answer(st, a.warm(c.Warm))
	case *wire.Request_Contexts:
		if c.Contexts.Close != "" {
			return answer(st, a.contexts.Close(c.Contexts.Close))
		}
		return last(st, &wire.Frame{Body: &wire.Frame_Contexts{Contexts: a.contexts.List()}})
	case *wire.Request_Network:
		return answer(st, a.applyNetwork(c.Network))
	case *wire.Request_Dial:
		a.network.Dial(st, c.Dial.GetPort())
		return false
	case *wire.Request_Ports:
		return a.ports(ctx, st, c.Ports)
	case *wire.Request_Quiesce:
		debug.FreeOSMemory()
		if a.cfg.Disk {
			unix.Sync() // makes the checkpoint of a large disk faster (cmd/recluse-engine, disk.go)
		}
		h := &wire.Held{}
		for _, p := range proc.HeldFiles() {
			h.Paths = append(h.Paths, []byte(p))
		}
		return last(st, &wire.Frame{Body: &wire.Frame_Held{Held: h}})
	}
	if reusable, known := a.fileCall(ctx, st, req); known {
		return reusable
	}
	return answer(st, wire.Errorf("not_supported",
		"unknown call: this guest (protocol %d) is older than the host", wire.Protocol))
}

// last sends the last frame of a call.
func last(st *wire.Stream, f *wire.Frame) bool {
	f.Last = true
	return st.Send(f) == nil
}

// answer ends a call that returns only success or an error.
func answer(st *wire.Stream, bad *wire.Error) bool {
	if bad != nil {
		return last(st, &wire.Frame{Body: &wire.Frame_Error{Error: bad}})
	}
	return last(st, &wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
}

func (a *Agent) info() *wire.Guest {
	g := &wire.Guest{
		Version:  Version,
		Python:   python.Kernel{}.Find(),
		Shell:    a.shell(),
		Uid:      uint32(max(a.cfg.UID, 0)),
		Home:     a.cfg.Home,
		UptimeNs: time.Since(a.started).Nanoseconds(),
		Cpus:     int32(runtime.NumCPU()),
		CpuNs:    proc.CPUTime(os.Getpid()).Nanoseconds(),
	}
	m := memory.Current(a.cfg.Machine)
	g.Memory, g.MemoryUsed, g.MemoryCached = m.Total, m.Used, m.Cached
	var disk unix.Statfs_t
	if unix.Statfs(a.cfg.Home, &disk) == nil {
		g.Disk = int64(disk.Blocks) * disk.Bsize
		g.DiskUsed = int64(disk.Blocks-disk.Bfree) * disk.Bsize
	}
	if a.cfg.UID < 0 {
		g.Uid = uint32(unix.Getuid())
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		g.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " +
			unix.ByteSliceToString(u.Version[:])
	}
	return g
}

// cancelOnClose returns a ctx that ends when the host closes its side of a call. It reads from the
// stream, so the call must not.
func cancelOnClose(ctx context.Context, st *wire.Stream) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_ = st.Receive(&wire.Frame{}) // the host only closes the stream
		st.Close()                    // otherwise a send would wait for credit that never comes
	}()
	return ctx, cancel
}

// follow sends the output of an operation from absolute offsets on, and then its verdict.
func (a *Agent) follow(ctx context.Context, st *wire.Stream, req *wire.Follow) {
	o, bad := a.ops.Get(req.Id)
	if bad != nil {
		answer(st, bad)
		return
	}
	ctx, cancel := cancelOnClose(ctx, st)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		o.Output(1).Wake()
		o.Output(2).Wake()
	})
	defer stop()
	offsets := [2]int64{max(0, req.StdoutOffset), max(0, req.StderrOffset)}
	errs := make(chan error, 2)
	for s := range offsets {
		go func() {
			buf := make([]byte, wire.Chunk)
			for {
				n, skipped := o.Output(s+1).Read(ctx, buf, offsets[s], !req.NoWait)
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
			st.Close() // ends the other goroutine
		}
	}
	if req.NoWait && !o.Finished() {
		last(st, &wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
		return
	}
	select {
	case <-o.Done():
	case <-ctx.Done():
		return
	}
	last(st, &wire.Frame{Body: &wire.Frame_Verdict{Verdict: o.Verdict()}})
}

// warm starts processes that the first calls would otherwise have to start.
func (a *Agent) warm(w *wire.Warm) *wire.Error {
	if w.Interpreter {
		v, bad := a.contexts.Warm()
		if bad != nil {
			return bad
		}
		if v != nil {
			rehearse(v)
		}
	}
	if w.Command {
		if err := a.nannies.Warm(); err != nil {
			return wire.Errorf("internal", "%v", err)
		}
	}
	return nil
}

// rehearse encodes and decodes the messages of a first cell, because the first of each kind takes much longer.
func rehearse(v *wire.Verdict) {
	options := &wire.RunOptions{TimeoutNs: 1, Stream: true}
	for _, m := range []proto.Message{
		&wire.Request{Call: &wire.Request_Cell{Cell: &wire.Cell{Code: []byte("1"), Options: options}}},
		&wire.Request{Call: &wire.Request_Exec{Exec: &wire.Exec{Options: options}}},
		&wire.Frame{Body: &wire.Frame_Output{Output: &wire.Output{Stream: 1, Data: []byte("1")}}},
		&wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}, Last: true},
	} {
		text, err := proto.Marshal(m)
		if err == nil {
			_ = proto.Unmarshal(text, m.ProtoReflect().New().Interface()) // nothing depends on it
		}
	}
}
