package session

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// Session is a live session. It stays usable while its sandbox is hibernated, lost and restored, or forked.
//
// Three things keep order in it. mu guards its fields and is held for moments only. turn is held by whoever changes its sandbox: makes,
// finds, writes to disk, restores or ends it. calls counts who uses the sandbox; the sandbox is only taken away from under them by an
// end, a restore or its own death.
type Session struct {
	m   *Manager
	id  string
	key Key

	making   chan struct{} // closed when it is made, or never will be; see makeErr
	freed    chan struct{} // closed when it no longer holds its key
	disposed chan struct{} // closed when nothing of it is left
	turn     chan struct{} // holds one value while somebody changes the sandbox
	saveMu   sync.Mutex    // held while the record is written; taken before mu
	namingMu sync.Mutex    // held while a snapshot is taken and named; taken before the turn
	countMu  sync.Mutex    // held while its snapshots are counted; taken before mu

	mu         sync.Mutex
	makeErr    error                       // guarded by mu; why it could not be made
	rec        record                      // guarded by mu
	dirty      bool                        // guarded by mu; rec differs from the store's in what may be written later
	sb         *sandbox.Sandbox            // guarded by mu; nil: not attached
	frozen     bool                        // guarded by mu; the sandbox is about to be taken away: wait for the turn
	left       string                      // guarded by mu; the sandbox that the session left last by itself, to sleep or to be restored
	reviving   bool                        // guarded by mu; lost, and being restored
	unsure     bool                        // guarded by mu; its backend could not be asked for it when the manager started
	parted     time.Time                   // guarded by mu; when the sandbox was let go of because it could not be reached
	unheard    bool                        // guarded by mu; what runs in the sandbox is not known, and somebody is to find out
	unlearned  int                         // guarded by mu; how often in a row a sandbox that answers has not told it
	away       error                       // guarded by mu; why its backend cannot restore it yet
	calls      int                         // guarded by mu; cells, commands, transfers
	background map[string]*sandbox.Sandbox // guarded by mu; commands that run without a caller, and where: a copy has the same ids
	restAt     time.Time                   // guarded by mu; no idle action before this, because the last one failed
	named      int                         // guarded by mu; snapshots
	handler    sandbox.HostFunc            // guarded by mu
	changed    chan struct{}               // guarded by mu; closed and replaced when the state changes
	queues     map[string]*queue           // guarded by mu; cells of one context run one after the other
	told       bool                        // guarded by mu; that its state went back
	missed     int                         // guarded by mu; pings in a row that its sandbox did not answer

	events events
}

func (m *Manager) newSession(r record) *Session {
	s := &Session{
		m: m, id: r.ID, key: r.Key, rec: r, making: make(chan struct{}), freed: make(chan struct{}), disposed: make(chan struct{}),
		turn: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	s.told = r.StateFrom == nil
	return s
}

// ID names the session for ever, unlike its key.
func (s *Session) ID() string { return s.id }

// Key is what it was opened by.
func (s *Session) Key() Key { return s.key }

// Info tells what is known of the session. Looking is not use.
func (s *Session) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.rec.info()
	i.Running = s.calls + len(s.background)
	i.Snapshots = s.named
	i.Gate = string(gate.EffectiveMode(s.m.opts.Gate, gate.Mode(i.Gate)))
	if i.State == Ready && i.Running > 0 {
		i.State, i.Reason = Executing, "a command runs in the background"
		if s.calls > 0 {
			i.Reason = "a cell, a command or a transfer is under way"
		}
	}
	return i
}

