package sandboxtest

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// refusesUsers reports whether err means that the sandbox cannot run code as another user. The backends gvisor and vm must be
// able to do that.
func (s *suite) refusesUsers(t *testing.T, err error) bool {
	t.Helper()
	if v1.CodeOf(err) != v1.CodeNotSupported {
		noError(t, err)
		return false
	}
	if name := s.backend(t).Name(); name == "gvisor" || name == "vm" {
		t.Errorf("%s refuses another user: %v", name, err)
	}
	return true
}

var users = []feature{
	{"a command runs as the user it names, or that is refused", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		own := strings.TrimSpace(shell(t, sb, "id -u; id -g"))
		other := func(user, script string) sandbox.Command {
			return sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{User: user}}
		}
		v := run(t, sb, other(strings.ReplaceAll(own, "\n", ":"), "id -u; id -g"))
		same(t, "the sandbox's own user", strings.TrimSpace(v.Stdout.String()), own)
		for _, bad := range []string{"no-such-user", "1:2:3", "-1", "a b"} {
			_, err := sb.Run(t.Context(), other(bad, "true"))
			same(t, bad, v1.CodeOf(err), v1.CodeInvalidRequest)
		}
		v, err := sb.Run(t.Context(), other("2000:2001", "id -u; id -g; id -G; pwd; echo $HOME; touch /tmp/theirs && stat -c %u:%g /tmp/theirs; echo more >/dev/stderr"))
		if s.refusesUsers(t, err) {
			return
		}
		same(t, "another user", v.Stdout.String(), "2000\n2001\n2001\n/\n/\n2000:2001\n")
		same(t, "its stderr", v.Stderr.String(), "more\n")
		same(t, "the next command", strings.TrimSpace(shell(t, sb, "id -u; id -g")), own)
		same(t, "a write to its file by another user", shell(t, sb, "sh -c 'echo more >> /tmp/theirs' 2>/dev/null || echo refused"), "refused\n")
		_, err = sb.Run(t.Context(), other("0", "true"))
		same(t, "root", v1.CodeOf(err), v1.CodeInvalidRequest)
		c := other("2000", "test -O $(tty) && id -u")
		c.PTY = &sandbox.Size{Rows: 24, Cols: 80}
		same(t, "a terminal", run(t, sb, c).Stdout.String(), "2000\r\n")
		c = other("2000", "echo $HOME $USER")
		c.Env = map[string]string{"HOME": "/tmp", "USER": "somebody"}
		same(t, "its own environment", run(t, sb, c).Stdout.String(), "/tmp somebody\n")
		c = other("2000", "trap '' TERM; setsid sleep 1000 & sleep 1000")
		c.Timeout, c.KillGrace = 300*time.Millisecond, 50*time.Millisecond
		v = run(t, sb, c)
		same(t, "ended", v.Ended, v1.EndedTimeout)
		for _, p := range v.Survivors {
			same(t, "a survivor is killed", p.Killed, true)
		}
	}},
	{"a context's first cell decides its user, or that is refused", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		cell := func(context, user, code string) (*sandbox.Verdict, error) {
			return sb.Cell(t.Context(), sandbox.Cell{Code: code, Context: context, RunOptions: sandbox.RunOptions{User: user, Stdin: strings.NewReader("in\n")}})
		}
		const look = "import os; print(os.getuid(), input())"
		v, err := cell("theirs", "2000", look)
		if s.refusesUsers(t, err) {
			return
		}
		same(t, "another user", v.Stdout.String(), "2000 in\n")
		v, err = cell("theirs", "", look)
		noError(t, err)
		same(t, "a cell without a user", v.Stdout.String(), "2000 in\n")
		_, err = cell("theirs", "2001", look)
		same(t, "a third user", v1.CodeOf(err), v1.CodeInvalidRequest)
		v, err = cell("", "", look)
		noError(t, err)
		if strings.HasPrefix(v.Stdout.String(), "2000 ") {
			t.Error("another context has the same user")
		}
		_, err = cell("", "2000", look)
		same(t, "another context", v1.CodeOf(err), v1.CodeInvalidRequest)
	}},
	{"a cell in a language that is not there is refused", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		succeeded(t, runCell(t, sb, sandbox.Cell{Code: "1", Language: "python"}))
		_, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1", Language: "ruby"})
		if v1.CodeOf(err) != v1.CodeInvalidRequest || !strings.Contains(err.Error(), "python") {
			t.Error(err)
		}
	}},
}
