// Package pool keeps warm sandboxes ready, so that a caller gets one within milliseconds.
//
// A pool holds unused sandboxes: Get returns each sandbox once, and the pool never takes it back. The
// sandboxes are kept by spec, because the spec of a sandbox cannot be changed after its creation. A spec
// with an environment, labels or a host name is specific to one caller. The pool does not keep sandboxes
// of such a spec, and Get makes them on demand.
package pool

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// The defaults of Options.
const (
	DefaultMin         = 2
	DefaultTarget      = 4
	DefaultMax         = 50
	DefaultShrinkAfter = 300 * time.Second
	DefaultWait        = 500 * time.Millisecond
)

// Timing and concurrency of the pool's own work.
const (
	// sweepEvery is the time between two sweeps for sandboxes that have died or are no longer needed.
	sweepEvery = 5 * time.Second
	// retryAfter is how long a shelf makes no sandboxes after an attempt failed.
	retryAfter = 2 * time.Second
	// refillAfter is how long a shelf that is not empty waits before it is refilled.
	refillAfter = 25 * time.Millisecond
	// makers is how many sandboxes are made at once. With more, each takes longer.
	makers = 2
	// maxWaiters is how many callers may wait for sandboxes that are being made. Another caller would wait longer than
	// making its own sandbox takes.
	maxWaiters = 2 * makers
	// burstTime is the duration of a burst: calls within this time that find a shelf empty belong to one burst.
	burstTime = 10 * time.Second
)

// Options sizes a pool. Zero fields take their defaults.
type Options struct {
	Min    int // sandboxes that a warmed spec keeps ready without demand
	Target int // sandboxes that a spec keeps ready while there is demand; more if the last burst needed more
	Max    int // sandboxes of all specs together, including those that are being made
	// ShrinkAfter is how long after the last demand the pool keeps only Min sandboxes of a spec, or none if Warm was
	// not called for the spec. It is also how long after a burst the pool keeps enough sandboxes for another burst of
	// the same size.
	ShrinkAfter time.Duration
	// Wait is how long Get waits for a sandbox that is being made before it makes one itself.
	Wait time.Duration
	// Labels and Persist apply to every sandbox that the pool makes, including those made on demand. After a crash, the
	// labels identify the owner of the sandbox.
	Labels  map[string]string
	Persist bool
}

// Stats describes what a pool holds and has done.
type Stats struct {
	Ready  int   `json:"ready"`
	Making int   `json:"making"`
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"` // sandboxes made on demand, because none was ready in time
	Died   int64 `json:"died"`   // sandboxes that ended while they were in the pool
	Failed int64 `json:"failed"` // sandboxes that could not be made
}

// Pool keeps sandboxes of one backend.
type Pool struct {
	backend sandbox.Backend
	opts    Options
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	slots   chan struct{}

	mu      sync.Mutex
	shelves map[[32]byte]*shelf // guarded by mu
	total   int                 // guarded by mu; sandboxes that are ready or being made
	stats   Stats               // guarded by mu
	closed  bool                // guarded by mu
	unended []*sandbox.Sandbox  // guarded by mu; sandboxes that the backend could not end yet
	cold    int                 // guarded by mu; sandboxes that are being made on demand
}

// shelf has the sandboxes of one spec. Its fields are guarded by the pool's mu.
type shelf struct {
	spec       sandbox.Spec
	ready      []*sandbox.Sandbox
	making     int
	lastDemand time.Time
	retryAt    time.Time // no sandbox is made before this, because the last attempt failed
	warmed     bool      // Warm was called: Min sandboxes stay without demand
	waiters    []chan *sandbox.Sandbox
	burst      time.Time // beginning of the last burst of calls that found no sandbox ready
	missing    int       // calls of that burst
}

