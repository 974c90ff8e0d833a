package sandbox

import (
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// What a process did that is unknown is listed for each operation that ran at that time, and marked.
func TestUsesOfUnknownProcessesAreMarked(t *testing.T) {
	n := &network{gateway: egress.NewGateway(egress.GatewayOptions{})}
	defer n.gateway.Close()
	began := time.Now()
	denied := egress.LookupResult{Decision: egress.Decision{Action: v1.NetworkDeny}}
	n.uses.lookup("known.test", denied, &wire.Owner{Op: "a"})
	n.uses.lookup("unknown.test", denied, nil)
	n.uses.lookup("unknown.test", denied, &wire.Owner{Pid: 7}) // of an operation that has ended
	for _, c := range []struct {
		id    string
		began time.Time
		want  map[string]bool // unattributed, by host
	}{
		{"a", began, map[string]bool{"known.test": false, "unknown.test": true}},
		{"b", began, map[string]bool{"unknown.test": true}},
		{"earlier", began.Add(-time.Hour), nil},
		{"later", began.Add(time.Hour), nil},
	} {
		uses := n.of(&Verdict{ID: c.id, Started: c.began, Wall: time.Minute})
		if len(uses) != len(c.want) {
			t.Errorf("%s: %+v", c.id, uses)
		}
		for _, u := range uses {
			if marked, ok := c.want[u.Host]; !ok || u.Unattributed != marked || marked && u.Count != 2 {
				t.Errorf("%s: %+v", c.id, u)
			}
		}
	}
}
