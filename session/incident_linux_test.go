package session

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// incident returns a session's incident with a code, or nil.
func incident(s *Session, code v1.Code) *sandbox.Incident {
	for _, i := range s.Info().Incidents {
		if i.Code == code {
			return &i
		}
	}
	return nil
}

func TestDockerSessionsWhoseContainerWasRenamed(t *testing.T) {
	k := dockerBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	id := s.Info().Sandbox
	old, renamed := "recluse-"+id, "somebody-else-"+id
	if out, err := exec.CommandContext(t.Context(), "docker", "-H", os.Getenv(dockertest.Variable), "rename", old, renamed).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	await(t, "it is noticed", func() bool { return incident(s, docker.CodeRenamed) != nil })
	named := func(s *Session) {
		t.Helper()
		i := s.Info()
		if n := incident(s, docker.CodeRenamed); n == nil || n.Attrs[docker.AttrOldName] != old || n.Attrs[docker.AttrNewName] != renamed {
			t.Errorf("the session reports %+v", n)
		}
		var told int
		for e, err := range s.Events(t.Context(), EventsOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == "incident" && e.Attrs["code"] == string(docker.CodeRenamed) && strings.Contains(e.Reason, renamed) {
				told++
			}
		}
		if i.State != v1.StateReady || i.Sandbox != id || told != 1 {
			t.Errorf("it is %s in %s, and was told %d times", i.State, i.Sandbox, told)
		}
		want(t, "x + 1", py(t, s, "x + 1"), "42")
	}
	named(s)
	k.restart()
	named(k.get("work"))
}

func TestDockerSessionsWhoseContainerWasPaused(t *testing.T) {
	o := quick()
	o.healthEvery = 20 * time.Millisecond
	k := dockerBench(t, o)
	s := k.open("work")
	py(t, s, "x = 41")
	engine := func(verb string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "docker", "-H", os.Getenv(dockertest.Variable), verb, "recluse-"+s.Info().Sandbox).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", verb, err, out)
		}
	}
	ended := make(chan string, 1)
	go func() { // a cell in progress waits until the sandbox is resumed
		v, err := s.Cell(t.Context(), sandbox.Cell{Code: "import os, time\nopen('ran', 'a').write('once')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)\nopen('ran').read()"})
		if err != nil {
			ended <- err.Error()
			return
		}
		ended <- v.Result.Text()
	}()
	await(t, "the cell runs", func() bool { return s.Info().State == v1.StateExecuting })
	engine("pause")
	await(t, "it is noticed", func() bool { return incident(s, docker.CodePaused) != nil })
	if n := incident(s, docker.CodePaused); !strings.Contains(n.Message, "paused") {
		t.Errorf("the session reports %+v", n)
	}
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell meanwhile", err, docker.CodePaused)
	for range 2 * busyMisses { // health checks must not end the cell
		s.checkHealth()
	}
	engine("unpause")
	await(t, "the cell is let go on", func() bool { return s.Files().WriteAll(t.Context(), "/tmp/go", nil, sandbox.WriteOptions{}) == nil })
	select {
	case got := <-ended:
		want(t, "the cell in progress", got, "'once'")
	case <-time.After(time.Minute):
		t.Fatalf("the cell in progress does not end: %+v", s.Info())
	}
	want(t, "x + 1 afterwards", py(t, s, "x + 1"), "42")
}
