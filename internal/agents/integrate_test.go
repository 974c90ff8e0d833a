package agents

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// newIntegration returns an integration with a project and a home directory of the test.
func newIntegration(t *testing.T, a Agent) *Integration {
	t.Helper()
	top := t.TempDir()
	i := &Integration{Agent: a, Program: "/opt/my tools/recluse", Project: filepath.Join(top, "project"), Home: filepath.Join(top, "home"), Hook: true}
	if a == Codex {
		i.Program = "/opt/my-tools/recluse" // Codex's rules cannot match a path with a space
	}
	for _, d := range []string{i.Project, i.Home} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// apply plans and applies the changes, and returns their number.
func apply(t *testing.T, i *Integration) int {
	t.Helper()
	changes, err := i.Plan()
	if err != nil {
		t.Fatal(err)
	}
	if err := Apply(changes, filepath.Join(i.Home, "backups")); err != nil {
		t.Fatal(err)
	}
	return len(changes)
}

// tree returns all files below a directory as one text, without the project's path.
func tree(t *testing.T, i *Integration) []byte {
	t.Helper()
	var b bytes.Buffer
	err := filepath.WalkDir(i.Project, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		b.WriteString("=== " + strings.TrimPrefix(path, i.Project+"/") + "\n" + strings.ReplaceAll(string(data), i.Project, "/work/project"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func put(t *testing.T, i *Integration, name, text string) {
	t.Helper()
	path := filepath.Join(i.Project, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

// settings are existing settings of a user.
var settings = map[Agent]map[string]string{
	ClaudeCode: {
		".mcp.json": `{"mcpServers":{"other":{"command":"npx","args":["-y","x"],"env":{"K":"1e400","n":1e2}}}}`,
		".claude/settings.local.json": `{
  "permissions": {"allow": ["Bash(npm run *)"], "deny": []},
  "hooks": {
    "PreToolUse": [
      {
        "matcher": "Bash",
        "hooks": [{"type": "command", "command": "my-own-check hook --agent"}]
      }
    ],
    "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]
  },
  "model": "opus"
}
`,
	},
	OpenCode: {"opencode.jsonc": `// my settings
{
	"$schema": "https://opencode.ai/config.json",
	"mcp": {
		// the one I use
		"other": { "type": "local", "command": ["x"], }, // keep
	},
	/* last */
}
`},
	Codex: {
		".codex/config.toml": `# my settings
model = "gpt-5.1-codex" # the good one

[mcp_servers.other]
command = "x"   # keep
args = ["[mcp_servers.nothing]"]

# about the terminal
[tui]
notifications = true
`,
		".codex/hooks.json": "\xef\xbb\xbf{\r\n  \"hooks\": {}\r\n}\r\n",
	},
	Cursor: {
		".cursor/mcp.json":   "{\n    \"mcpServers\": {\n        \"other\": {\n            \"url\": \"https://example.com\"\n        }\n    }\n}",
		".cursor/hooks.json": "{\n  \"version\": 1,\n  \"hooks\": {\n    \"afterFileEdit\": [{\"command\": \"fmt\"}] // format\n  }\n}\n",
	},
}

func TestWithoutTheHookThereIsOnlyTheEntry(t *testing.T) {
	for _, a := range All {
		t.Run(string(a), func(t *testing.T) {
			i := newIntegration(t, a)
			i.Hook = false
			if n := apply(t, i); n != 1 {
				t.Errorf("%d changes", n)
			}
			if got := string(tree(t, i)); !strings.Contains(got, "mcp") || strings.Contains(strings.ToLower(got), "hook") || strings.Contains(got, "plugins") {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestANewProject(t *testing.T) {
	for _, a := range All {
		t.Run(string(a), func(t *testing.T) {
			i := newIntegration(t, a)
			if n := apply(t, i); n != len(i.files()) {
				t.Errorf("%d changes", n)
			}
			golden(t, filepath.Join("config", string(a)+".new.txt"), tree(t, i))
			if n := apply(t, i); n != 0 {
				t.Errorf("%d changes the second time", n)
			}
			i.Undo = true
			if n := apply(t, i); n != len(i.files()) {
				t.Errorf("%d changes to undo", n)
			}
			if left := tree(t, i); len(left) > 0 {
				t.Errorf("left: %s", left)
			}
			if n := apply(t, i); n != 0 {
				t.Errorf("%d changes to undo the second time", n)
			}
		})
	}
}

func TestSettingsOfOthersStay(t *testing.T) {
	for _, a := range All {
		t.Run(string(a), func(t *testing.T) {
			i := newIntegration(t, a)
			for name, text := range settings[a] {
				put(t, i, name, text)
			}
			before := tree(t, i)
			apply(t, i)
			golden(t, filepath.Join("config", string(a)+".added.txt"), tree(t, i))
			if n := apply(t, i); n != 0 {
				t.Errorf("%d changes the second time", n)
			}
			// A new path of the program replaces the old one.
			i.Program = "/elsewhere/recluse"
			if n := apply(t, i); n != len(i.files()) {
				t.Errorf("%d changes", n)
			}
			if strings.Contains(string(tree(t, i)), "/opt/my") {
				t.Errorf("the old path of the program is still there:\n%s", tree(t, i))
			}
			i.Undo = true
			apply(t, i)
			after := tree(t, i)
			for name, text := range settings[a] {
				got, err := os.ReadFile(filepath.Join(i.Project, name))
				if err != nil || !reflect.DeepEqual(meaning(t, name, []byte(text)), meaning(t, name, got)) {
					t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, text)
				}
				fi, err := os.Stat(filepath.Join(i.Project, name))
				if err != nil || fi.Mode().Perm() != 0o640 {
					t.Errorf("%s: %v", name, fi.Mode())
				}
			}
			for _, comment := range []string{"my settings", "the one I use", "// keep", "# keep", "last", "the good one", "about the terminal", "// format"} {
				if strings.Count(string(before), comment) != strings.Count(string(after), comment) {
					t.Errorf("the comment %q is lost:\n%s", comment, after)
				}
			}
			backups, _ := os.ReadDir(filepath.Join(i.Home, "backups"))
			if len(backups) == 0 {
				t.Error("no backup")
			}
		})
	}
}

func TestWhatTheUserPutIntoOurEntryStays(t *testing.T) {
	for _, tt := range []struct {
		agent Agent
		file  string
		text  string // with the previous path of the program
		want  string
	}{
		{
			ClaudeCode, ".mcp.json",
			`{"mcpServers": {"recluse": {"env": {"A": "1"}, "type": "stdio", "command": "/old/recluse", "args": ["mcp"], /* slow */ "timeout": 60000}}}` + "\n",
			`{"mcpServers": {"recluse": {"env": {"A": "1"}, "type": "stdio", "command": "/opt/my tools/recluse", "args": ["mcp"], /* slow */ "timeout": 60000}}}` + "\n",
		},
		{
			ClaudeCode, ".claude/settings.local.json",
			`{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"command": "'/old/recluse' hook --agent claude-code --project '/x'", "type": "command", "timeout": 30, "statusMessage": "mine"}]}]}}` + "\n",
			`{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"command": "'/opt/my tools/recluse' hook --agent claude-code --project 'PROJECT'", "type": "command", "timeout": 30, "statusMessage": "mine"}]}]}}` + "\n",
		},
		{
			OpenCode, "opencode.json",
			"{\n  \"mcp\": {\n    \"recluse\": {\n      \"environment\": {\"A\": \"1\"},\n      \"command\": [\"/old/recluse\", \"mcp\"]\n    }\n  }\n}\n",
			"{\n  \"mcp\": {\n    \"recluse\": {\n      \"environment\": {\"A\": \"1\"},\n      \"command\": [\"/opt/my tools/recluse\", \"mcp\"],\n      \"type\": \"local\",\n      \"enabled\": true\n    }\n  }\n}\n",
		},
		{
			Cursor, ".cursor/mcp.json",
			`{"mcpServers": {"recluse": {"command": "/old/recluse", "args": ["mcp", "old"], "envFile": ".env"}}}` + "\n",
			`{"mcpServers": {"recluse": {"command": "/opt/my tools/recluse", "args": [` + "\n        \"mcp\"\n      " + `], "envFile": ".env"}}}` + "\n",
		},
		{
			Codex, ".codex/config.toml",
			"[mcp_servers.recluse] # ours\nstartup_timeout_sec = 20 # slow\n  command = \"/old/#recluse\" # where it is\nargs = [ # several\n  \"mcp\", \"old\",\n] # lines\n\n[mcp_servers.recluse.env]\nA = \"1\"\n\n[tui]\nx = 1\n",
			"[mcp_servers.recluse] # ours\nstartup_timeout_sec = 20 # slow\n  command = \"/opt/my-tools/recluse\" # where it is\nargs = [\"mcp\"] # lines\n\n[mcp_servers.recluse.env]\nA = \"1\"\n\n[tui]\nx = 1\n",
		},
		{
			Codex, ".codex/config.toml",
			"[mcp_servers.recluse]\nargs = [\n  'mcp', # as it is\n]\nenabled = false",
			"[mcp_servers.recluse]\nargs = [\n  'mcp', # as it is\n]\nenabled = false\ncommand = \"/opt/my-tools/recluse\"\n",
		},
		{
			Codex, ".codex/config.toml",
			"[mcp_servers.recluse.env]\nA = \"1\"\n",
			"[mcp_servers.recluse.env]\nA = \"1\"\n\n[mcp_servers.recluse]\ncommand = \"/opt/my-tools/recluse\"\nargs = [\"mcp\"]\n",
		},
	} {
		i := newIntegration(t, tt.agent)
		put(t, i, tt.file, tt.text)
		apply(t, i)
		got, err := os.ReadFile(filepath.Join(i.Project, tt.file))
		if want := strings.ReplaceAll(tt.want, "PROJECT", i.Project); err != nil || string(got) != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
		if n := apply(t, i); n != 0 {
			t.Errorf("%s: %d changes the second time", tt.file, n)
		}
	}
}

func TestUndoTakesTheTablesBelowOursToo(t *testing.T) {
	i := newIntegration(t, Codex)
	i.Undo = true
	put(t, i, ".codex/config.toml", `model = "x"

[mcp_servers.recluse]
command = "y"

[mcp_servers.recluse.env]
A = "1"

# mine
[tui]
x = 1

[mcp_servers.recluse.tools.python]
approval_mode = "approve"

[mcp_servers.recluses]
command = "z"
`)
	apply(t, i)
	want := "=== .codex/config.toml\nmodel = \"x\"\n\n# mine\n[tui]\nx = 1\n\n[mcp_servers.recluses]\ncommand = \"z\"\n"
	if got := string(tree(t, i)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// meaning returns the content of a file without its formatting, and without empty objects, which an undo removes.
func meaning(t *testing.T, name string, data []byte) any {
	t.Helper()
	v := map[string]any{}
	if strings.HasSuffix(name, ".toml") {
		if err := toml.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	std, err := hujson.Standardize(bytes.TrimPrefix(bytes.Clone(data), byteOrderMark))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(std))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	for k, sub := range v {
		if m, ok := sub.(map[string]any); ok && len(m) == 0 {
			delete(v, k)
		}
	}
	return v
}

func TestTheUsersOwnSettings(t *testing.T) {
	for a, name := range map[Agent]string{ClaudeCode: ".claude.json", OpenCode: ".config/opencode/opencode.json", Codex: ".codex/config.toml", Cursor: ".cursor/mcp.json"} {
		i := newIntegration(t, a)
		i.User, i.Hook = true, false
		apply(t, i)
		if b, err := os.ReadFile(filepath.Join(i.Home, name)); err != nil || !strings.Contains(string(b), `"`+i.Program+`"`) {
			t.Errorf("%s: %s %v", a, b, err)
		}
		if left := tree(t, i); len(left) > 0 {
			t.Errorf("%s: %s", a, left)
		}
	}
}

func TestFilesThatCannotBeChanged(t *testing.T) {
	for _, tt := range []struct {
		name  string
		agent Agent
		file  string
		text  string
	}{
		{"no JSON", ClaudeCode, ".mcp.json", `{"mcpServers": `},
		{"a list", ClaudeCode, ".mcp.json", `[]`},
		{"servers are a list", ClaudeCode, ".mcp.json", `{"mcpServers": []}`},
		{"hooks are text", ClaudeCode, ".claude/settings.local.json", `{"hooks": "no"}`},
		{"events are no list", Cursor, ".cursor/hooks.json", `{"version":1,"hooks":{"preToolUse":{}}}`},
		{"no TOML", Codex, ".codex/config.toml", "a = = 1"},
		{"ours as an inline table", Codex, ".codex/config.toml", "mcp_servers = { recluse = { command = \"x\" } }\n"},
		{"ours inside a text", Codex, ".codex/config.toml", "a = \"\"\"\n[mcp_servers.recluse]\n\"\"\"\n"},
		{"ours with a table below", Codex, ".codex/config.toml", "[mcp_servers]\nrecluse.command = \"x\"\n"},
		{"somebody else's plugin", OpenCode, ".opencode/plugins/recluse.js", "export const X = 1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newIntegration(t, tt.agent)
			put(t, i, tt.file, tt.text)
			_, err := i.Plan()
			if v1.CodeOf(err) != CodeConfigFile || !strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("%v", err)
			}
			if got := string(tree(t, i)); got != "=== "+tt.file+"\n"+tt.text {
				t.Errorf("changed: %s", got)
			}
		})
	}
}

func TestAFileThatChangesMeanwhileIsNotOverwritten(t *testing.T) {
	i := newIntegration(t, ClaudeCode)
	put(t, i, ".claude/settings.local.json", "{}")
	changes, err := i.Plan()
	if err != nil {
		t.Fatal(err)
	}
	put(t, i, ".claude/settings.local.json", `{"model":"x"}`)
	if err := Apply(changes, filepath.Join(i.Home, "backups")); v1.CodeOf(err) != CodeConfigFile {
		t.Fatalf("%v", err)
	}
	// the change of .mcp.json was undone
	if got := string(tree(t, i)); got != "=== .claude/settings.local.json\n{\"model\":\"x\"}" {
		t.Errorf("%s", got)
	}
}

func TestALinkStaysALink(t *testing.T) {
	i := newIntegration(t, ClaudeCode)
	real := filepath.Join(i.Home, "dotfiles.json")
	if err := os.WriteFile(real, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(i.Project, ".mcp.json")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	apply(t, i)
	fi, err := os.Lstat(link)
	if b, rerr := os.ReadFile(real); err != nil || rerr != nil || fi.Mode()&fs.ModeSymlink == 0 || !strings.Contains(string(b), "recluse") {
		t.Errorf("%v %v %s", fi.Mode(), err, b)
	}
}

func TestThePluginIsJavaScript(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		testneed.Lacking(t, err)
	}
	i := newIntegration(t, OpenCode)
	i.Program = filepath.Join(i.Home, "recluse")
	// A program that answers like the hook replaces it, and stores its input.
	fake := "#!/bin/sh\ncat > " + Quote(filepath.Join(i.Home, "asked")) + "\necho '{\"args\":{\"command\":\"new\"}}'\n"
	if err := os.WriteFile(i.Program, []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	apply(t, i)
	plugin, err := os.ReadFile(filepath.Join(i.Project, ".opencode", "plugins", "recluse.js"))
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(i.Home, "plugin.mjs")
	if err := os.WriteFile(module, plugin, 0o600); err != nil {
		t.Fatal(err)
	}
	script := `import { Recluse } from "` + module + `"
const hooks = await Recluse({ directory: "/work/project" })
const output = { args: { command: "it's \\ \n 🦀", timeout: 5 } }
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "s", callID: "c" }, output)
const other = { args: { filePath: "x" } }
await hooks["tool.execute.before"]({ tool: "read" }, other)
console.log(JSON.stringify([output, other]))
`
	out, err := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", script).CombinedOutput()
	if err != nil || string(out) != `[{"args":{"command":"new","timeout":5}},{"args":{"filePath":"x"}}]`+"\n" {
		t.Fatalf("%v %s", err, out)
	}
	asked, err := os.ReadFile(filepath.Join(i.Home, "asked"))
	if err != nil {
		t.Fatal(err)
	}
	h := &Hook{Agent: OpenCode, Program: "/r", Project: "/work/project"}
	if r := h.Answer(asked); r.Status != 0 || !strings.Contains(string(r.Stdout), `--timeout 5ms`) {
		t.Errorf("%+v", r)
	}
}

func TestCodexRulesNameTheProgramAndTheProject(t *testing.T) {
	i := newIntegration(t, Codex)
	apply(t, i)
	rule, err := os.ReadFile(filepath.Join(i.Project, ".codex", "rules", "recluse.rules"))
	if want := `["/opt/my-tools/recluse","hook","run","--project","` + i.Project + `"]`; err != nil || !strings.Contains(string(rule), want) {
		t.Errorf("%v\n%s", err, rule)
	}
	if w := strings.Join(i.Warnings(), "\n"); !strings.Contains(w, "/hooks") || !strings.Contains(w, "recluse.rules") {
		t.Errorf("warnings: %s", w)
	}
	if w := newIntegration(t, ClaudeCode).Warnings(); w != nil {
		t.Errorf("warnings: %s", w)
	}
	for name, change := range map[string]func(*Integration){
		"the program": func(i *Integration) { i.Program = "/opt/my tools/recluse" },
		"the project": func(i *Integration) { i.Project += "'s" },
	} {
		i := newIntegration(t, Codex)
		change(i)
		if _, err := i.Plan(); v1.CodeOf(err) != CodeConfigFile || !strings.Contains(err.Error(), "Codex's rules cannot name") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