// info gives what the record alone tells.
func (r *record) info() Info {
	i := Info{
		ID: r.ID, Key: r.Key, State: r.State, Reason: r.Reason, Backend: r.Backend, Sandbox: r.Sandbox, Spec: r.Spec, Policy: r.Policy, Gate: r.Gate, Role: r.Role,
		Created: r.Created, Used: r.Used, Extended: r.Extended, Restored: r.Restored, StateFrom: r.StateFrom, Output: r.Output, Incidents: r.Incidents,
	}
	if !r.State.Live() {
		ended := r.Ended
		i.Ended = &ended
		return i
	}
	if t, ok := r.expires(); ok {
		i.Expires = &t
	}
	if t, ok := r.idleAt(); ok {
		i.IdleAt = &t
	}
	return i
}

// become changes the state, if the table allows it, and tells whoever waits for that.
//
// Preconditions: mu is held.
func (s *Session) become(next State, reason string) bool {
	if s.rec.State != next && !s.rec.State.To(next) {
		return false
	}
	if s.rec.State != next {
		s.m.counts.add(next)
	}
	s.rec.State, s.rec.Reason = next, reason
	if next != Hibernated {
		s.rec.Asleep = nil
	}
	s.dirty = true
	s.emit(Event{Kind: "state", State: next, Reason: reason}, true)
	s.wakeWaiters()
	return true
}

// wakeWaiters lets whoever waits for a change look again.
//
// Preconditions: mu is held.
func (s *Session) wakeWaiters() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// refusal says why the session cannot be used now, or nil.
//
// Preconditions: mu is held.
func (s *Session) refusal(now time.Time) error {
	fail := func(code sandbox.Code, text, remedy string) error {
		return &sandbox.Error{Code: code, Op: "use session", Message: "session \"" + s.key.Name + "\" " + text, Remedy: remedy}
	}
	switch s.rec.State {
	case Ended:
		return fail(CodeEnded, "has ended: "+s.rec.Reason, "open it anew")
	case Expired:
		return expired(s.key, s.rec.Reason)
	case Paused:
		return fail(CodePaused, "is paused", "resume it")
	case Lost:
		if !s.reviving {
			return fail(CodeLost, "is lost: "+s.rec.Reason, "end it and open it anew, or restore one of its snapshots")
		}
		if s.away != nil {
			return s.away
		}
	}
	// Its time is up, and only what runs in it keeps it alive.
	if t, ok := s.rec.expires(); ok && !now.Before(t) {
		return expired(s.key, "its lifetime is over, and it ends with what still runs in it")
	}
	return nil
}

// take waits for the turn to change the sandbox.
func (s *Session) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.freed:
		return s.living() // whoever removes what is left of it keeps the turn
	case <-ctx.Done():
		return cancelled("wait for session", ctx.Err())
	case <-s.m.ctx.Done():
		return errClosing
	}
}

func (s *Session) give() { <-s.turn }

// ready gives the sandbox, and brings it back if it is asleep, lost or not attached.
func (s *Session) ready(ctx context.Context) (*sandbox.Sandbox, error) {
	for {
		s.mu.Lock()
		if err := s.refusal(time.Now()); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		sb, changed := s.sb, s.changed
		if sb != nil && !s.frozen && alive(sb) {
			s.mu.Unlock()
			return sb, nil
		}
		// Whoever watches the sandbox is about to find it gone, or has.
		waiting := s.reviving || sb != nil && !s.frozen
		s.mu.Unlock()
		if !waiting {
			if err := s.bring(ctx); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, cancelled("wait for session", ctx.Err())
		case <-s.m.ctx.Done():
			return nil, errClosing
		}
	}
}

func alive(sb *sandbox.Sandbox) bool {
	select {
	case <-sb.Gone():
		return false
	default:
		return true
	}
}

// bring attaches the sandbox of a session that has none attached.
func (s *Session) bring(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	s.mu.Lock()
	sb, state, id := s.sb, s.rec.State, s.rec.Sandbox
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // others wait for it too
	switch {
	case sb != nil || !state.Live() || state == Paused || state == Lost:
		return nil // somebody was faster
	case state == Hibernated:
		return s.wake(ctx)
	case id != "":
		return s.attach(ctx, id)
	}
	return &sandbox.Error{Code: sandbox.CodeInternal, Op: "use session", Message: "the session has no sandbox"}
}

