package docker

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// machine is one attachment to a sandbox.
type machine struct {
	record
	backend *Backend
	token   []byte
	stream  *stream
	forget  context.CancelFunc // ends the watch
	cut     atomic.Bool        // the stream has ended by itself
	gone    chan struct{}

	incidents incidents

	mu      sync.Mutex
	over    bool      // guarded by mu; gone is closed
	stopped bool      // guarded by mu; its end is what was asked for
	resting bool      // guarded by mu; we have paused it ourselves
	cause   error     // guarded by mu
	oom     time.Time // guarded by mu; when a process of it was killed for memory last
	killed  string    // guarded by mu; signal that somebody had the engine send
}

func (m *machine) ID() string                 { return m.record.ID }
func (m *machine) Spec() sandbox.Spec         { return m.record.Spec }
func (m *machine) Stream() io.ReadWriteCloser { return m.stream }
func (m *machine) Token() []byte              { return m.token }
func (m *machine) Generation() string         { return m.record.Generation }
func (m *machine) Gone() <-chan struct{}      { return m.gone }

// MemoryKills is not known here: the guest reads the kernel's count inside, where it is exact.
func (m *machine) MemoryKills() (uint64, bool) { return 0, false }

func (m *machine) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

func (m *machine) stopping() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
}

// rest says that the container is, or no longer is, paused by our own will.
func (m *machine) rest(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resting = on
}

func (m *machine) rests() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resting
}

// end says that the sandbox has gone, and why. Calls that wait for an answer end as well: a paused guest would give none.
func (m *machine) end(cause error) {
	m.mu.Lock()
	over := m.over
	if !over {
		m.over = true
		if !m.stopped {
			m.cause = cause
		}
		close(m.gone)
	}
	m.mu.Unlock()
	if !over && m.stream != nil {
		_ = m.stream.Close() // never fails
	}
}

// unknownSignal stands for one that the engine does not tell.
const unknownSignal = "?"

// news is a stream of what the engine tells about a container.
type news struct {
	client.EventsResult
	stop context.CancelFunc
}

// subscribe asks the engine for news about a container. When it returns, nothing that happens from then on is missed.
func (b *Backend) subscribe(ctx context.Context, container string) news {
	ctx, stop := context.WithCancel(ctx)
	f := client.Filters{}.Add("type", string(events.ContainerEventType)).Add("container", container)
	return news{b.cli.Events(ctx, client.EventsListOptions{Filters: f}), stop}
}

// lookout is a subscription that begins before a sandbox can end, and goes on for as long as somebody wants to know.
type lookout struct {
	ctx    context.Context
	forget context.CancelFunc
	first  news
}

func (b *Backend) lookout(container string) lookout {
	ctx, forget := context.WithCancel(b.ctx)
	return lookout{ctx, forget, b.subscribe(ctx, container)}
}

// watch follows the news until the sandbox has gone or nobody wants to know any more.
func (m *machine) watch(ctx context.Context, n news) {
	defer func() { n.stop() }()
	failures := 0
	for {
		select {
		case e := <-n.Messages:
			failures = 0
			if m.hear(ctx, n, e) {
				return
			}
		case err := <-n.Err:
			if ctx.Err() != nil {
				return
			}
			if failures++; failures > engineTries {
				m.end(&sandbox.Error{
					Code: CodeEngineLost, Message: "the Docker engine no longer answers", Retry: true, Err: err,
					Remedy: "start it again; if the container still runs then, attach again",
				})
				return
			}
			n.stop()
			select {
			case <-ctx.Done():
				return
			case <-time.After(enginePause):
			}
			n = m.backend.subscribe(ctx, m.Container)
			gone, answered := m.look(ctx)
			if gone {
				return
			}
			if answered {
				failures = 0 // the stream was dropped, as happens in a long life, and the engine is there
			}
		}
	}
}

// look asks what has become of the container, for news that were missed, and says whether the engine answered.
func (m *machine) look(ctx context.Context) (gone, answered bool) {
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	if missing(err) {
		m.end(removed())
		return true, true
	}
	if err != nil {
		return false, false // the news fail as well, and are counted
	}
	st := res.Container.State
	switch {
	case st.Paused && !m.rests():
		m.end(paused())
	case !st.Running:
		m.end(m.obituary(st, time.Now()))
	default:
		m.called(res.Container.Name)
		return false, true
	}
	return true, true
}

// hear takes one piece of news and reports whether it was the last.
func (m *machine) hear(ctx context.Context, n news, e events.Message) (gone bool) {
	switch e.Action {
	case events.ActionOOM:
		m.mu.Lock()
		m.oom = time.Now()
		m.mu.Unlock()
	case events.ActionKill:
		m.mu.Lock()
		m.killed = cmp.Or(e.Actor.Attributes["signal"], unknownSignal)
		m.mu.Unlock()
	case events.ActionStop, events.ActionRestart: // before the end with Podman alone
		m.mu.Lock()
		m.killed = cmp.Or(m.killed, unknownSignal)
		m.mu.Unlock()
	case events.ActionPause:
		if m.rests() {
			return false
		}
		m.end(paused())
		return true
	case events.ActionRename:
		m.renamed(ctx)
	case events.ActionDestroy, eventRemove:
		m.end(removed())
		return true
	case events.ActionDie:
		m.die(ctx, n)
		return true
	}
	return false
}

