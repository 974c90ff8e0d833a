//go:build linux

// Package operation holds the cells and commands of a guest, from their requests until they are forgotten: their
// output, their verdicts, and how to end them.
//
// An operation is independent of the attachment that requested it, so a host that was disconnected can follow it from
// where it was. Its output is stored with absolute offsets (output.go). The runner of an operation, a command or an
// interpreter, writes output with Emit, sets a function that ends the operation with SetStop, and completes it with
// Finish.
package operation

import (
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/memory"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// DrainWait is how long the guest waits for output, or for a slow reader of it, once an operation is ending or has
// ended.
const DrainWait = 200 * time.Millisecond

// Operation is one cell or command.
type Operation struct {
	Request
	Memory memory.Account
	out    [2]*Sink // stdout, stderr
	began  time.Time
	ended  chan struct{} // closed when why is set
	done   chan struct{} // closed when verdict is set

	mu        sync.Mutex
	pid       int                            // guarded by mu
	why       wire.Ending                    // guarded by mu; set once the guest has decided to end the operation
	stop      func()                         // guarded by mu; begins to end it; nil before it runs
	signal    func(s int32, tree bool) error // guarded by mu; nil before it runs
	verdict   *wire.Verdict                  // guarded by mu
	requested int32                          // guarded by mu; the last signal that the caller requested
	listener  *Listener                      // guarded by mu; receives output while it is produced
	survivors func() bool                    // guarded by mu; see SetSurvivors
	input     func(*wire.Input) *wire.Error  // guarded by mu; see SetInput

	sendMu sync.Mutex // held while a frame is sent to the listener; locked before mu
}

// Done returns a channel that is closed when the verdict is known.
func (o *Operation) Done() <-chan struct{} { return o.done }

// Ended returns a channel that is closed when the guest has decided to end the operation.
func (o *Operation) Ended() <-chan struct{} { return o.ended }

// Finished reports whether the verdict is known.
func (o *Operation) Finished() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// Verdict returns the verdict, or nil while the operation runs.
func (o *Operation) Verdict() *wire.Verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.verdict
}

// Output returns the output of stream 1 or 2.
func (o *Operation) Output(stream int) *Sink { return o.out[stream-1] }

// EndOutput records that no more output follows.
func (o *Operation) EndOutput() {
	for _, s := range o.out {
		s.End()
	}
}

// Killed implements memory.Owner and nanny.Owner.
func (o *Operation) Killed(pid int) { o.Memory.Killed(pid) }

// Run sets the pid of the main process and the function that signals it. pid is 0 while it is unknown.
func (o *Operation) Run(pid int, signal func(s int32, tree bool) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pid, o.signal = pid, signal
}

// SetPID sets the pid of the main process.
func (o *Operation) SetPID(pid int) {
	o.Memory.SetMain(pid)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pid = pid
}

// SetSurvivors sets a function that reports whether processes that can be signalled through the operation are still
// alive after its end.
func (o *Operation) SetSurvivors(alive func() bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.survivors = alive
}

func (o *Operation) hasSurvivors() bool {
	o.mu.Lock()
	alive := o.survivors
	o.mu.Unlock()
	return alive != nil && alive()
}

// Emit stores output of stream 1 or 2, and sends it to the listener.
func (o *Operation) Emit(stream int, p []byte) {
	at := o.out[stream-1].write(p)
	o.send(func(data []byte) (frames []proto.Message) {
		offset := at
		for piece := range slices.Chunk(data, wire.Chunk) {
			out := &wire.Output{Stream: uint32(stream), Offset: offset, Data: piece}
			frames = append(frames, &wire.Frame{Body: &wire.Frame_Output{Output: out}})
			offset += int64(len(piece))
		}
		return frames
	}, p)
}

// Display sends a displayed value to the listener. The verdict also contains it.
func (o *Operation) Display(bundle []byte) {
	o.send(func(p []byte) []proto.Message {
		return []proto.Message{&wire.Frame{Body: &wire.Frame_Display{Display: &wire.Display{Bundle: p}}}}
	}, bundle)
}

// send sends frames to the listener, if there is one. It waits for a slow listener, except when the operation is
// ending.
func (o *Operation) send(frames func(p []byte) []proto.Message, p []byte) {
	o.sendMu.Lock()
	defer o.sendMu.Unlock()
	o.mu.Lock()
	l := o.listener
	o.mu.Unlock()
	if l == nil {
		return
	}
	if !l.send(o, frames, p) {
		o.mu.Lock()
		o.listener = nil
		o.mu.Unlock()
	}
}

// Listener is the stream of the call that started an operation.
type Listener struct {
	stream Stream
	late   sync.WaitGroup // a send that is no longer waited for
}

// Stream is implemented by *wire.Stream.
type Stream interface {
	Send(ms ...proto.Message) error
	RoomFor(n int) bool
}

// Listen makes s receive output while it is produced.
//
// Preconditions: nothing has been emitted.
func (o *Operation) Listen(s Stream) *Listener {
	l := &Listener{stream: s}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listener = l
	return l
}

