// Package pool keeps warm sandboxes ready, so that making one takes milliseconds.
//
// A pool holds sandboxes that nobody has used: each is given out once and never
// taken back. Sandboxes are kept per spec, because what was asked for at their birth cannot be
// changed later. A spec with an environment, labels or a host name is one caller's own: it is never
// kept here, and Get makes its sandbox on demand.
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

// Timing of the pool's own work.
const (
	// tick is how often shelves are looked over for sandboxes that have died or are no longer needed.
	tick = 5 * time.Second
	// retryAfter is how long a shelf rests after a sandbox could not be made.
	retryAfter = 2 * time.Second
	// refillAfter is how long a shelf that is not empty waits before it is filled up.
	refillAfter = 25 * time.Millisecond
	// makers is how many sandboxes are made at once; more only make each slower.
	makers = 2
	// promises is how many callers wait for sandboxes that are being made. Whoever comes after them would wait longer than making one takes.
	promises = 2 * makers
	// burstTime is the time in which callers who find a shelf empty are one burst.
	burstTime = 10 * time.Second
)

// Options sizes a pool. Zero fields take their defaults.
type Options struct {
	Min    int // kept however long nobody asks
	Target int // kept while there is demand, or as many as callers found missing in the last burst
	Max    int // of all shelves together, being made included
	// ShrinkAfter is how long after the last demand a shelf goes back to Min, and one that was
	// never asked for by Warm to nothing. It is also how long after a burst a shelf is ready for the next one.
	ShrinkAfter time.Duration
	// Wait is how long Get waits for a sandbox that is being made before it makes one itself.
	Wait time.Duration
	// Labels and Persist are given to every sandbox that the pool makes, also on demand, so that whoever finds them after a crash
	// knows whose they were.
	Labels  map[string]string
	Persist bool
}

// Stats counts what a pool has done.
type Stats struct {
	Ready  int   `json:"ready"`
	Making int   `json:"making"`
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"` // made on demand, because none was ready in time
	Died   int64 `json:"died"`   // ended while they waited
	Failed int64 `json:"failed"` // could not be made
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
	total   int                 // guarded by mu; ready and being made
	stats   Stats               // guarded by mu
	closed  bool                // guarded by mu
	unended []*sandbox.Sandbox  // guarded by mu; their backend could not end them yet
	cold    int                 // guarded by mu; being made on demand
}

// shelf is the sandboxes of one spec. Its fields are guarded by the pool's mu.
type shelf struct {
	spec    sandbox.Spec
	ready   []*sandbox.Sandbox
	making  int
	wanted  time.Time // last demand
	resting time.Time // no making before this
	kept    bool      // Warm asked for it: Min stays
	waiters []chan *sandbox.Sandbox
	burst   time.Time // beginning of the last burst: of callers who found nothing ready
	missing int       // callers of that burst
}

// New makes an empty pool. Close it.
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
	p := &Pool{backend: b, opts: opts, ctx: ctx, cancel: cancel, slots: make(chan struct{}, makers), shelves: map[[32]byte]*shelf{}}
	p.work.Go(p.tend)
	return p
}

// key tells shelves apart: by everything, so that nobody gets what was made for a different spec.
func key(s sandbox.Spec) [32]byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain data, but for a NaN that Check has refused
	}
	return sha256.Sum256(b)
}

// poolable says whether a ready sandbox can stand in for a new one of this spec. An environment, labels or a name
// belong to one caller, and have to be there before the interpreter starts.
func poolable(s sandbox.Spec) bool { return len(s.Env) == 0 && s.Hostname == "" && len(s.Labels) == 0 }