// attach finds the sandbox again that an earlier manager has left.
//
// Preconditions: the turn is taken.
func (s *Session) attach(ctx context.Context, id string) error {
	b, err := s.backend()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, makeWait)
	defer cancel()
	defer context.AfterFunc(s.m.ctx, cancel)() // an engine that stalls does not keep a manager from closing
	sb, err := attach(ctx, b, id)
	if err == nil {
		s.adopt(sb, true, nil)
		return nil
	}
	if s.m.ctx.Err() != nil {
		return errClosing
	}
	if !gone(err) {
		return err
	}
	if asleep, err := s.findAsleep(ctx, b); asleep || err != nil {
		return err
	}
	s.mu.Lock()
	s.lose(err)
	s.mu.Unlock()
	s.m.begin(func() { s.revive(b, id) })
	return nil
}

// backend gives the session's own.
func (s *Session) backend() (sandbox.Backend, error) {
	s.mu.Lock()
	name := s.rec.Backend
	s.mu.Unlock()
	b := s.m.known(name)
	if b == nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeBackendUnknown, Op: "use session", Message: "the session lives on backend " + name + ", which is not configured",
			Remedy: "start with that backend",
		}
	}
	return b, nil
}

// adopt makes a sandbox the session's, and in the same moment what else change does. With used set it may have operations that run; they
// are asked for before anybody else can start one, so that no caller's own is taken for one without a caller.
func (s *Session) adopt(sb *sandbox.Sandbox, used bool, change func()) {
	var running []sandbox.Operation
	var err error
	if used {
		running, err = s.running(sb)
	}
	s.mu.Lock()
	sb.OnHostCall(s.handler)
	if s.rec.Sandbox != sb.ID() {
		s.rec.Incidents = nil // they were another one's
	}
	s.sb, s.rec.Sandbox, s.frozen, s.unsure, s.missed = sb, sb.ID(), false, false, 0
	s.dirty = true
	if change != nil {
		change()
	}
	s.hear(sb, running, err)
	s.wakeWaiters()
	s.mu.Unlock()
	sb.OnIncident(func(i sandbox.Incident) { s.notice(sb, i) })
	s.m.begin(func() { s.watch(sb) })
}

// OnHostCall sets what answers recluse.call in the session, also after it was hibernated or restored.
func (s *Session) OnHostCall(f sandbox.HostFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = f
	if s.sb != nil {
		s.sb.OnHostCall(f)
	}
}

// Operations lists what runs and what has ended lately; of a session that sleeps, what did when it fell asleep. Looking is not use.
func (s *Session) Operations(ctx context.Context) ([]sandbox.Operation, error) {
	return look(ctx, s, func(g *glance) []sandbox.Operation { return slices.Clone(g.Operations) }, (*sandbox.Sandbox).Operations)
}

// Operation gives one of them. A session that sleeps is woken for one that it had forgotten to note.
func (s *Session) Operation(ctx context.Context, id string) (sandbox.Operation, error) {
	is := func(o sandbox.Operation) bool { return o.ID == id }
	ops, err := s.Operations(ctx)
	if g := s.seen(); err == nil && g != nil && g.Shortened && !slices.ContainsFunc(ops, is) {
		ops, err = ask(ctx, s, (*sandbox.Sandbox).Operations)
	}
	if err != nil {
		return sandbox.Operation{}, err
	}
	if i := slices.IndexFunc(ops, is); i >= 0 {
		return ops[i], nil
	}
	return sandbox.Operation{}, &sandbox.Error{Code: sandbox.CodeNotFound, Op: "find operation", Message: "there is no such operation"}
}

// Contexts lists the live interpreters. Looking is not use.
func (s *Session) Contexts(ctx context.Context) ([]sandbox.Context, error) {
	return look(ctx, s, func(g *glance) []sandbox.Context { return slices.Clone(g.Contexts) }, (*sandbox.Sandbox).Contexts)
}

