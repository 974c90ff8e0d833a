//go:build linux

package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// op is one cell or command, from its request until it is forgotten. It lives apart
// from the attachment that asked for it.
type op struct {
	id      string
	kind    string // "command" or "cell"
	command string // for people
	context string
	detach  bool
	epoch   uint64
	began   time.Time
	meta    map[string]string
	out     [2]*sink    // stdout, stderr
	before  int64       // processes that the kernel had killed for memory when it began
	beside  atomic.Bool // another operation ran for a part of its time

	mu      sync.Mutex
	pid     int                            // guarded by mu
	why     wire.Ending                    // guarded by mu; set once we have decided to end it
	stop    func()                         // guarded by mu; begins to end it; nil before it runs
	signal  func(s int32, tree bool) error // guarded by mu
	verdict *wire.Verdict                  // guarded by mu
	asked   int32                          // guarded by mu; a signal that the caller asked for
	oom     bool                           // guarded by mu; its main process was killed for memory
	fell    int                            // guarded by mu; the last of its processes that was, while the main one was not known
	kills   int64                          // guarded by mu; processes of it that were
	live    *listener                      // guarded by mu; who hears output while it comes
	left    func() bool                    // guarded by mu; whether processes that can be signalled through it live though it has ended; nil: none do
	ended   chan struct{}                  // closed when why is set
	done    chan struct{}

	sayMu sync.Mutex // held while something is said to live; taken before mu
}

// emit takes output of stream 1 or 2.
func (o *op) emit(stream int, p []byte) {
	at := o.out[stream-1].write(p)
	o.say(func(data []byte) (frames []proto.Message) {
		offset := at
		for piece := range slices.Chunk(data, wire.Chunk) {
			frames = append(frames, &wire.Frame{Body: &wire.Frame_Output{Output: &wire.Output{Stream: uint32(stream), Offset: offset, Data: piece}}})
			offset += int64(len(piece))
		}
		return frames
	}, p)
}

// say tells whoever listens. It waits for one that is slow, but not when the operation is to end.
func (o *op) say(frames func(p []byte) []proto.Message, p []byte) {
	o.sayMu.Lock()
	defer o.sayMu.Unlock()
	o.mu.Lock()
	l := o.live
	o.mu.Unlock()
	if l == nil {
		return
	}
	if !l.send(o, frames, p) {
		o.mu.Lock()
		o.live = nil
		o.mu.Unlock()
	}
}

// hush waits until nothing more is said to whoever listened, so that the verdict is the last that he hears.
//
// Preconditions: the operation is finished.
func (o *op) hush(l *listener) {
	if l == nil {
		return
	}
	o.sayMu.Lock()
	o.sayMu.Unlock() //nolint:staticcheck // whoever comes now finds nobody listening
	l.late.Wait()
}

// listener is the stream of the call that began an operation.
type listener struct {
	st   teller
	late sync.WaitGroup // a send that nobody waited for
}

// teller is a *wire.Stream.
type teller interface {
	Send(ms ...proto.Message) error
	RoomFor(n int) bool
}

// envelope is more than a frame has besides its data.
const envelope = 128

// send reports whether the listener is still one.
//
// Preconditions: sayMu is held.
func (l *listener) send(o *op, frames func(p []byte) []proto.Message, p []byte) bool {
	if l.st.RoomFor(len(p) + envelope*(1+len(p)/wire.Chunk)) {
		return l.st.Send(frames(p)...) == nil
	}
	// Now the listener decides how long it takes, so somebody else waits for him.
	fs := frames(append([]byte(nil), p...))
	sent := make(chan error, 1)
	l.late.Go(func() { sent <- l.st.Send(fs...) })
	select {
	case err := <-sent:
		return err == nil
	case <-o.ended:
	case <-o.done:
	}
	late := time.NewTimer(follow)
	defer late.Stop()
	select {
	case err := <-sent:
		return err == nil
	case <-late.C:
		return false
	}
}

// end begins to end the operation for a reason of ours. The first reason counts.
func (o *op) end(why wire.Ending) {
	if stop := o.mark(why); stop != nil {
		stop()
	}
}

// mark notes why the operation will have ended, and gives what begins to end it.
func (o *op) mark(why wire.Ending) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why != wire.Ending_ENDING_UNKNOWN || o.verdict != nil {
		return nil
	}
	o.why = why
	close(o.ended)
	return o.stop
}

// armed sets how the operation is ended, and ends it at once when that was asked for before.
func (o *op) armed(stop func()) {
	o.mu.Lock()
	o.stop = stop
	due := o.why != wire.Ending_ENDING_UNKNOWN
	o.mu.Unlock()
	if due {
		stop()
	}
}

func (o *op) ending() wire.Ending {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// finish records the verdict.
func (o *op) finish(v *wire.Verdict) {
	v.Id = o.id
	v.Metadata = o.meta
	v.StartedUnixNs = o.began.UnixNano()
	v.WallNs = time.Since(o.began).Nanoseconds()
	v.Stdout, v.Stderr = o.out[0].kept(), o.out[1].kept()
	own := o.ownKills()
	o.mu.Lock()
	defer o.mu.Unlock()
	v.MemoryKills = max(o.kills, own)
	o.verdict = v
	o.live = nil
	close(o.done)
}

// describe leaves out what may be large: a list of many must fit into a frame. Whoever follows the operation gets all of it.
func (o *op) describe() *wire.Op {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &wire.Op{
		Id: o.id, Kind: o.kind, Command: o.command, Context: o.context, Running: o.verdict == nil, Pid: int32(o.pid),
		Stdout: o.out[0].size(), Stderr: o.out[1].size(), StartedUnixNs: o.began.UnixNano(), Verdict: brief(o.verdict),
	}
}

// listedMetadata bounds what a list tells of an operation's metadata, of which there may be megabytes.
const listedMetadata = 1 << 10

// short leaves out metadata that is long.
func short(m map[string]string) map[string]string {
	room, out := listedMetadata, map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if n := len(k) + len(m[k]); n <= room {
			room -= n
			out[k] = m[k]
		}
	}
	return out
}