// Warm fills the shelf of a spec and keeps it filled, and returns when Min sandboxes are ready. It refuses specs with an
// environment, labels or a host name, and does not wait for room that other shelves hold: the error is then busy.
func (p *Pool) Warm(ctx context.Context, spec sandbox.Spec) error {
	spec = spec.WithDefaults()
	if err := spec.Check(); err != nil {
		return err
	}
	if !poolable(spec) {
		return &v1.Error{
			Code: v1.CodeInvalidRequest, Op: "warm pool", Message: "a spec with an environment, labels or a host name cannot be kept ready",
			Remedy: "warm the spec without them, and give the environment with each command",
		}
	}
	least := min(p.opts.Min, p.opts.Max)
	for {
		p.mu.Lock()
		s := p.shelf(spec)
		s.wanted = time.Now()
		p.fill(s, p.want(s))
		done, resting, closed := len(s.ready) >= least, time.Until(s.resting), p.closed
		full := len(s.ready)+s.making < least && p.total >= p.opts.Max
		if done {
			s.kept = true
		}
		p.mu.Unlock()
		if done {
			return nil
		}
		if closed {
			return errClosed
		}
		if resting > 0 {
			return &v1.Error{Code: v1.CodeStartFailed, Op: "warm pool", Message: "sandboxes of this spec cannot be made now", Retry: true}
		}
		if full {
			return &v1.Error{
				Code: v1.CodeBusy, Op: "warm pool", Message: fmt.Sprintf("the pool's %d sandboxes are of other specs", p.opts.Max),
				Remedy: "raise Options.Max, or try again when the others have been taken", Retry: true,
			}
		}
		select {
		case <-ctx.Done():
			return &v1.Error{Code: v1.CodeCancelled, Op: "warm pool", Message: "given up", Err: ctx.Err()}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

var errClosed = &v1.Error{Code: v1.CodeInvalidRequest, Op: "use pool", Message: "the pool is closed"}

// Get gives a sandbox that nobody has used. It is the caller's alone, who must Close it.
func (p *Pool) Get(ctx context.Context, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	spec = spec.WithDefaults()
	if err := spec.Check(); err != nil {
		return nil, err
	}
	if !poolable(spec) {
		return sandbox.Open(ctx, p.backend, p.marked(spec))
	}
	wait := make(chan *sandbox.Sandbox, 1)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	s := p.shelf(spec)
	s.wanted = time.Now()
	if sb := p.take(s); sb != nil {
		p.stats.Hits++
		p.fill(s, p.want(s))
		p.mu.Unlock()
		return sb, nil
	}
	if s.wanted.Sub(s.burst) > burstTime {
		s.burst, s.missing = s.wanted, 0
	}
	s.missing++
	p.fill(s, p.want(s))
	// Only as many wait as are being made; the rest would wait for nothing.
	promised := len(s.waiters) < min(s.making, promises)
	if promised {
		s.waiters = append(s.waiters, wait)
	}
	p.mu.Unlock()

	if promised {
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
			return nil, &v1.Error{Code: v1.CodeCancelled, Op: "get sandbox", Message: "given up", Err: err}
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
	return sandbox.Open(ctx, p.backend, p.marked(spec))
}

// want is how many sandboxes of a shelf are to be ready while there is demand. A burst leaves room for another shelf.
//
// Preconditions: mu is held.
func (p *Pool) want(s *shelf) int {
	if time.Since(s.burst) > p.opts.ShrinkAfter {
		return p.opts.Target
	}
	return max(p.opts.Target, min(s.missing, p.opts.Max-p.opts.Target))
}

// marked gives a spec with the pool's own labels beside the caller's, which win.
func (p *Pool) marked(spec sandbox.Spec) sandbox.Spec {
	labels := maps.Clone(p.opts.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, spec.Labels)
	spec.Labels, spec.Persist = labels, spec.Persist || p.opts.Persist
	return spec
}

// leave takes a waiter out of the queue. It may have been served in the meantime.
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

// shelf gives the shelf of a spec.
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

// take gives a ready sandbox that is still alive, or nil.
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

func alive(sb *sandbox.Sandbox) bool {
	select {
	case <-sb.Gone():
		return false
	default:
		return true
	}
}

// dispose ends a sandbox in the background. One that cannot be ended, because the backend's service is away, is tried again.
func (p *Pool) dispose(sb *sandbox.Sandbox) {
	p.work.Go(func() { p.end(sb) })
}

// end ends a sandbox that nobody has used, and reports whether it has gone.
func (p *Pool) end(sb *sandbox.Sandbox) bool {
	err := sb.Close()
	if err != nil {
		p.mu.Lock()
		p.unended = append(p.unended, sb)
		p.mu.Unlock()
	}
	return err == nil
}

// Sweep looks the shelves over and removes what is left of sandboxes that have died, or could not be ended before. It returns how many it
// removed.
func (p *Pool) Sweep() int {
	p.mu.Lock()
	p.look()
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

// fill starts making what is missing from want.
//
// Preconditions: mu is held.
func (p *Pool) fill(s *shelf, want int) {
	if p.closed || time.Now().Before(s.resting) {
		return
	}
	for len(s.ready)+s.making < want && p.total < p.opts.Max {
		s.making++
		p.total++
		p.work.Go(func() { p.make(s) })
	}
}

// rest leaves the processors to whoever has just taken a sandbox, and to those that are being made on demand, unless somebody waits for the next one.
func (p *Pool) rest(s *shelf) {
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
	p.rest(s)
	select {
	case p.slots <- struct{}{}:
		sb, err = sandbox.Open(p.ctx, p.backend, p.marked(s.spec))
		if err == nil {
			// Where there is no Python there is less to warm, and that is fine.
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
		s.resting = time.Now().Add(retryAfter)
		// Whoever waits for it makes its own, and so learns the reason.
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

// tend looks the shelves over now and then.
func (p *Pool) tend() {
	t := time.NewTicker(min(tick, p.opts.ShrinkAfter))
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

// look drops dead sandboxes from the shelves, and makes or ends others as demand has changed.
//
// Preconditions: mu is held.
func (p *Pool) look() {
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
		if time.Since(s.wanted) > p.opts.ShrinkAfter {
			keep = 0
			if s.kept {
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

// Stats tells what the pool holds and has done.
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

// Close ends every sandbox that nobody has taken, and returns when they have gone.
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
