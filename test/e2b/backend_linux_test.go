package e2b

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestAKilledServerWithSandboxesAtAService has two servers: the sandboxes of the second one are at the first one.
func TestAKilledServerWithSandboxesAtAService(t *testing.T) {
	t.Parallel()
	testneed.All(t, "the same with the gvisor backend is tested in cmd/recluse and session")
	service := serve(t)
	s, err := testbin.NewServer(t.TempDir(), "RECLUSE_BACKEND_ORDER=e2b", "RECLUSE_E2B_API_URL="+service.vars["E2B_API_URL"],
		"RECLUSE_E2B_API_KEY="+service.vars["E2B_API_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		left := ""
		if !testneed.Eventually(func() bool { // a sandbox that is being removed is listed until it is gone
			left = service.must("sandbox", "list", "--json")
			return strings.TrimSpace(left) == "[]"
		}) {
			t.Errorf("left at the service: %s", left)
		}
	})
	run := func(args ...string) string {
		t.Helper()
		out, err := s.Run(args...)
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return out
	}
	type shown struct {
		Sandbox string
		Cost    float64 `json:"cost_usd"`
	}
	show := func() (i shown) {
		t.Helper()
		if err := json.Unmarshal([]byte(run("session", "show", "work", "--json")), &i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	exec := func(code string) string { return run("exec", "--session", "work", "--python", code) }
	exec("x = 41")
	before := show()
	if before.Cost <= 0 || !strings.Contains(run("session", "list"), "COST") {
		t.Errorf("the cost is missing: %+v\n%s", before, run("session", "list"))
	}
	if out := run("doctor", "--backend", "e2b"); !strings.Contains(out, "in all (estimated)") {
		t.Errorf("%s", out)
	}

	// The server is killed in the middle of a cell.
	ended := make(chan string, 1)
	go func() {
		out, _ := s.Run("exec", "--session", "work", "--python",
			"import time; open('begun', 'w').close()\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)\nx += 1")
		ended <- out
	}()
	testneed.Await(t, "the cell runs", func() bool {
		out, err := s.Run("exec", "--session", "work", "--", "test", "-e", "begun")
		return err == nil && out == ""
	})
	if err := s.Stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	run("exec", "--session", "work", "--", "touch", "go")
	<-ended // its caller has lost the connection, or waited for the next server
	testneed.Await(t, "the cell continues to its end", func() bool { return strings.TrimSpace(exec("print(x)")) == "42" })
	if after := show(); after.Sandbox != before.Sandbox {
		t.Errorf("another sandbox: %+v, before %+v", after, before)
	}
	if got := service.must("session", "list"); strings.Count(got, "\n") != 2 {
		t.Errorf("sandboxes at the service:\n%s", got)
	}

	// Asleep, it is a snapshot at the service, also for the next server.
	run("session", "hibernate", "work")
	if err := s.Stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(exec("print(x)")); got != "42" {
		t.Errorf("%q after the sleep", got)
	}
}

// must runs a command on the server, which must succeed.
func (s *testServer) must(args ...string) string {
	s.t.Helper()
	out, err := s.Run(args...)
	if err != nil {
		s.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}
