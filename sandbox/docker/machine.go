package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// machine is one attachment to a sandbox.
type machine struct {
	*backendkit.Machine
	record
	names
	backend *Backend
	stream  *dockerengine.Stream
	forget  context.CancelFunc // ends the watch
	cut     atomic.Bool        // the stream has ended by itself
	resting atomic.Bool        // we have paused it ourselves

	mu     sync.Mutex
	oom    time.Time // guarded by mu; when a process of it was killed for memory last
	killed string    // guarded by mu; signal that somebody had the engine send
	paused time.Time // guarded by mu; since when somebody else has it paused; zero: it runs
}

// Stream implements sandbox.Machine.
func (m *machine) Stream() io.ReadWriteCloser { return m.stream }

// end says that the sandbox has gone, and why. Calls that wait for an answer end as well: a paused guest would not
// answer.
func (m *machine) end(cause error) {
	if m.End(cause) && m.stream != nil {
		_ = m.stream.Close() // never fails
	}
}

// unknownSignal stands for one that the engine does not report.
const unknownSignal = "?"

// subscription is a stream of the engine's events about a container.
type subscription struct {
	client.EventsResult
	stop context.CancelFunc
}

// subscribe asks the engine for events about a container. When it returns, nothing that happens from then on is missed.
func (b *Backend) subscribe(ctx context.Context, container string) subscription {
	ctx, stop := context.WithCancel(ctx)
	f := client.Filters{}.Add("type", string(events.ContainerEventType)).Add("container", container)
	return subscription{b.cli.Events(ctx, client.EventsListOptions{Filters: f}), stop}
}

// lookout is a subscription that begins before a sandbox can end, and lasts until forget is called.
type lookout struct {
	ctx    context.Context
	forget context.CancelFunc
	first  subscription
}

func (b *Backend) lookout(container string) lookout {
	ctx, forget := context.WithCancel(b.ctx)
	return lookout{ctx, forget, b.subscribe(ctx, container)}
}