// Guest tells what the inside looks like. Looking is not use.
func (s *Session) Guest(ctx context.Context) (*sandbox.Guest, error) {
	return look(ctx, s, func(g *glance) *sandbox.Guest { return new(*g.Guest) }, (*sandbox.Sandbox).Guest)
}

// look asks the sandbox without using it. One that sleeps is not woken for that: what was seen when it fell asleep is still so.
func look[T any](ctx context.Context, s *Session, asleep func(*glance) T, f func(*sandbox.Sandbox, context.Context) (T, error)) (out T, err error) {
	if g := s.seen(); g != nil {
		return asleep(g), nil
	}
	return ask(ctx, s, f)
}

// ask asks the sandbox without using it, and wakes it.
func ask[T any](ctx context.Context, s *Session, f func(*sandbox.Sandbox, context.Context) (T, error)) (out T, err error) {
	sb, done, err := s.enter(ctx, false)
	if err != nil {
		return out, err
	}
	defer done()
	out, err = f(sb, ctx)
	return out, s.explain(sb, err)
}

// Signal sends a signal to an operation's main process, or with tree to everything it started.
func (s *Session) Signal(ctx context.Context, id string, sig syscall.Signal, tree bool) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Signal(ctx, id, sig, tree) })
}

// Cancel ends an operation and everything it started.
func (s *Session) Cancel(ctx context.Context, id string) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Cancel(ctx, id) })
}

// Forget drops an ended operation and its output.
func (s *Session) Forget(ctx context.Context, id string) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Forget(ctx, id) })
}

// CloseContext ends an interpreter and everything its cells left running.
func (s *Session) CloseContext(ctx context.Context, name string) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.CloseContext(ctx, name) })
}

// act does something short that is use. It is not held up by the limit of commands, because it may be what makes room.
func (s *Session) act(ctx context.Context, f func(*sandbox.Sandbox) error) error {
	sb, done, err := s.enter(ctx, true)
	if err != nil {
		return err
	}
	defer done()
	return s.explain(sb, f(sb))
}

// Follow gives an operation's output from absolute offsets on, and its verdict once it has ended. Following is looking: where the session is
// put to sleep or restored meanwhile, the error is [CodeMoved].
func (s *Session) Follow(ctx context.Context, id string, o sandbox.FollowOptions) (*sandbox.Verdict, error) {
	sb, done, err := s.enter(ctx, false)
	if err != nil {
		return nil, err
	}
	done() // what runs is use by itself, and a listener must not keep a session from sleeping
	v, err := sb.Follow(ctx, id, o)
	return v, s.explain(sb, err)
}

// Files gives access to the files; release says that the caller is done with them, until then they count as use.
func (s *Session) Files(ctx context.Context) (f *sandbox.Files, release func(), err error) {
	return s.files(ctx, true)
}

// LookAtFiles is Files for somebody who only reads: the session stays until release, and its idle time is as it was.
func (s *Session) LookAtFiles(ctx context.Context) (f *sandbox.Files, release func(), err error) {
	return s.files(ctx, false)
}

func (s *Session) files(ctx context.Context, use bool) (f *sandbox.Files, release func(), err error) {
	sb, done, err := s.enter(ctx, use)
	if err != nil {
		return nil, nil, err
	}
	return sb.Files(), done, nil
}

// Watch tells of changes below a path, within root if that is not empty, until ctx ends, fn gives an error, or the sandbox is no longer
// there: the session has ended, was put to sleep or restored, or the sandbox is lost, which the error tells apart. Watching is looking.
func (s *Session) Watch(ctx context.Context, root, name string, recursive bool, fn func(sandbox.FileEvent) error) error {
	sb, done, err := s.enter(ctx, false)
	if err != nil {
		return err
	}
	done() // a watcher must not keep a session from sleeping
	f := sb.Files()
	if root != "" {
		f = f.Below(root)
	}
	return s.explain(sb, f.Watch(ctx, name, recursive, fn))
}

