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
	backend    *Backend
	stream     *dockerengine.Stream
	forget     context.CancelFunc // stops the watch
	cut        atomic.Bool        // the stream ended, and we did not close it
	pausedByUs atomic.Bool        // we have paused the container ourselves

	mu     sync.Mutex
	oom    time.Time // guarded by mu; time of the last OOM kill of a process in it
	killed string    // guarded by mu; signal that was sent through the Docker API
	paused time.Time // guarded by mu; when another program paused it; zero: not paused
}

// Stream implements sandbox.Machine.
func (m *machine) Stream() io.ReadWriteCloser { return m.stream }

// end records that the sandbox has ended, and why. It also closes the stream, so that pending calls fail: a paused
// guest would not answer them.
func (m *machine) end(cause error) {
	if m.End(cause) && m.stream != nil {
		_ = m.stream.Close() // never fails
	}
}

// unknownSignal replaces a signal that the Docker engine does not report.
const unknownSignal = "?"

// subscription is a stream of the engine's events about a container.
type subscription struct {
	client.EventsResult
	stop context.CancelFunc
}

// subscribe subscribes to the events of a container. Events that happen after it returns are not missed.
func (b *Backend) subscribe(ctx context.Context, container string) subscription {
	ctx, stop := context.WithCancel(ctx)
	f := client.Filters{}.Add("type", string(events.ContainerEventType)).Add("container", container)
	return subscription{b.cli.Events(ctx, client.EventsListOptions{Filters: f}), stop}
}

// pendingWatch is a subscription that begins before a sandbox can end, and lasts until forget is called.
type pendingWatch struct {
	ctx    context.Context
	forget context.CancelFunc
	first  subscription
}

// beginWatch subscribes to the events of a container for a later call of machine.watch.
func (b *Backend) beginWatch(container string) pendingWatch {
	ctx, forget := context.WithCancel(b.ctx)
	return pendingWatch{ctx, forget, b.subscribe(ctx, container)}
}

// watch handles events until the sandbox has ended or ctx is done.
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
					Code:    CodeEngineLost,
					Message: "the Docker engine no longer answers",
					Retry:   true,
					Err:     err,
					Remedy:  "start the Docker engine; if the container still runs, attach again",
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
				failures = 0 // the engine only dropped the stream, which happens to long-lived streams
			}
		}
	}
}

