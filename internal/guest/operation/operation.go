//go:build linux

// Package operation holds the cells and commands of a guest, from their requests until they are forgotten: their output, their verdicts,
// and how to end them.
//
// An operation lives apart from the attachment that asked for it, so that a host that was cut off can follow it from where it was. Its
// output is kept with absolute offsets (output.go). Whoever runs it, a command or an interpreter, writes output with Emit, says with
// Arm how it is ended, and closes it with Finish.
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

// Follow is how long is waited for output, or for a slow reader of it, once an operation is to end or has ended.
const Follow = 200 * time.Millisecond

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
	why       wire.Ending                    // guarded by mu; set once we have decided to end it
	stop      func()                         // guarded by mu; begins to end it; nil before it runs
	signal    func(s int32, tree bool) error // guarded by mu; nil before it runs
	verdict   *wire.Verdict                  // guarded by mu
	requested int32                          // guarded by mu; the last signal that the caller asked for
	listener  *Listener                      // guarded by mu; receives output while it is produced
	left      func() bool                    // guarded by mu; see Left
	input     func(*wire.Input) *wire.Error  // guarded by mu; see Accept

	sendMu sync.Mutex // held while something is sent to the listener; taken before mu
}

// Done is closed when the verdict is known.
func (o *Operation) Done() <-chan struct{} { return o.done }

// Ended is closed when it has been decided to end the operation.
func (o *Operation) Ended() <-chan struct{} { return o.ended }

// Finished reports that the verdict is known.
func (o *Operation) Finished() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// Verdict returns nil while the operation runs.
func (o *Operation) Verdict() *wire.Verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.verdict
}

// Output returns stream 1 or 2.
func (o *Operation) Output(stream int) *Sink { return o.out[stream-1] }

// EndOutput says that nothing more is emitted.
func (o *Operation) EndOutput() {
	for _, s := range o.out {
		s.End()
	}
}

// Killed implements memory.Owner and nanny.Owner.
func (o *Operation) Killed(pid int) { o.Memory.Killed(pid) }

// Run records how the process of the operation is signalled. pid may be 0 as long as it is unknown.
func (o *Operation) Run(pid int, signal func(s int32, tree bool) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pid, o.signal = pid, signal
}

// SetPID names the main process.
func (o *Operation) SetPID(pid int) {
	o.Memory.SetMain(pid)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pid = pid
}

// Left sets what reports whether processes that can be signalled through the operation are alive although it has ended.
func (o *Operation) Left(alive func() bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = alive
}

func (o *Operation) hasLeft() bool {
	o.mu.Lock()
	left := o.left
	o.mu.Unlock()
	return left != nil && left()
}

// Emit takes output of stream 1 or 2.
func (o *Operation) Emit(stream int, p []byte) {
	at := o.out[stream-1].write(p)
	o.send(func(data []byte) (frames []proto.Message) {
		offset := at
		for piece := range slices.Chunk(data, wire.Chunk) {
			frames = append(frames, &wire.Frame{Body: &wire.Frame_Output{Output: &wire.Output{Stream: uint32(stream), Offset: offset, Data: piece}}})
			offset += int64(len(piece))
		}
		return frames
	}, p)
}

// Display sends a displayed value to the listener. The verdict has it, too.
func (o *Operation) Display(bundle []byte) {
	o.send(func(p []byte) []proto.Message {
		return []proto.Message{&wire.Frame{Body: &wire.Frame_Display{Display: &wire.Display{Bundle: p}}}}
	}, bundle)
}

// send sends to the listener, if there is one. It waits for a slow one, but not when the operation is to end.
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

// Listener is the stream of the call that began an operation.
type Listener struct {
	stream Stream
	late   sync.WaitGroup // a send that was not waited for
}

// Stream is a *wire.Stream.
type Stream interface {
	Send(ms ...proto.Message) error
	RoomFor(n int) bool
}