// die names the cause of a container's end. One that somebody has killed may be on its way out altogether.
func (m *machine) die(ctx context.Context, n news) {
	m.mu.Lock()
	killed := m.killed != ""
	m.mu.Unlock()
	now := time.Now()
	late := time.NewTimer(removalWait)
	defer late.Stop()
	for killed || m.backend.isPodman(ctx) { // which does not tell that it is going to remove it
		select {
		case e := <-n.Messages:
			if e.Action == events.ActionDestroy || e.Action == eventRemove {
				m.end(removed())
				return
			}
			continue
		case <-n.Err:
		case <-late.C:
		case <-ctx.Done():
		}
		break
	}
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	switch {
	case missing(err):
		m.end(removed())
	case err != nil:
		m.end(lost(sandbox.CodeSandboxLost, "make a new one", "the container has ended, and the engine does not tell how: %v", err))
	default:
		m.end(m.obituary(res.Container.State, now))
	}
}

// obituary says how a container ended that still exists.
func (m *machine) obituary(st *container.State, at time.Time) error {
	const remedy = "make a new one, or restore a snapshot"
	m.mu.Lock()
	oom, killed := m.oom, m.killed
	m.mu.Unlock()
	switch {
	case st.Dead || st.Status == container.StateRemoving:
		return removed()
	case killed == unknownSignal:
		return lost(sandbox.CodeSandboxLost, remedy, "the container was stopped behind our back")
	case killed != "":
		return lost(sandbox.CodeSandboxLost, remedy, "the container was stopped behind our back, by signal %s sent through the engine", killed)
	case st.OOMKilled && (oom.IsZero() || at.Sub(oom) < oomFreshness) && st.ExitCode != 0:
		// The engine's mark stays when a process inside was killed long ago, so what counts is when it heard of it.
		return lost(sandbox.CodeSandboxLost, "make a new one with more memory", "the sandbox was killed for memory")
	case st.Error != "":
		return lost(sandbox.CodeGuestLost, remedy, "the guest could not be run: %s", st.Error)
	case st.ExitCode > 128:
		return lost(sandbox.CodeGuestLost, remedy, "the guest was killed by signal %d", st.ExitCode-128)
	}
	return lost(sandbox.CodeGuestLost, remedy, "the guest has ended with exit code %d", st.ExitCode)
}

func removed() error {
	return lost(sandbox.CodeSandboxLost, "make a new one, or restore a snapshot", "the container was removed behind our back")
}

func paused() error {
	return &sandbox.Error{Code: CodePaused, Message: "the container was paused behind our back", Remedy: "docker unpause it and attach again", Retry: true}
}

// reserve notes that a sandbox is attached to. It fails while it is already.
func (b *Backend) reserve(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.attached[id]; ok {
		return &sandbox.Error{Code: sandbox.CodeBusy, Op: "attach", Message: "this program is attached to the sandbox already", Remedy: "detach first", Retry: true}
	}
	b.attached[id] = nil
	return nil
}

// release undoes reserve, unless somebody else has attached since.
func (b *Backend) release(id string, m *machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attached[id] == m {
		delete(b.attached, id)
	}
}

func (b *Backend) attachment(id string) *machine {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.attached[id]
}

// attach starts a bridge and begins to watch. The sandbox is reserved, and name is what the engine calls its container.
func (b *Backend) attach(ctx context.Context, r record, name string, token []byte, l lookout) (*machine, error) {
	m := &machine{record: r, backend: b, token: token, forget: l.forget, gone: make(chan struct{}), incidents: incidents{name: containerName(r.ID)}}
	s, err := b.bridge(ctx, r, func(closed bool) {
		b.release(r.ID, m)
		switch {
		case !closed:
			m.cut.Store(true)
		case !m.cut.Load():
			// Who gives it up does not ask any more, but a broken stream is closed too, before it is known why it broke.
			time.AfterFunc(newsWait, m.forget)
		}
	})
	if err != nil {
		// Why there is no bridge the container itself tells best.
		if gone, _ := m.look(context.WithoutCancel(ctx)); gone && m.cause != nil {
			err = errors.Join(m.cause, err)
		}
		return nil, err
	}
	m.stream = s
	m.called(name) // which somebody may have changed while nobody was attached
	b.mu.Lock()
	b.attached[r.ID] = m
	b.mu.Unlock()
	b.watchers.Go(func() { m.watch(l.ctx, l.first) })
	return m, nil
}
