package startup

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/agents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnlyAPlainHookIsAnsweredEarly(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want agents.Hook // with no agent: none
	}{
		{"as integrate writes it", []string{"hook", "--agent", "codex", "--project", "/a b"}, agents.Hook{Agent: agents.Codex, Project: "/a b", Unexpected: agents.Block}},
		{"every flag", []string{"hook", "--agent=claude-code", "--project=/a/../b=c", "--permission", "allow", "--unexpected=pass"}, agents.Hook{Agent: agents.ClaudeCode, Project: "/b=c", Permission: "allow", Unexpected: agents.PassThrough}},
		{"the last one counts", []string{"hook", "--agent", "codex", "--project", "/a", "--agent", "cursor"}, agents.Hook{Agent: agents.Cursor, Project: "/a", Unexpected: agents.Block}},
		{"nothing at all", nil, agents.Hook{}},
		{"another verb", []string{"version"}, agents.Hook{}},
		{"the run of a command", []string{"hook", "run", "--project", "/a", "--", "true"}, agents.Hook{}},
		{"help", []string{"hook", "--help"}, agents.Hook{}},
		{"a flag of all verbs", []string{"hook", "--agent", "codex", "--project", "/a", "--json"}, agents.Hook{}},
		{"a flag cut short", []string{"hook", "--agent", "codex", "--project"}, agents.Hook{}},
		{"a word too many", []string{"hook", "--agent", "codex", "--project", "/a", "b"}, agents.Hook{}},
		{"no agent", []string{"hook", "--project", "/a"}, agents.Hook{}},
		{"an unknown agent", []string{"hook", "--agent", "vi", "--project", "/a"}, agents.Hook{}},
		{"a relative project", []string{"hook", "--agent", "codex", "--project", "a"}, agents.Hook{}},
		{"a misspelt policy", []string{"hook", "--agent", "codex", "--project", "/a", "--unexpected", "maybe"}, agents.Hook{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, ok := plainHook(tt.args)
			if ok != (tt.want.Agent != "") {
				t.Fatalf("answered: %v", ok)
			}
			if !ok {
				return
			}
			if got := (agents.Hook{Agent: h.Agent, Project: h.Project, Permission: h.Permission, Unexpected: h.Unexpected}); got.Agent != tt.want.Agent ||
				got.Project != tt.want.Project || got.Permission != tt.want.Permission || got.Unexpected != tt.want.Unexpected {
				t.Errorf("%+v", got)
			}
			if h.Program == "" || h.Spool == nil {
				t.Errorf("%+v", h)
			}
		})
	}
}

// Go initialises this package before regexp as long as nothing here imports it, and so before the packages that compile
// expressions when they are initialised.
func TestHooksAreAnsweredBeforeExpressionsAreCompiled(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"regexp", "net", "net/http"} {
		if slices.Contains(strings.Fields(string(out)), p) {
			t.Errorf("package startup imports %s, directly or not", p)
		}
	}
}