// watch follows the events until the sandbox has gone or ctx ends.
func (m *machine) watch(ctx context.Context, s subscription) {
	defer func() { s.stop() }()
	failures := 0
	for {
		select {
		case e := <-s.Messages:
			failures = 0
			if m.handle(ctx, s, e) {
				return
			}
		case err := <-s.Err:
			if ctx.Err() != nil {
				return
			}
			if failures++; failures > engineTries {
				m.end(&v1.Error{
					Code: CodeEngineLost, Message: "the Docker engine no longer answers", Retry: true, Err: err,
					Remedy: "start it again; if the container still runs then, attach again",
				})
				return
			}
			s.stop()
			select {
			case <-ctx.Done():
				return
			case <-time.After(enginePause):
			}
			s = m.backend.subscribe(ctx, m.Container)
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

// look asks what has become of the container, for events that were missed, and reports whether the engine answered.
func (m *machine) look(ctx context.Context) (gone, answered bool) {
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	if dockerengine.Missing(err) {
		m.end(removed())
		return true, true
	}
	if err != nil {
		return false, false // the subscription fails as well, and is counted
	}
	st := res.Container.State
	switch {
	case !st.Running:
		m.end(m.obituary(st, time.Now()))
	default:
		m.freeze(st.Paused)
		m.called(res.Container.Name)
		return false, true
	}
	return true, true
}

// handle handles one event and reports whether it was the last.
func (m *machine) handle(ctx context.Context, s subscription, e events.Message) (gone bool) {
	m.mu.Lock()
	switch e.Action {
	case events.ActionOOM:
		m.oom = time.Now()
	case events.ActionKill:
		m.killed = cmp.Or(e.Actor.Attributes["signal"], unknownSignal)
	case events.ActionStop, events.ActionRestart: // before the end with Podman alone
		m.killed = cmp.Or(m.killed, unknownSignal)
	}
	m.mu.Unlock()
	switch e.Action {
	case events.ActionPause:
		m.freeze(true)
		return false
	case events.ActionUnPause:
		m.freeze(false)
		return false
	case events.ActionDestroy, dockerengine.EventRemove:
		m.end(removed())
	case events.ActionDie:
		m.die(ctx, s)
	case events.ActionRename:
		m.renamed(ctx)
		return false
	default:
		return false
	}
	return true
}

// die names the cause of a container's end. One that somebody has killed may be about to be removed as well.
func (m *machine) die(ctx context.Context, s subscription) {
	m.mu.Lock()
	killed := m.killed != ""
	m.mu.Unlock()
	now := time.Now()
	late := time.NewTimer(removalWait)
	defer late.Stop()
	for killed || m.backend.cli.IsPodman(ctx) { // which does not report that it is going to remove it
		select {
		case e := <-s.Messages:
			if e.Action == events.ActionDestroy || e.Action == dockerengine.EventRemove {
				m.end(removed())
				return
			}
			continue
		case <-s.Err:
		case <-late.C:
		case <-ctx.Done():
		}
		break
	}
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	switch {
	case dockerengine.Missing(err):
		m.end(removed())
	case err != nil:
		m.end(lost(v1.CodeSandboxLost, "make a new one", "the container has ended, and the engine does not report how: %v", err))
	default:
		m.end(m.obituary(res.Container.State, now))
	}
}

const remedyLost = "make a new one, or restore a snapshot"

// obituary says how a container ended that still exists.
func (m *machine) obituary(st *container.State, at time.Time) error {
	m.mu.Lock()
	oom, killed := m.oom, m.killed
	m.mu.Unlock()
	const stopped = "the container was stopped behind our back"
	switch {
	case st.Dead || st.Status == container.StateRemoving:
		return removed()
	case killed == unknownSignal:
		return lost(v1.CodeSandboxLost, remedyLost, stopped)
	case killed != "":
		return lost(v1.CodeSandboxLost, remedyLost, stopped+", by signal %s sent through the engine", killed)
	case st.OOMKilled && (oom.IsZero() || at.Sub(oom) < oomFreshness) && st.ExitCode != 0:
		// The engine's mark stays when a process inside was killed long ago, so the time of the event counts.
		return lost(v1.CodeSandboxLost, "make a new one with more memory", "the sandbox was killed for memory")
	case st.Error != "":
		return lost(v1.CodeGuestLost, remedyLost, "the guest could not be run: %s", st.Error)
	case st.ExitCode > 128:
		return lost(v1.CodeGuestLost, remedyLost, "the guest was killed by signal %d", st.ExitCode-128)
	}
	return lost(v1.CodeGuestLost, remedyLost, "the guest has ended with exit code %d", st.ExitCode)
}

func removed() error {
	return lost(v1.CodeSandboxLost, remedyLost, "the container was removed behind our back")
}

// freeze is told whether the container is paused. A pause that is not ours is an incident, and calls in progress wait for its end: what
// they run has not ended, and whoever ran it again would run it twice.
func (m *machine) freeze(paused bool) {
	m.mu.Lock()
	since, now := m.paused, time.Now().UTC()
	frozen := paused && !m.resting.Load()
	if frozen == !since.IsZero() {
		m.mu.Unlock()
		return
	}
	m.paused = time.Time{}
	i := sandbox.Incident{Code: CodeResumed, Message: fmt.Sprintf("the container continues after a pause of %s", now.Sub(since).Round(time.Millisecond)), Time: now}
	if frozen {
		m.paused, since = now, now
		i.Code, i.Message = CodePaused, messagePaused
	}
	m.mu.Unlock()
	i.Attrs = map[string]string{AttrSince: since.Format(time.RFC3339Nano)} // so that each pause is one of its own
	m.Report(i)
}

const messagePaused = "the container was paused behind our back; calls in progress wait until it continues"

// Frozen implements backend.Frozen.
func (m *machine) Frozen() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused.IsZero() {
		return nil
	}
	return &v1.Error{Code: CodePaused, Message: messagePaused, Remedy: "docker unpause it, then try again: nothing was run", Retry: true}
}

// reserve notes that this program attaches to a sandbox, and fails if it is attached already. release undoes it.
func (b *Backend) reserve(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.attached[id]; ok {
		return &v1.Error{
			Code: v1.CodeBusy, Op: "attach", Message: "this program is attached to the sandbox already", Remedy: "detach first", Retry: true,
		}
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

// attach starts a bridge and begins to watch. The engine calls the container name. Preconditions: the sandbox is reserved.
func (b *Backend) attach(ctx context.Context, r record, name string, l lookout) (*machine, error) {
	m := &machine{Machine: backendkit.NewMachine(r.Record), record: r, backend: b, forget: l.forget}
	m.name = containerName(r.ID)
	bridge := guestExec(r.bridge(), launch.BridgeArg, socketName(r.ID))
	bridge.AttachStdin = true
	conn, err := b.cli.Exec(ctx, r.Container, bridge)
	if err != nil {
		// The container itself explains best why there is no bridge.
		if gone, _ := m.look(context.WithoutCancel(ctx)); gone && m.Cause() != nil {
			err = errors.Join(m.Cause(), err)
		}
		return nil, err
	}
	m.stream = dockerengine.NewStream(conn, func(closed bool) {
		b.release(r.ID, m)
		switch {
		case !closed:
			m.cut.Store(true)
		case !m.cut.Load():
			// Nobody is interested any more; but a broken stream is closed too, before it is known why it broke.
			time.AfterFunc(newsWait, m.forget)
		}
	})
	m.called(name) // which somebody may have changed while nobody was attached
	b.mu.Lock()
	b.attached[r.ID] = m
	b.mu.Unlock()
	b.watchers.Go(func() { m.watch(l.ctx, l.first) })
	return m, nil
}

// The attributes of an incident CodeRenamed.
const (
	AttrOldName = "old_name"
	AttrNewName = "new_name"
)

// AttrSince is the attribute of the incidents CodePaused and CodeResumed that says when the pause began.
const AttrSince = "since"

var (
	_ backend.Witness = (*machine)(nil)
	_ backend.Frozen  = (*machine)(nil)
)

// names notices that a container was renamed.
type names struct {
	backendkit.Incidents

	nameMu sync.Mutex
	name   string // guarded by nameMu; by which the engine knows the container, as far as is known
}

// called takes the name that the engine has for the container now. If it is another than before, somebody else has
// renamed the container. Nothing depends on it, since sandboxes are found by their labels, but people who look for the
// container should know its name.
func (n *names) called(name string) {
	name = strings.TrimPrefix(name, "/")
	n.nameMu.Lock()
	defer n.nameMu.Unlock()
	old := n.name
	if name == "" || name == old {
		return
	}
	n.name = name
	n.Report(sandbox.Incident{
		Code: CodeRenamed, Message: fmt.Sprintf("the container was renamed behind our back, from %s to %s", old, name),
		Time: time.Now().UTC(), Attrs: map[string]string{AttrOldName: old, AttrNewName: name},
	})
}

// renamed is told that the container was renamed. It asks the engine for the name, because events are late and may be
// from before the last look.
func (m *machine) renamed(ctx context.Context) {
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	if err != nil {
		return // it has gone, or the engine has: there is an event for that as well
	}
	m.called(res.Container.Name)
}