// New makes an empty pool. The caller must call Close.
func New(b sandbox.Backend, opts Options) *Pool {
	if opts.Min <= 0 {
		opts.Min = DefaultMin
	}
	if opts.Target <= 0 {
		opts.Target = DefaultTarget
	}
	opts.Target = max(opts.Target, opts.Min)
	if opts.Max <= 0 {
		opts.Max = max(DefaultMax, opts.Target)
	}
	if opts.ShrinkAfter <= 0 {
		opts.ShrinkAfter = DefaultShrinkAfter
	}
	if opts.Wait <= 0 {
		opts.Wait = DefaultWait
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{
		backend: b,
		opts:    opts,
		ctx:     ctx,
		cancel:  cancel,
		slots:   make(chan struct{}, makers),
		shelves: map[[32]byte]*shelf{},
	}
	p.work.Go(p.sweepRegularly)
	return p
}

// key returns the key of a spec's shelf. It depends on all fields, so that no caller gets a sandbox of a different
// spec.
func key(s sandbox.Spec) [32]byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // impossible: a spec is plain data, and Check has rejected NaN
	}
	return sha256.Sum256(b)
}

// poolable reports whether the pool can keep sandboxes of this spec. An environment, labels and a host name are
// specific to one caller, and must be set before the interpreter starts.
func poolable(s sandbox.Spec) bool { return len(s.Env) == 0 && s.Hostname == "" && len(s.Labels) == 0 }

// Warm makes sandboxes of a spec and keeps them ready. It returns when Min sandboxes are ready. It rejects a spec with
// an environment, labels or a host name. If the pool is full with sandboxes of other specs, Warm does not wait: the
// error has the code busy.
func (p *Pool) Warm(ctx context.Context, spec sandbox.Spec) error {
	spec, err := sandbox.Resolve(p.backend, spec)
	if err != nil {
		return err
	}
	if !poolable(spec) {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "warm pool",
			Message: "a spec with an environment, labels or a host name cannot be kept ready",
			Remedy:  "warm the spec without them, and set the environment in each command",
		}
	}
	least := min(p.opts.Min, p.opts.Max)
	for {
		p.mu.Lock()
		s := p.shelf(spec)
		s.lastDemand = time.Now()
		p.fill(s, p.want(s))
		done, untilRetry, closed := len(s.ready) >= least, time.Until(s.retryAt), p.closed
		full := len(s.ready)+s.making < least && p.total >= p.opts.Max
		if done {
			s.warmed = true
		}
		p.mu.Unlock()
		if done {
			return nil
		}
		if closed {
			return errClosed
		}
		if untilRetry > 0 {
			return &v1.Error{
				Code:    v1.CodeStartFailed,
				Op:      "warm pool",
				Message: "a sandbox of this spec could not be made",
				Retry:   true,
			}
		}
		if full {
			return &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "warm pool",
				Message: fmt.Sprintf("the pool is full: all of its %d sandboxes have other specs", p.opts.Max),
				Remedy:  "raise Options.Max, or retry when the other sandboxes are taken",
				Retry:   true,
			}
		}
		select {
		case <-ctx.Done():
			return &v1.Error{Code: v1.CodeCancelled, Op: "warm pool", Message: "cancelled", Err: ctx.Err()}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

var errClosed = &v1.Error{Code: v1.CodeInvalidRequest, Op: "use pool", Message: "the pool is closed"}

// Get returns an unused sandbox: a ready one, or one that it makes on demand. The caller must call Close on it.
func (p *Pool) Get(ctx context.Context, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	spec, err := sandbox.Resolve(p.backend, spec)
	if err != nil {
		return nil, err
	}
	if !poolable(spec) {
		return sandbox.Open(ctx, p.backend, p.withLabels(spec))
	}
	wait := make(chan *sandbox.Sandbox, 1)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	s := p.shelf(spec)
	s.lastDemand = time.Now()
	if sb := p.take(s); sb != nil {
		p.stats.Hits++
		p.fill(s, p.want(s))
		p.mu.Unlock()
		return sb, nil
	}
	if s.lastDemand.Sub(s.burst) > burstTime {
		s.burst, s.missing = s.lastDemand, 0
	}
	s.missing++
	p.fill(s, p.want(s))
	// No more callers wait than sandboxes are being made: another caller would get none of them.
	queued := len(s.waiters) < min(s.making, maxWaiters)
	if queued {
		s.waiters = append(s.waiters, wait)
	}
	p.mu.Unlock()

	if queued {
		t := time.NewTimer(p.opts.Wait)
		defer t.Stop()
		select {
		case sb := <-wait:
			if sb != nil {
				return sb, nil
			}
		case <-t.C:
		case <-ctx.Done():
		}
		if sb := p.leave(s, wait); sb != nil {
			return sb, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, &v1.Error{Code: v1.CodeCancelled, Op: "get sandbox", Message: "cancelled", Err: err}
		}
	}
	p.mu.Lock()
	p.stats.Misses++
	p.cold++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.cold--
		p.mu.Unlock()
	}()
	return sandbox.Open(ctx, p.backend, p.withLabels(spec))
}