// Flush waits until nothing more is sent to a listener, so that the verdict is the last frame it receives. l may be
// nil.
//
// Preconditions: the operation is finished.
func (o *Operation) Flush(l *Listener) {
	if l == nil {
		return
	}
	o.sendMu.Lock()
	o.sendMu.Unlock() //nolint:staticcheck // later senders find no listener
	l.late.Wait()
}

// envelope is an upper bound for the bytes of a frame besides its data.
const envelope = 128

// send sends frames to the listener. It returns false if the listener cannot receive more.
//
// Preconditions: sendMu is held.
func (l *Listener) send(o *Operation, frames func(p []byte) []proto.Message, p []byte) bool {
	if l.stream.RoomFor(len(p) + envelope*(1+len(p)/wire.Chunk)) {
		return l.stream.Send(frames(p)...) == nil
	}
	// The send may block until the listener reads, so it runs in another goroutine.
	fs := frames(append([]byte(nil), p...))
	sent := make(chan error, 1)
	l.late.Go(func() { sent <- l.stream.Send(fs...) })
	select {
	case err := <-sent:
		return err == nil
	case <-o.ended:
	case <-o.done:
	}
	late := time.NewTimer(DrainWait)
	defer late.Stop()
	select {
	case err := <-sent:
		return err == nil
	case <-late.C:
		return false
	}
}

// End begins to end the operation for the reason why. The first reason counts.
func (o *Operation) End(why wire.Ending) {
	if stop := o.MarkEnding(why); stop != nil {
		stop()
	}
}

// MarkEnding records why the operation ends, and returns the function that begins to end it. It returns nil if there is
// none, or if the operation is ending already.
func (o *Operation) MarkEnding(why wire.Ending) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why != wire.Ending_ENDING_UNKNOWN || o.verdict != nil {
		return nil
	}
	o.why = why
	close(o.ended)
	return o.stop
}

// SetStop sets the function that begins to end the operation. If End was called before, SetStop calls stop at once.
func (o *Operation) SetStop(stop func()) {
	o.mu.Lock()
	o.stop = stop
	due := o.why != wire.Ending_ENDING_UNKNOWN
	o.mu.Unlock()
	if due {
		stop()
	}
}

// Ending returns why the guest ends the operation; ENDING_UNKNOWN: it does not.
func (o *Operation) Ending() wire.Ending {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// RecordSignal records that the caller has requested a signal.
func (o *Operation) RecordSignal(s int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requested = s
}

// Fate is what is known about the end of an operation besides its exit status.
type Fate struct {
	Why       wire.Ending // as returned by Ending
	Requested int32       // the last signal that the caller requested; 0: none
	Memory    bool        // the main process was OOM-killed
}

// Fate returns what ended the operation. exited is the wait status of its main process, or nil if it is unknown.
func (o *Operation) Fate(exited *syscall.WaitStatus) Fate {
	o.mu.Lock()
	f := Fate{Why: o.why, Requested: o.requested}
	o.mu.Unlock()
	if exited != nil {
		o.Memory.RecordExit(*exited, f.Requested == int32(syscall.SIGKILL))
	}
	f.Memory = o.Memory.MainKilled()
	return f
}

// Signal executes a Signal request: it cancels the operation, or sends a signal to its processes.
func (o *Operation) Signal(s *wire.Signal) *wire.Error {
	if s.Cancel {
		o.End(wire.Ending_ENDING_CANCELLED)
		return nil
	}
	o.mu.Lock()
	send, over := o.signal, o.verdict != nil
	o.mu.Unlock()
	switch {
	case over && !s.Tree:
		return wire.Errorf("not_found", "operation %s has ended", o.ID)
	case send == nil:
		return wire.Errorf("busy", "operation %s has not started yet", o.ID)
	case s.Signal <= 0 || s.Signal > 64:
		return wire.Errorf("invalid_request", "invalid signal %d", s.Signal)
	}
	if err := send(s.Signal, s.Tree); err != nil {
		return wire.Errorf("not_found", "operation %s: %v", o.ID, err)
	}
	return nil
}

// SetInput sets the function that takes input of Feed calls.
func (o *Operation) SetInput(input func(*wire.Input) *wire.Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.input = input
}

// Feed passes input to the operation. It returns when the operation has accepted the input.
func (o *Operation) Feed(in *wire.Input) *wire.Error {
	o.mu.Lock()
	input, over := o.input, o.verdict != nil
	o.mu.Unlock()
	switch {
	case over:
		return wire.Errorf("not_found", "operation %s has ended", o.ID)
	case input == nil:
		return wire.Errorf("invalid_request", "operation %s does not accept input", o.ID)
	}
	return input(in)
}

// Finish completes and sets the verdict.
func (o *Operation) Finish(v *wire.Verdict) {
	v.Id = o.ID
	v.Metadata = o.Metadata
	v.StartedUnixNs = o.began.UnixNano()
	v.WallNs = time.Since(o.began).Nanoseconds()
	v.Stdout, v.Stderr = o.out[0].kept(), o.out[1].kept()
	v.MemoryKills = o.Memory.Kills()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.verdict = v
	o.listener = nil
	close(o.done)
}
