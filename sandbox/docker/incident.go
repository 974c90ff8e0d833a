package docker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// The attributes of an incident CodeRenamed.
const (
	AttrOldName = "old_name"
	AttrNewName = "new_name"
)

// maxUntold is how many incidents are kept for whoever asks to hear of them.
const maxUntold = 16

// incidents of one attachment.
type incidents struct {
	mu     sync.Mutex // held while somebody is told, so that the order is kept
	hear   func(sandbox.Incident)
	untold []sandbox.Incident
	name   string // by which the engine knows the container, as far as we have heard
}

var _ backend.Witness = (*machine)(nil)

// OnIncident implements backend.Witness.
func (m *machine) OnIncident(f func(sandbox.Incident)) {
	m.incidents.mu.Lock()
	defer m.incidents.mu.Unlock()
	m.incidents.hear = f
	if f == nil {
		return
	}
	for _, i := range m.incidents.untold {
		f(i)
	}
	m.incidents.untold = nil
}

// called takes the name that the engine has for the container now. Another one than before is somebody else's doing: nothing depends on it, since
// sandboxes are found by their labels, but whoever looks for the container should know what it is called.
func (m *machine) called(name string) {
	name = strings.TrimPrefix(name, "/")
	m.incidents.mu.Lock()
	defer m.incidents.mu.Unlock()
	old := m.incidents.name
	if name == "" || name == old {
		return
	}
	m.incidents.name = name
	i := sandbox.Incident{
		Code: CodeRenamed, Message: fmt.Sprintf("the container was renamed behind our back, from %s to %s", old, name), Time: time.Now().UTC(),
		Attrs: map[string]string{AttrOldName: old, AttrNewName: name},
	}
	if m.incidents.hear != nil {
		m.incidents.hear(i)
		return
	}
	m.incidents.untold = append(m.incidents.untold, i)
	m.incidents.untold = m.incidents.untold[max(0, len(m.incidents.untold)-maxUntold):]
}

// renamed hears that the container was renamed. The engine is asked to what, because news are late and may be from before we looked.
func (m *machine) renamed(ctx context.Context) {
	res, err := m.backend.cli.ContainerInspect(ctx, m.Container, client.ContainerInspectOptions{})
	if err != nil {
		return // it has gone, or the engine has: that is news of its own
	}
	m.called(res.Container.Name)
}