// Listen has output sent to a stream while it is produced.
//
// Preconditions: nothing has been emitted.
func (o *Operation) Listen(s Stream) *Listener {
	l := &Listener{stream: s}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listener = l
	return l
}

// Flush waits until nothing more is sent to a listener, so that the verdict is the last that it receives. l may be nil.
//
// Preconditions: the operation is finished.
func (o *Operation) Flush(l *Listener) {
	if l == nil {
		return
	}
	o.sendMu.Lock()
	o.sendMu.Unlock() //nolint:staticcheck // whoever sends after this finds no listener
	l.late.Wait()
}

// envelope is more than a frame has besides its data.
const envelope = 128

// send reports whether the listener can be sent more.
//
// Preconditions: sendMu is held.
func (l *Listener) send(o *Operation, frames func(p []byte) []proto.Message, p []byte) bool {
	if l.stream.RoomFor(len(p) + envelope*(1+len(p)/wire.Chunk)) {
		return l.stream.Send(frames(p)...) == nil
	}
	// Now the listener decides how long it takes, so another goroutine waits for it.
	fs := frames(append([]byte(nil), p...))
	sent := make(chan error, 1)
	l.late.Go(func() { sent <- l.stream.Send(fs...) })
	select {
	case err := <-sent:
		return err == nil
	case <-o.ended:
	case <-o.done:
	}
	late := time.NewTimer(Follow)
	defer late.Stop()
	select {
	case err := <-sent:
		return err == nil
	case <-late.C:
		return false
	}
}

// End begins to end the operation for a reason of ours. The first reason counts.
func (o *Operation) End(why wire.Ending) {
	if stop := o.Mark(why); stop != nil {
		stop()
	}
}

// Mark records why the operation will have ended, and returns what begins to end it; nil: nothing does, or it is ending already.
func (o *Operation) Mark(why wire.Ending) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why != wire.Ending_ENDING_UNKNOWN || o.verdict != nil {
		return nil
	}
	o.why = why
	close(o.ended)
	return o.stop
}

// Arm sets how the operation is ended, and ends it at once when that was asked for before.
func (o *Operation) Arm(stop func()) {
	o.mu.Lock()
	o.stop = stop
	due := o.why != wire.Ending_ENDING_UNKNOWN
	o.mu.Unlock()
	if due {
		stop()
	}
}

// Ending returns why we end the operation; ENDING_UNKNOWN: we do not.
func (o *Operation) Ending() wire.Ending {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// Requested records that the caller asks for a signal.
func (o *Operation) Requested(s int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requested = s
}

// Fate is what is known about the end of an operation besides its exit status.
type Fate struct {
	Why       wire.Ending // as Ending
	Requested int32       // the last signal that the caller asked for; 0: none
	Memory    bool        // the main process was killed for memory
}

// Fate returns what ended the operation. exited is how its main process ended, nil when that is unknown.
func (o *Operation) Fate(exited *syscall.WaitStatus) Fate {
	o.mu.Lock()
	f := Fate{Why: o.why, Requested: o.requested}
	o.mu.Unlock()
	if exited != nil {
		o.Memory.Judge(*exited, f.Requested == int32(syscall.SIGKILL))
	}
	f.Memory = o.Memory.MainKilled()
	return f
}

// Signal does what the caller asks for.
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

// Accept sets what takes input that comes apart from the call that began the operation.
func (o *Operation) Accept(input func(*wire.Input) *wire.Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.input = input
}

// Feed gives input to the operation. It returns when the operation has taken it.
func (o *Operation) Feed(in *wire.Input) *wire.Error {
	o.mu.Lock()
	input, over := o.input, o.verdict != nil
	o.mu.Unlock()
	switch {
	case over:
		return wire.Errorf("not_found", "operation %s has ended", o.ID)
	case input == nil:
		return wire.Errorf("invalid_request", "operation %s takes no input", o.ID)
	}
	return input(in)
}

// Finish sets the verdict.
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
