package session

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// defaultContext is the interpreter of cells that name none.
const defaultContext = "default"

// queue lets the cells of one interpreter through one after the other, in the order in which they came.
type queue struct {
	slot  chan struct{} // holds one value while a cell runs
	users int           // guarded by the session's mu; cells that run or wait
}

// join waits for the turn of a cell. The guest would let them wait as well; here a caller that gives up is gone at once.
func (s *Session) join(ctx context.Context, name string) (leave func(), err error) {
	s.mu.Lock()
	if s.queues == nil {
		s.queues = map[string]*queue{}
	}
	q := s.queues[name]
	if q == nil {
		q = &queue{slot: make(chan struct{}, 1)}
		s.queues[name] = q
	}
	q.users++
	s.mu.Unlock()
	quit := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(s.queues, name)
		}
	}
	select {
	case q.slot <- struct{}{}:
		return func() { <-q.slot; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, cancelled("wait in the queue", ctx.Err())
	case <-s.m.ctx.Done():
		quit()
		return nil, errClosing
	}
}

// count notes a new use. With limited set there must be room among the commands, and output left to produce.
func (s *Session) count(renew, limited bool) error {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(now); err != nil {
		return err
	}
	if limited {
		if err := s.m.journal.Blocked(); err != nil {
			return err
		}
		if n := s.rec.Policy.Commands; s.calls+len(s.background) >= n {
			return &sandbox.Error{Code: CodeQueueFull, Op: "use session", Message: fmt.Sprintf("%d cells and commands run or wait already", n), Remedy: "wait for one to end, or cancel one", Retry: true}
		}
		if s.rec.Output >= s.rec.Policy.Output {
			return &sandbox.Error{Code: CodeLimit, Op: "use session", Message: fmt.Sprintf("the session has produced its %d bytes of output", s.rec.Policy.Output), Remedy: "open another"}
		}
	}
	s.calls++
	if renew {
		s.rec.Used = now
		s.dirty = true
	}
	return nil
}

// uncount ends a use.
func (s *Session) uncount(renew bool, output int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.rec.Output += output
	if renew {
		s.rec.Used = time.Now()
		s.dirty = true
	}
}

// enter gives the sandbox to somebody who must call done. With renew set it is use.
func (s *Session) enter(ctx context.Context, renew bool) (sb *sandbox.Sandbox, done func(), err error) {
	if err := s.made(ctx); err != nil {
		return nil, nil, err
	}
	if err := s.count(renew, false); err != nil {
		return nil, nil, err
	}
	if sb, err = s.ready(ctx); err != nil {
		s.uncount(false, 0)
		return nil, nil, err
	}
	return sb, sync.OnceFunc(func() { s.uncount(renew, 0) }), nil
}

// Cell runs code in one of the session's interpreters, behind the cells that came before it.
func (s *Session) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	begun := time.Now()
	j, err := s.judge(ctx, gate.Request{Language: gate.Python, Code: c.Code})
	var v *sandbox.Verdict
	if err == nil {
		v, err = s.cell(ctx, c)
	}
	s.tell(v)
	j.warn(v)
	s.ran(ctx, "cell", c.Code, j, begun, v, err)
	return v, err
}

func (s *Session) cell(ctx context.Context, c sandbox.Cell) (v *sandbox.Verdict, err error) {
	if err := s.made(ctx); err != nil {
		return nil, err
	}
	if err := s.count(true, true); err != nil {
		return nil, err
	}
	defer func() { s.uncount(true, produced(v)) }()
	name := c.Context
	if name == "" {
		name = defaultContext
	}
	leave, err := s.join(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	sb, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	v, err = sb.Cell(ctx, c)
	return v, s.explain(sb, err)
}

// Run runs a command to its end.
func (s *Session) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	begun := time.Now()
	j, err := s.judgeCommand(ctx, c)
	var v *sandbox.Verdict
	if err == nil {
		v, err = s.run(ctx, c)
	}
	s.tell(v)
	j.warn(v)
	s.ran(ctx, "command", line(c), j, begun, v, err)
	return v, err
}

func (s *Session) run(ctx context.Context, c sandbox.Command) (v *sandbox.Verdict, err error) {
	if err := s.made(ctx); err != nil {
		return nil, err
	}
	if err := s.count(true, true); err != nil {
		return nil, err
	}
	defer func() { s.uncount(true, produced(v)) }()
	sb, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	v, err = sb.Run(ctx, c)
	return v, s.explain(sb, err)
}

