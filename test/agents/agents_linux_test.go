package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// owner is the uid of the project's owner, which is neither root nor the default user of a sandbox.
const owner = 4242

// whereAmI is a command whose output shows where it ran: a sandbox has no /boot, and code runs as the project's owner.
const whereAmI = `echo "it's user $(id -u)"; ls / | grep -c ^boot$; echo made > made; exit 3`

// workspace is a project and an empty home directory.
type workspace struct {
	t             *testing.T
	bin           string // the agents' programs
	recluse       string
	home, project string
	env           []string
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	testneed.Sandboxes(t)
	testneed.Root(t, "a writable mount")
	p := &workspace{t: t, bin: installed(t), home: t.TempDir()}
	programs, err := testbin.Shared()
	if err != nil {
		t.Fatal(err)
	}
	p.recluse = filepath.Join(programs, "recluse")
	// not below /tmp, because a sandbox has its own /tmp
	if p.project, err = os.MkdirTemp("/srv", "recluse-agents-"); err != nil {
		testneed.Lacking(t, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(p.project) })
	if err := errors.Join(os.Chmod(p.project, 0o755), os.Chown(p.project, owner, owner)); err != nil {
		t.Fatal(err)
	}
	p.env = []string{
		"HOME=" + p.home, "PATH=" + p.bin + ":/usr/local/bin:/usr/bin:/bin", "TERM=dumb", "RECLUSE_BACKEND_ORDER=gvisor", "XDG_RUNTIME_DIR=",
		"ANTHROPIC_API_KEY=none", "CODEX_API_KEY=none", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1",
	}
	t.Cleanup(func() {
		for _, args := range [][]string{{"session", "end", "--all"}, {"server", "stop"}} {
			if out, err := p.run(p.recluse, args...); err != nil {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	})
	return p
}

// run runs a program in the project, and returns its output.
func (p *workspace) run(name string, args ...string) (string, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), agentTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = p.project, p.env
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	p.t.Logf("%s took %s", filepath.Base(name), time.Since(begun).Round(time.Millisecond))
	return string(out), err
}

// integrate writes the settings of an agent.
func (p *workspace) integrate(args ...string) string {
	p.t.Helper()
	out, err := p.run(p.recluse, append([]string{"integrate"}, args...)...)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (p *workspace) write(path, content string) {
	p.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		p.t.Fatal(err)
	}
}

// agent runs an agent, which runs the model's command, and returns the agent's output.
func (p *workspace) agent(m *model, name string, args ...string) string {
	p.t.Helper()
	p.env = append(p.env, "ANTHROPIC_BASE_URL="+m.url)
	out, err := p.run(filepath.Join(p.bin, name), args...)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// checkRanInside checks that whereAmI ran in the project's sandbox, and that the agent offered the tools of recluse's
// MCP server.
func (p *workspace) checkRanInside(m *model, out string) {
	p.t.Helper()
	want := "user 4242\n0"
	if strings.Contains(m.command, "it's") {
		want = "it's " + want
	}
	if got := m.result(); !strings.Contains(got, want) {
		p.t.Errorf("the command's result is %q\n%s", got, out)
	}
	if !m.offered("recluse") {
		p.t.Errorf("the agent does not offer the tools of recluse: %q", m.tools)
	}
	fi, err := os.Stat(filepath.Join(p.project, "made"))
	if err != nil {
		p.t.Fatal(err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || st.Uid != owner {
		p.t.Errorf("the file does not belong to the owner: %+v", fi.Sys())
	}
}

func TestClaudeCode(t *testing.T) {
	testneed.Parallel(t)
	p, m := newWorkspace(t), newModel(t, whereAmI)
	p.integrate("claude-code", "--bash", "--auto-approve")
	p.checkRanInside(m, p.agent(m, "claude", "-p", "go"))
}

func TestClaudeCodeThatCannotAskNamesTheFlag(t *testing.T) {
	testneed.All(t, "TestHooksOfEveryAgent in internal/agents shows the same answer of the hook")
	p, m := newWorkspace(t), newModel(t, whereAmI)
	p.integrate("claude-code", "--bash")
	if out := p.agent(m, "claude", "-p", "go"); !strings.Contains(m.result(), "recluse integrate claude-code --bash --auto-approve") {
		t.Errorf("the command's result is %q\n%s", m.result(), out)
	}
	if _, err := os.Stat(filepath.Join(p.project, "made")); err == nil {
		t.Error("the command ran without approval")
	}
}

func TestOpenCode(t *testing.T) {
	testneed.All(t, "TestClaudeCode drives a real agent; the hook's answers to each agent are tested in internal/agents")
	testneed.Parallel(t)
	p, m := newWorkspace(t), newModel(t, whereAmI)
	p.integrate("opencode", "--bash")
	p.write(filepath.Join(p.home, ".config", "opencode", "opencode.json"), text(object{
		"model": "anthropic/claude-sonnet-4-5", "small_model": "anthropic/claude-sonnet-4-5",
		"provider": object{"anthropic": object{"options": object{"baseURL": m.url + "/v1", "apiKey": "none"}}},
	}))
	// opencode installs a package for plugins, which the plugin of recluse does not need. A registry without packages
	// answers at once; without a network, opencode would try for a minute.
	p.write(filepath.Join(p.home, ".npmrc"), "registry="+m.url+"/\nfetch-retries=0\n")
	p.env = append(p.env, "npm_config_registry="+m.url+"/", "npm_config_fetch_retries=0")
	p.checkRanInside(m, p.agent(m, "opencode", "run", "go"))
}

// codex runs Codex in a trusted project, with its own sandbox in the given mode.
func (p *workspace) codex(m *model, mode string, flags ...string) string {
	p.t.Helper()
	p.write(filepath.Join(p.home, ".codex", "config.toml"), fmt.Sprintf(`model = "fake"
model_provider = "fake"

[model_providers.fake]
name = "fake"
base_url = "%s/v1"
wire_api = "responses"

[projects.%q]
trust_level = "trusted"
`, m.url, p.project))
	return p.agent(m, "codex", append(append([]string{"exec", "--skip-git-repo-check", "--sandbox", mode}, flags...), "go")...)
}

// bypassTrust has the effect of a user who has trusted the hook.
const bypassTrust = "--dangerously-bypass-hook-trust"

func TestCodex(t *testing.T) {
	testneed.All(t, "TestClaudeCode drives a real agent; the hook's answers to each agent are tested in internal/agents")
	testneed.Parallel(t)
	p, m := newWorkspace(t), newModel(t, whereAmI)
	if out := p.integrate("codex", "--bash"); !strings.Contains(out, "warning: Codex silently skips untrusted hooks") {
		t.Errorf("no warning: %s", out)
	}
	p.checkRanInside(m, p.codex(m, "workspace-write", bypassTrust))
}

func TestCodexInItsOtherModes(t *testing.T) {
	testneed.All(t, "TestCodex runs it in its default mode")
	for _, mode := range []string{"read-only", "danger-full-access"} {
		t.Run(mode, func(t *testing.T) {
			// a command without a quote is passed as an argument
			p, m := newWorkspace(t), newModel(t, strings.ReplaceAll(whereAmI, "it's ", ""))
			p.integrate("codex", "--bash")
			p.checkRanInside(m, p.codex(m, mode, bypassTrust))
		})
	}
}

// TestCodexSkipsAHookThatIsNotTrusted shows the reason for the warning of integrate.
func TestCodexSkipsAHookThatIsNotTrusted(t *testing.T) {
	testneed.All(t, "it tests Codex, not recluse")
	p, m := newWorkspace(t), newModel(t, "id -u")
	p.integrate("codex", "--bash")
	if out := p.codex(m, "danger-full-access"); !strings.Contains(m.result(), "\n0\n") {
		t.Errorf("the command's result is %q: does Codex no longer run it on this machine?\n%s", m.result(), out)
	}
}
