package docker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// testRename renames a container like another program would, attached and detached. The sandbox continues, and each
// renaming is reported.
func testRename(t *testing.T, b *Backend) {
	t.Helper()
	sb := open(t, b, sandbox.Spec{})
	first, second, third := containerName(sb.ID()), "somebody-else-"+sb.ID(), "nobody-"+sb.ID()
	told := func(sb *sandbox.Sandbox) <-chan sandbox.Incident {
		c := make(chan sandbox.Incident, 16)
		sb.OnIncident(func(i sandbox.Incident) { c <- i })
		return c
	}
	heard := func(c <-chan sandbox.Incident, from, to string) {
		t.Helper()
		var got sandbox.Incident
		testneed.Await(t, "the incident", func() bool {
			select {
			case got = <-c:
				return true
			default:
				return false
			}
		})
		if got.Code != CodeRenamed || got.Attrs[AttrOldName] != from || got.Attrs[AttrNewName] != to || got.Time.IsZero() || !strings.Contains(got.Message, fmt.Sprintf("%q to %q", from, to)) {
			t.Errorf("the renaming of %s to %s is reported as %+v", from, to, got)
		}
	}
	docker(t, "rename", first, second)
	c := told(sb) // also incidents before a receiver was set
	heard(c, first, second)
	shell(t, sb, "true")
	sb.Detach()
	docker(t, "rename", second, third)
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	c = told(again)
	heard(c, first, third) // after a detachment, only the last name is known
	docker(t, "rename", third, first)
	heard(c, third, first)
	select {
	case <-again.Gone():
		t.Error("the sandbox is reported as gone")
	default:
	}
	if v, err := again.Cell(t.Context(), sandbox.Cell{Code: "6 * 7"}); err != nil || v.Result.Text() != "42" {
		t.Errorf("afterwards: %v, %v", v, err)
	}
	docker(t, "rename", first, second)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, []string{sb.ID()}); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestARenameOnGVisorIsNamed(t *testing.T) { testRename(t, newBackend(t, withRuntime("runsc"))) }