func brief(v *wire.Verdict) *wire.Verdict {
	if v == nil {
		return nil
	}
	kept := func(k *wire.Kept) *wire.Kept {
		return &wire.Kept{Produced: k.GetProduced(), File: k.GetFile(), FileBytes: k.GetFileBytes()}
	}
	b := &wire.Verdict{
		Id: v.Id, Ending: v.Ending, ExitCode: v.ExitCode, Signal: v.Signal, Stdout: kept(v.Stdout), Stderr: kept(v.Stderr), WallNs: v.WallNs,
		CpuNs: v.CpuNs, PeakMemory: v.PeakMemory, StateKept: v.StateKept, StartError: v.StartError, Metadata: short(v.Metadata),
		StartedUnixNs: v.StartedUnixNs, DisplaysDropped: v.DisplaysDropped, SurvivorsTotal: v.SurvivorsTotal, MemoryKills: v.MemoryKills,
		StateLostBefore: v.StateLostBefore,
	}
	for _, p := range v.Survivors {
		b.Survivors = append(b.Survivors, &wire.Process{Pid: p.Pid, Command: clip(p.Command, 200), Killed: p.Killed})
	}
	if e := v.CellError; e != nil {
		b.CellError = &wire.CellError{Name: e.Name, Value: clip(e.Value, 1<<10), Line: e.Line}
	}
	return b
}

// table holds the operations. Finished ones stay for a while, so that a host that was
// cut off can still learn how they ended.
type table struct {
	dir  string
	stir chan struct{} // hears of new operations; may be nil

	mu    sync.Mutex
	ops   map[string]*op // guarded by mu
	order []*op          // guarded by mu; oldest first
}

const (
	// keepFinished is how many ended operations are remembered.
	keepFinished = 64
	// keepLeft is how many older ones are, because something that they have left behind lives, which nobody could ask to end any more without
	// them. There are not more processes than this unless the limits were raised.
	keepLeft = 256
)

var goodID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

type newOp struct {
	id, kind, command, context string
	inline, spool              int64
	detach                     bool
	epoch                      uint64
	meta                       map[string]string
}

func (t *table) add(n newOp) (*op, *wire.Error) {
	if !goodID.MatchString(n.id) {
		return nil, failure("invalid_request", "operation id %q is not one", n.id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ops[n.id] != nil {
		return nil, failure("invalid_request", "operation %s exists already", n.id)
	}
	o := &op{
		id: n.id, kind: n.kind, command: clip(n.command, 200), context: n.context, detach: n.detach, epoch: n.epoch,
		began: time.Now(), meta: n.meta, before: kernelKills(), ended: make(chan struct{}), done: make(chan struct{}),
	}
	for i, name := range []string{"stdout", "stderr"} {
		o.out[i] = newSink(n.inline, n.spool, filepath.Join(t.dir, n.id+"."+name))
	}
	for _, x := range t.order {
		if !x.finished() {
			x.beside.Store(true)
			o.beside.Store(true)
		}
	}
	t.ops[n.id] = o
	select {
	case t.stir <- struct{}{}:
	default: // it has been told already, or nobody listens
	}
	t.order = append(t.order, o)
	t.evict()
	return o, nil
}

// evict forgets the oldest finished operations.
//
// Preconditions: mu is held.
func (t *table) evict() {
	finished, left := 0, 0
	for i := len(t.order) - 1; i >= 0; i-- {
		o := t.order[i]
		if !o.finished() {
			continue
		}
		if finished++; finished <= keepFinished {
			continue
		}
		if left < keepLeft && o.hasLeft() {
			left++
			continue
		}
		t.drop(o)
	}
}

// hasLeft says whether something lives that an ended operation has left behind.
func (o *op) hasLeft() bool {
	o.mu.Lock()
	left := o.left
	o.mu.Unlock()
	return left != nil && left()
}

func (o *op) finished() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// drop forgets one.
//
// Preconditions: mu is held.
func (t *table) drop(o *op) {
	delete(t.ops, o.id)
	for i, x := range t.order {
		if x == o {
			t.order = append(t.order[:i:i], t.order[i+1:]...)
			break
		}
	}
	for _, s := range o.out {
		s.remove()
	}
}

func (t *table) get(id string) (*op, *wire.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.ops[id]; o != nil {
		return o, nil
	}
	return nil, failure("not_found", "no operation %q", clip(id, 80))
}

func (t *table) forget(id string) *wire.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.ops[id]
	if o == nil {
		return failure("not_found", "no operation %q", clip(id, 80))
	}
	if !o.finished() {
		return failure("busy", "operation %s is still running", id)
	}
	t.drop(o)
	return nil
}

func (t *table) all() []*op {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*op(nil), t.order...)
}

// cut ends what an attachment asked for and did not want to go on without it.
func (t *table) cut(epoch uint64) {
	for _, o := range t.all() {
		if o.epoch == epoch && !o.detach && !o.finished() {
			o.end(wire.Ending_ENDING_CANCELLED)
		}
	}
}

func failure(code, format string, args ...any) *wire.Error {
	return &wire.Error{Code: code, Message: strings.ToValidUTF8(fmt.Sprintf(format, args...), "?")}
}

func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// prepareState makes the guest's directory. What runs in the sandbox may read spooled
// output, and nothing else.
func prepareState(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
