package session

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

func TestDockerSessionsWhoseContainerWasRenamed(t *testing.T) {
	k := dockerBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	id := s.Info().Sandbox
	old, renamed := "recluse-"+id, "somebody-else-"+id
	if out, err := exec.CommandContext(t.Context(), "docker", "-H", os.Getenv(dockertest.Variable), "rename", old, renamed).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	await(t, "it is noticed", func() bool { return s.Info().Incident != nil })
	named := func(s *Session) {
		t.Helper()
		i := s.Info()
		if n := i.Incident; n == nil || n.Code != docker.CodeRenamed || n.Attrs[docker.AttrOldName] != old || n.Attrs[docker.AttrNewName] != renamed {
			t.Errorf("the session says %+v", n)
		}
		var told int
		for e, err := range s.Events(t.Context(), 0, false) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == "incident" && e.Attrs["code"] == string(docker.CodeRenamed) && strings.Contains(e.Reason, renamed) {
				told++
			}
		}
		if i.State != Ready || i.Sandbox != id || told != 1 {
			t.Errorf("it is %s in %s, and was told %d times", i.State, i.Sandbox, told)
		}
		want(t, "x + 1", py(t, s, "x + 1"), "42")
	}
	named(s)
	k.restart()
	named(k.get("work"))
}