// want returns how many sandboxes of a shelf should be ready while there is demand. After a burst, that is as many as
// the burst needed, but Target places of the pool stay free for other shelves.
//
// Preconditions: mu is held.
func (p *Pool) want(s *shelf) int {
	if time.Since(s.burst) > p.opts.ShrinkAfter {
		return p.opts.Target
	}
	return max(p.opts.Target, min(s.missing, p.opts.Max-p.opts.Target))
}

// withLabels returns the spec with the pool's labels and Persist added. Labels of the spec take precedence.
func (p *Pool) withLabels(spec sandbox.Spec) sandbox.Spec {
	labels := maps.Clone(p.opts.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, spec.Labels)
	spec.Labels, spec.Persist = labels, spec.Persist || p.opts.Persist
	return spec
}

// leave removes a waiter from the queue. It returns the sandbox if the waiter was served in the meantime, else nil.
func (p *Pool) leave(s *shelf, wait chan *sandbox.Sandbox) *sandbox.Sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, w := range s.waiters {
		if w == wait {
			s.waiters = append(s.waiters[:i], s.waiters[i+1:]...)
			return nil
		}
	}
	select {
	case sb := <-wait:
		return sb
	default:
		return nil
	}
}

// shelf returns the shelf of a spec, and makes it if necessary.
//
// Preconditions: mu is held.
func (p *Pool) shelf(spec sandbox.Spec) *shelf {
	k := key(spec)
	s := p.shelves[k]
	if s == nil {
		s = &shelf{spec: spec}
		p.shelves[k] = s
	}
	return s
}

// take removes a ready sandbox that is still alive from a shelf and returns it, or returns nil if there is none.
//
// Preconditions: mu is held.
func (p *Pool) take(s *shelf) *sandbox.Sandbox {
	for len(s.ready) > 0 {
		sb := s.ready[0]
		s.ready = s.ready[1:]
		p.total--
		if alive(sb) {
			return sb
		}
		p.stats.Died++
		p.dispose(sb)
	}
	return nil
}

// alive reports whether a sandbox has not ended.
func alive(sb *sandbox.Sandbox) bool {
	select {
	case <-sb.Gone():
		return false
	default:
		return true
	}
}

// dispose ends a sandbox in the background. If the backend cannot end it, for example because its service does not
// answer, Sweep tries again.
func (p *Pool) dispose(sb *sandbox.Sandbox) {
	p.work.Go(func() { p.end(sb) })
}

// end ends an unused sandbox, and reports whether it succeeded.
func (p *Pool) end(sb *sandbox.Sandbox) bool {
	err := sb.Close()
	if err != nil {
		p.mu.Lock()
		p.unended = append(p.unended, sb)
		p.mu.Unlock()
	}
	return err == nil
}

// Sweep checks the shelves, and removes what is left of sandboxes that have died or that could not be ended before. It
// returns how many sandboxes it removed.
func (p *Pool) Sweep() int {
	p.mu.Lock()
	p.checkShelves()
	all := p.unended
	p.unended = nil
	p.mu.Unlock()
	var ended atomic.Int64
	var ending sync.WaitGroup
	for _, sb := range all {
		ending.Go(func() {
			if p.end(sb) {
				ended.Add(1)
			}
		})
	}
	ending.Wait()
	return int(ended.Load())
}