// Start runs a command in the background and gives its id. It is use for as long as it runs.
func (s *Session) Start(ctx context.Context, c sandbox.Command) (string, error) {
	begun := time.Now()
	j, err := s.judgeCommand(ctx, c)
	var id string
	if err == nil {
		id, err = s.start(ctx, c, origin{actor: actor(ctx), detail: line(c), gate: j.action})
	}
	s.audit(ctx, Entry{Time: begun, Action: actionStart, Detail: line(c), Op: id, Gate: j.action, Error: errorCode(err), Duration: time.Since(begun)})
	return id, err
}

func (s *Session) start(ctx context.Context, c sandbox.Command, from origin) (string, error) {
	if err := s.made(ctx); err != nil {
		return "", err
	}
	if err := s.count(true, true); err != nil {
		return "", err
	}
	defer s.uncount(true, 0)
	sb, err := s.ready(ctx)
	if err != nil {
		return "", err
	}
	id, err := sb.Start(ctx, c)
	if err != nil {
		return "", s.explain(sb, err)
	}
	s.mu.Lock()
	s.track(sb, id, from)
	s.mu.Unlock()
	return id, nil
}

// running asks which operations run in a sandbox that was just found, woken or restored.
func (s *Session) running(sb *sandbox.Sandbox) ([]sandbox.Operation, error) {
	ctx, cancel := context.WithTimeout(s.m.ctx, s.m.opts.pingWait)
	defer cancel()
	ops, err := sb.Operations(ctx)
	return slices.DeleteFunc(ops, func(o sandbox.Operation) bool { return !o.Running }), err
}

// trackFound follows operations that were found running in a sandbox.
//
// Preconditions: s.mu is held.
func (s *Session) trackFound(sb *sandbox.Sandbox, running []sandbox.Operation) {
	for _, o := range running {
		s.track(sb, o.ID, origin{detail: o.Command, found: true})
	}
}

// learn finds out what runs in a sandbox that answers, where that is not known. Callers are kept from it meanwhile, so that none of theirs is
// taken for one without a caller; while there are some, the next look at its health finds out.
//
// Preconditions: the turn is taken.
func (s *Session) learn(sb *sandbox.Sandbox) {
	s.mu.Lock()
	if !s.attachment.isUnverified() || s.calls > 0 {
		s.mu.Unlock()
		return
	}
	s.attachment.reserve()
	s.mu.Unlock()
	running, err := s.running(sb)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trackFound(sb, running)
	s.attachment.answered(err)
	s.attachment.release()
}

// track counts a background command as use until it ends.
//
// Preconditions: mu is held.
func (s *Session) track(sb *sandbox.Sandbox, id string, from origin) {
	if !s.attachment.has(sb) || s.background[id] == sb {
		return
	}
	if s.background == nil {
		s.background = map[string]*sandbox.Sandbox{}
	}
	if s.m.begin(func() { s.follow(sb, id, from) }) {
		s.background[id] = sb
	}
}

// farEnd is behind every output: whoever follows from there waits for the verdict alone.
const farEnd = math.MaxInt64

// follow waits for the end of a background command. It asks for no output.
func (s *Session) follow(sb *sandbox.Sandbox, id string, from origin) {
	v, err := sb.Follow(s.m.ctx, id, sandbox.FollowOptions{StdoutOffset: farEnd, StderrOffset: farEnd})
	err = s.explain(sb, err) // not told to anybody, but the sandbox is looked at
	s.mu.Lock()
	if s.background[id] == sb {
		delete(s.background, id)
	}
	ended := err == nil && v != nil
	if !ended && s.attachment.has(sb) && sandbox.CodeOf(err) != sandbox.CodeNotFound { // somebody may have had it forgotten; otherwise it may run on
		s.attachment.doubt()
	}
	if ended {
		s.rec.Used, s.dirty = time.Now(), true
		s.rec.Output += produced(v)
	}
	s.mu.Unlock()
	if ended {
		s.ranBehind(context.WithoutCancel(s.m.ctx), from, v)
	}
}

func produced(v *sandbox.Verdict) int64 {
	if v == nil {
		return 0
	}
	return v.Stdout.Produced + v.Stderr.Produced
}

// line gives a command as a person would write it.
func line(c sandbox.Command) string {
	if c.Shell != "" {
		return c.Shell
	}
	return strings.Join(c.Args, " ")
}

// The keys of a verdict's metadata that tell of a state that went back.
const (
	MetaStateFrom = "recluse.state_from" // the moment the state is from, RFC 3339
	MetaRestored  = "recluse.restored"   // how often the session was restored so far
)

// tell puts into the first verdict after a restore that the state went back.
func (s *Session) tell(v *sandbox.Verdict) {
	if v == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.StateFrom == nil {
		return
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	v.Metadata[MetaStateFrom] = s.rec.StateFrom.UTC().Format(time.RFC3339Nano)
	v.Metadata[MetaRestored] = fmt.Sprint(s.rec.Restored)
	s.rec.StateFrom, s.dirty = nil, true
}