// look inspects the container, in case events were missed. It reports whether the container is gone and whether the
// Docker engine answered.
func (m *machine) look(ctx context.Context) (gone, answered bool) {
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	if dockerengine.Missing(err) {
		m.end(removed())
		return true, true
	}
	if err != nil {
		return false, false // the subscription fails too, and watch counts its failures
	}
	st := res.Container.State
	switch {
	case !st.Running:
		m.end(m.endCause(st, time.Now()))
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
	case events.ActionStop, events.ActionRestart: // only Podman sends these before the container ends
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

// die determines why a container ended. If it was killed, it may be removed soon.
func (m *machine) die(ctx context.Context, s subscription) {
	m.mu.Lock()
	killed := m.killed != ""
	m.mu.Unlock()
	now := time.Now()
	late := time.NewTimer(removalWait)
	defer late.Stop()
	for killed || m.backend.cli.IsPodman(ctx) { // Podman does not report a kill before a removal
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
		m.end(
			lost(
				v1.CodeSandboxLost,
				"make a new sandbox",
				"the container has ended, and the Docker engine does not report the cause: %v",
				err,
			),
		)
	default:
		m.end(m.endCause(res.Container.State, now))
	}
}

const remedyLost = "make a new sandbox, or restore a snapshot"

// endCause returns the cause of the end of a container that still exists.
func (m *machine) endCause(st *container.State, at time.Time) error {
	m.mu.Lock()
	oom, killed := m.oom, m.killed
	m.mu.Unlock()
	const stopped = "the container was stopped by another program"
	switch {
	case st.Dead || st.Status == container.StateRemoving:
		return removed()
	case killed == unknownSignal:
		return lost(v1.CodeSandboxLost, remedyLost, stopped)
	case killed != "":
		return lost(v1.CodeSandboxLost, remedyLost, stopped+", with signal %s through the Docker engine", killed)
	case st.OOMKilled && (oom.IsZero() || at.Sub(oom) < oomFreshness) && st.ExitCode != 0:
		// OOMKilled stays set after an OOM kill of any process inside, so the time of the last OOM event decides.
		return lost(v1.CodeSandboxLost, "make a new sandbox with more memory", "the sandbox was OOM-killed")
	case st.Error != "":
		return lost(v1.CodeGuestLost, remedyLost, "the guest could not be started: %s", st.Error)
	case st.ExitCode > 128:
		return lost(v1.CodeGuestLost, remedyLost, "the guest was killed by signal %d", st.ExitCode-128)
	}
	return lost(v1.CodeGuestLost, remedyLost, "the guest has ended with exit code %d", st.ExitCode)
}

func removed() error {
	return lost(v1.CodeSandboxLost, remedyLost, "the container was removed by another program")
}

// freeze records whether the container is paused. A pause by another program is an incident. Pending calls wait for
// its end: their operations have not ended, and a retry would run them twice.
func (m *machine) freeze(paused bool) {
	m.mu.Lock()
	since, now := m.paused, time.Now().UTC()
	frozen := paused && !m.pausedByUs.Load()
	if frozen == !since.IsZero() {
		m.mu.Unlock()
		return
	}
	m.paused = time.Time{}
	i := sandbox.Incident{
		Code:    CodeResumed,
		Message: fmt.Sprintf("the container continues after a pause of %s", now.Sub(since).Round(time.Millisecond)),
		Time:    now,
	}
	if frozen {
		m.paused, since = now, now
		i.Code, i.Message = CodePaused, messagePaused
	}
	m.mu.Unlock()
	i.Attrs = map[string]string{AttrSince: since.Format(time.RFC3339Nano)} // makes each pause a separate incident
	m.Report(i)
}

const messagePaused = "the container was paused by another program; calls in progress wait until it continues"

// Frozen implements backend.FreezeReporter.
func (m *machine) Frozen() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused.IsZero() {
		return nil
	}
	return &v1.Error{
		Code:    CodePaused,
		Message: messagePaused,
		Remedy:  "run docker unpause, then try again; nothing was run",
		Retry:   true,
	}
}

// reserve records that this program attaches to a sandbox. It fails if the program is already attached. release
// undoes it.
func (b *Backend) reserve(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.attached[id]; ok {
		return &v1.Error{
			Code:    v1.CodeBusy,
			Op:      "attach",
			Message: "this program is already attached to the sandbox",
			Remedy:  "detach first",
			Retry:   true,
		}
	}
	b.attached[id] = nil
	return nil
}

// release undoes reserve, unless there is a newer attachment.
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

// attach starts a bridge and begins to watch the container. name is the current name of the container. Preconditions:
// the sandbox is reserved.
func (b *Backend) attach(ctx context.Context, r record, name string, l pendingWatch) (*machine, error) {
	m := &machine{Machine: backendkit.NewMachine(r.Record), record: r, backend: b, forget: l.forget}
	m.name = containerName(r.ID)
	bridge := guestExec(r.bridge(), launch.BridgeArg, socketName(r.ID))
	bridge.AttachStdin = true
	conn, err := b.cli.Exec(ctx, r.Container, bridge)
	if err != nil {
		// The state of the container explains best why there is no bridge.
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
			// The events are no longer needed. But a broken stream is also closed, before the cause is known, so wait
			// a little.
			time.AfterFunc(newsWait, m.forget)
		}
	})
	m.called(name) // another program may have renamed it while no program was attached
	b.mu.Lock()
	b.attached[r.ID] = m
	b.mu.Unlock()
	b.watchers.Go(func() { m.watch(l.ctx, l.first) })
	return m, nil
}

// Attributes of the incident CodeRenamed.
const (
	AttrOldName = "old_name"
	AttrNewName = "new_name"
)

// AttrSince is the attribute of the incidents CodePaused and CodeResumed that holds the begin of the pause.
const AttrSince = "since"

var (
	_ backend.IncidentReporter = (*machine)(nil)
	_ backend.FreezeReporter   = (*machine)(nil)
)

// names detects that a container was renamed.
type names struct {
	backendkit.Incidents

	nameMu sync.Mutex
	name   string // guarded by nameMu; last known name of the container
}

// called takes the current name of the container. If it has changed, another program has renamed the container, and
// called reports an incident. Sandboxes are found by their labels, so nothing depends on the name, but people who
// look for the container need it.
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
		Code:    CodeRenamed,
		Message: fmt.Sprintf("the container was renamed by another program, from %q to %q", old, name),
		Time:    time.Now().UTC(),
		Attrs:   map[string]string{AttrOldName: old, AttrNewName: name},
	})
}

// renamed handles the event that the container was renamed. It queries the current name, because events are late and
// may be older than the last inspection.
func (m *machine) renamed(ctx context.Context) {
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	if err != nil {
		return // the container or the Docker engine is gone, which has its own event
	}
	m.called(res.Container.Name)
}