// fill begins to make sandboxes until want of them are ready or being made, or the pool is full.
//
// Preconditions: mu is held.
func (p *Pool) fill(s *shelf, want int) {
	if p.closed || time.Now().Before(s.retryAt) {
		return
	}
	for len(s.ready)+s.making < want && p.total < p.opts.Max {
		s.making++
		p.total++
		p.work.Go(func() { p.make(s) })
	}
}

// yieldCPU waits before a shelf makes a sandbox, so that the CPUs are free for a caller that has just taken a sandbox,
// and for sandboxes that are being made on demand. It does not wait if a caller waits for a sandbox of the shelf.
func (p *Pool) yieldCPU(s *shelf) {
	for first := true; ; first = false {
		p.mu.Lock()
		pause := len(s.waiters) == 0 && (p.cold > 0 || first && len(s.ready) > 0)
		p.mu.Unlock()
		if !pause {
			return
		}
		select {
		case <-time.After(refillAfter):
		case <-p.ctx.Done():
			return
		}
	}
}

// make makes one sandbox for a shelf.
func (p *Pool) make(s *shelf) {
	var sb *sandbox.Sandbox
	var err error
	p.yieldCPU(s)
	select {
	case p.slots <- struct{}{}:
		sb, err = sandbox.Open(p.ctx, p.backend, p.withLabels(s.spec))
		if err == nil {
			// A sandbox without Python has less to warm, and works.
			if werr := sb.Warm(p.ctx); werr != nil && !errors.Is(werr, sandbox.ErrNoPython) {
				err = werr
				p.dispose(sb)
			}
		}
		<-p.slots
	case <-p.ctx.Done():
		err = p.ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.making--
	if err != nil {
		p.total--
		p.stats.Failed++
		s.retryAt = time.Now().Add(retryAfter)
		// The waiting callers make their own sandboxes, and so get the error.
		for _, w := range s.waiters {
			w <- nil
		}
		s.waiters = nil
		return
	}
	if p.closed {
		p.total--
		p.dispose(sb)
		return
	}
	if len(s.waiters) > 0 {
		s.waiters[0] <- sb
		s.waiters = s.waiters[1:]
		p.total--
		p.stats.Hits++
		p.fill(s, p.want(s))
		return
	}
	s.ready = append(s.ready, sb)
}

// sweepRegularly calls Sweep until the pool is closed.
func (p *Pool) sweepRegularly() {
	t := time.NewTicker(min(sweepEvery, p.opts.ShrinkAfter))
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-t.C:
			p.Sweep()
		}
	}
}

// checkShelves removes dead sandboxes from the shelves, and makes or ends sandboxes if the demand has changed.
//
// Preconditions: mu is held.
func (p *Pool) checkShelves() {
	for k, s := range p.shelves {
		live := s.ready[:0]
		for _, sb := range s.ready {
			if alive(sb) {
				live = append(live, sb)
				continue
			}
			p.total--
			p.stats.Died++
			p.unended = append(p.unended, sb)
		}
		s.ready = live
		keep := p.want(s)
		if time.Since(s.lastDemand) > p.opts.ShrinkAfter {
			keep = 0
			if s.warmed {
				keep = p.opts.Min
			}
		}
		for len(s.ready) > keep {
			sb := s.ready[len(s.ready)-1]
			s.ready = s.ready[:len(s.ready)-1]
			p.total--
			p.dispose(sb)
		}
		p.fill(s, keep)
		if keep == 0 && len(s.ready) == 0 && s.making == 0 {
			delete(p.shelves, k)
		}
	}
}

// Stats returns what the pool holds and has done.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	for _, s := range p.shelves {
		st.Ready += len(s.ready)
		st.Making += s.making
	}
	return st
}

// Close ends all sandboxes in the pool, and returns when they have ended.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, s := range p.shelves {
		for _, sb := range s.ready {
			p.dispose(sb)
		}
		s.ready = nil
		for _, w := range s.waiters {
			w <- nil
		}
		s.waiters = nil
	}
	p.mu.Unlock()
	p.cancel()
	p.work.Wait()
}
