package sandboxtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

var attachments = []feature{
	{"state and detached commands go on while nobody is attached", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.openDetachable(t)
		if s.caps.Python {
			okCell(t, sb, "x = {'kept': 42}")
		}
		op, err := sb.Start(t.Context(), sandbox.Command{Shell: "for i in $(seq 1 2000); do echo line $i; done; until [ -e go ]; do sleep 0.02; done; for i in $(seq 2001 4000); do echo line $i; done"})
		noError(t, err)
		testneed.Await(t, "the first half", func() bool { return operation(t, sb, op).Stdout >= 18893 })
		again := s.reattach(t, sb)
		if s.caps.Python {
			same(t, "state", okCell(t, again, "x['kept']").Result.Text(), "42")
		}
		shell(t, again, "touch go")
		var out recorder
		v, err := again.Follow(t.Context(), op, sandbox.FollowOptions{Stdout: &out})
		noError(t, err)
		succeeded(t, v)
		var want strings.Builder
		for i := range 4000 {
			fmt.Fprintf(&want, "line %d\n", i+1)
		}
		if out.String() != want.String() {
			t.Errorf("%d bytes of output, want %d", len(out.String()), want.Len())
		}
	}},
	{"a detached command that floods is not held up by a host that has gone", onBackend, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": elsewhere a caller that waits for the command keeps waiting until the host is back")
		sb := s.openDetachable(t)
		var out recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{
			Shell:      "echo ready; until [ -e go ]; do sleep 0.02; done; head -c 8000000 /dev/zero; touch finished; sleep 1000",
			RunOptions: sandbox.RunOptions{ID: "flood", Detach: true, Stdout: &out, Timeout: v1.NoLimit},
		})
		out.await(t, "ready")
		h := home(t, sb)
		noError(t, files(sb, h).WriteAll(t.Context(), "go", nil, sandbox.WriteOptions{}))
		again := s.reattach(t, sb)
		fails(t, "the interrupted call", await(t, "the end of the call", done).err, v1.CodeSandboxLost)
		testneed.Await(t, "the end of the flood", func() bool { return operation(t, again, "flood").Stdout == 8000006 })
		same(t, "running", operation(t, again, "flood").Running, true)
		noError(t, again.Cancel(t.Context(), "flood"))
	}},
	{"a command that is not detached ends with its host", overHTTP, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": a server that ends leaves running commands to the next server")
		sb := s.openDetachable(t)
		var out recorder
		done := inBackground(t.Context(), sb.Run, sandbox.Command{RunOptions: sandbox.RunOptions{ID: "bound", Stdout: &out, Timeout: v1.NoLimit}, Shell: "echo ready; sleep 1000"})
		out.await(t, "ready")
		again := s.reattach(t, sb)
		await(t, "the end of the call", done)
		testneed.Await(t, "its end", func() bool { return !operation(t, again, "bound").Running })
		v, err := again.Follow(t.Context(), "bound", sandbox.FollowOptions{})
		noError(t, err)
		same(t, "ended", v.Ended, v1.EndedCancelled)
		same(t, "stdout", v.Stdout.String(), "ready\n")
	}},
	{"attaching again and again loses nothing", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.openDetachable(t)
		op, err := sb.Start(t.Context(), sandbox.Command{Shell: "until [ -e go ]; do echo tick; sleep 0.01; done; echo end"})
		noError(t, err)
		var out recorder
		for i := range 5 {
			testneed.Await(t, "more output", func() bool { return operation(t, sb, op).Stdout > int64(len(out.String())) })
			_, err := sb.Follow(t.Context(), op, sandbox.FollowOptions{StdoutOffset: int64(len(out.String())), Stdout: &out, NoWait: true})
			noError(t, err)
			same(t, "a command", shell(t, sb, fmt.Sprintf("echo %d", i)), fmt.Sprintln(i))
			sb = s.reattach(t, sb)
		}
		shell(t, sb, "touch go")
		_, err = sb.Follow(t.Context(), op, sandbox.FollowOptions{StdoutOffset: int64(len(out.String())), Stdout: &out})
		noError(t, err)
		if rest := strings.ReplaceAll(out.String(), "tick\n", ""); rest != "end\n" {
			t.Errorf("the output has gaps or duplicates: %q", rest)
		}
	}},
	{"one that is attached to is busy", onBackend, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": elsewhere only the server is attached, and any number of callers may use the sandbox")
		b := s.backend(t)
		sb := s.mustOpen(t, b, s.opts.Spec).(*sandbox.Sandbox)
		_, err := sandbox.Attach(t.Context(), b, sb.ID())
		fails(t, "a second attachment", err, v1.CodeBusy)
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
	{"what is not there cannot be attached to", onBackend, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": elsewhere machines have other names, with other rules")
		b := s.backend(t)
		for _, id := range []string{"nothing", "", "../..", "a/b", "x\x00"} {
			_, err := sandbox.Attach(t.Context(), b, id)
			fails(t, fmt.Sprintf("%q", id), err, v1.CodeNotFound)
			noError(t, b.Stop(t.Context(), id))
		}
	}},
	{"a guest that is killed is a typed error within a second", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.needLibrary(t, ": a session is restored instead, and tests of sessions cover that")
		if s.opts.KillGuest == nil {
			t.Skip("SKIPPED: nothing here can kill a guest")
		}
		var sb *sandbox.Sandbox
		var o outcome
		for took, tries := maxWait, 0; took > time.Second; tries++ {
			if tries == 5 { // a busy machine may be slow sometimes, but not every time
				t.Fatalf("it took %s to notice", took)
			}
			sb = s.library(t)
			var out recorder
			done := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "echo ready; sleep 1000", RunOptions: sandbox.RunOptions{Stdout: &out}})
			out.await(t, "ready")
			s.opts.KillGuest(t, sb)
			began := time.Now()
			o = await(t, "the end of the call", done)
			took = time.Since(began)
		}
		lost := func(what string, err error) {
			t.Helper()
			if s.opts.EndUnknown && v1.CodeOf(err) == v1.CodeSandboxLost {
				return
			}
			fails(t, what, err, v1.CodeGuestLost)
			contains(t, what, err.Error(), "guest")
		}
		lost("the command", o.err)
		await(t, "the report of the end of the sandbox", sb.Gone())
		_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
		lost("the next command", err)
		_, err = sb.Cell(t.Context(), sandbox.Cell{Code: "1"})
		lost("a cell", err)
		lost("a ping", sb.Ping(t.Context()))
		_, err = files(sb, "").ReadAll(t.Context(), "/etc/passwd")
		lost("a file", err)
		t.Logf("reported as: %v", o.err)
	}},
}