// longestExtension is what a policy without a bound allows at once: more than anybody needs, and few enough nanoseconds to add up.
const longestExtension = 10 * 365 * 24 * time.Hour

// Extend gives the session more time, 0: as much as its policy allows at once, or DefaultExtension where that has no bound.
func (s *Session) Extend(ctx context.Context, by time.Duration) (Info, error) {
	s.mu.Lock()
	p := s.rec.Policy
	if by == 0 {
		by = p.Extension
		if by == None {
			by = DefaultExtension
		}
	}
	err := s.extendable(by)
	counts := err == nil && p.TTL != None
	if counts {
		s.rec.Extended++
		s.rec.ExtendedBy += by
	}
	s.mu.Unlock()
	if err == nil {
		err = s.save(ctx)
	}
	if counts {
		s.extended(by, err)
	}
	s.audit(ctx, Entry{Action: "extend", Detail: by.String(), Error: errorCode(err)})
	return s.Info(), err
}

// extended tells of more time, or takes it back if it could not be promised.
func (s *Session) extended(by time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.rec.Extended--
		s.rec.ExtendedBy -= by
		return
	}
	s.emit(Event{Kind: "extended", Attrs: map[string]string{"by": by.String()}}, true)
}

// extendable says why a lifetime cannot be extended, or nil.
//
// Preconditions: mu is held.
func (s *Session) extendable(by time.Duration) error {
	p := s.rec.Policy
	if !s.rec.State.Live() {
		return s.refusal(time.Now())
	}
	most := p.Extension
	if most == None {
		most = longestExtension
	}
	if by <= 0 || by > most {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "extend session", Message: by.String() + " is out of range", Remedy: "more than 0, and at most " + most.String() + " at once"}
	}
	if p.TTL != None && s.rec.Extended >= max(0, p.Extensions) {
		return &sandbox.Error{Code: CodeNoExtension, Op: "extend session", Message: "it was extended as often as it may be", Remedy: "take a snapshot and open a new session from it"}
	}
	return nil
}

// explain turns an error of the sandbox into one of the session, and has a sandbox looked at that does not answer.
func (s *Session) explain(sb *sandbox.Sandbox, err error) error {
	if err == nil {
		return nil
	}
	code := sandbox.CodeOf(err)
	if code != sandbox.CodeSandboxLost && code != sandbox.CodeGuestLost {
		return err
	}
	if s.m.ctx.Err() != nil {
		return errClosing
	}
	s.mu.Lock()
	refused := s.rec.State == Ended || s.rec.State == Expired
	switch {
	case refused:
		err = s.refusal(time.Now())
	case s.left == sb.ID():
		err = &sandbox.Error{Code: CodeMoved, Op: "use session", Message: "session \"" + s.key.Name + "\" has left the sandbox: it was put to sleep, or restored", Remedy: "ask again", Retry: true}
	}
	look := !refused && code == sandbox.CodeGuestLost && s.sb == sb
	if look { // what the caller had started may run on
		s.unheard = true
	}
	s.mu.Unlock()
	if look {
		s.m.begin(func() { s.suspect(sb) })
	}
	return err
}

func errorCode(err error) string { return string(sandbox.CodeOf(err)) }

func unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }

// Share shows a regular file of the host inside, read-only, and gives its path there. It stays shown when the session is hibernated,
// restored or forked.
func (s *Session) Share(ctx context.Context, file, name string) (string, error) {
	sb, done, err := s.enter(ctx, true)
	if err != nil {
		return "", err
	}
	defer done()
	inside, err := sb.Share(ctx, file, name)
	s.audit(ctx, Entry{Action: "share", Detail: file, Error: errorCode(err)})
	return inside, s.explain(sb, err)
}
