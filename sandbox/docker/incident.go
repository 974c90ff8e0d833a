package docker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// The attributes of an incident CodeRenamed.
const (
	AttrOldName = "old_name"
	AttrNewName = "new_name"
)

var _ backend.Witness = (*machine)(nil)

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
