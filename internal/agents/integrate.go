package agents

import (
	"bytes"
	_ "embed" // the plugin for opencode
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ServerName is the name of the MCP server in the configuration of agents.
const ServerName = "recluse"

// hookTimeoutSeconds is how long an agent waits for the hook. The hook needs milliseconds; the rest is for a busy
// machine.
const hookTimeoutSeconds = 30

//go:embed opencode.js
var openCodePlugin string

// Integration describes the integration of one agent.
type Integration struct {
	Agent   Agent
	Program string // path of this program for the agent
	Project string // absolute
	// User writes the MCP server into the user's own settings, for all projects. A hook always belongs to one project.
	User bool
	// Home is the user's home directory; only for User.
	Home string
	// Hook also runs the agent's shell commands in the project's session, in which the project is writable. Setting it
	// is the user's consent to that.
	Hook bool
	// AutoApprove runs the commands without asking the user, if the agent leaves that decision to a hook.
	AutoApprove bool
	// Unexpected is how the hook handles input that it does not understand.
	Unexpected Unexpected
	// Undo removes what an integration has written.
	Undo bool
}

// Plan returns the necessary changes without applying them. It omits files that need no change.
func (i *Integration) Plan() ([]*Change, error) {
	var out []*Change
	for _, f := range i.files() {
		c, err := edit(f.path, f.what, f.change)
		if err != nil {
			return nil, err
		}
		if c != nil {
			out = append(out, c)
		}
	}
	return out, nil
}

// server is an MCP server in the configuration of agents. Each agent uses some of the fields.
type server struct {
	Type    string   `json:"type,omitempty"`
	Command any      `json:"command"`
	Args    []string `json:"args,omitempty"`
	Enabled bool     `json:"enabled,omitempty"`
}

// matcher is the hooks of one tool in the configuration of Claude Code and Codex.
type matcher struct {
	Matcher string      `json:"matcher"`
	Hooks   []hookEntry `json:"hooks"`
}

// hookEntry is one hook.
type hookEntry struct {
	Type    string `json:"type,omitempty"`
	Matcher string `json:"matcher,omitempty"` // Cursor
	Command string `json:"command"`
	Timeout int    `json:"timeout"` // seconds
}

// file is a file to change.
type file struct {
	path, what string
	change     func(path string, data []byte) ([]byte, error)
}

// files returns the files to change for the agent.
func (i *Integration) files() []file {
	var out []file
	at := func(parts ...string) string { return filepath.Join(append([]string{i.Project}, parts...)...) }
	home := func(parts ...string) string { return filepath.Join(append([]string{i.Home}, parts...)...) }
	add := func(what, path string, change func(string, []byte) ([]byte, error)) {
		out = append(out, file{path, what, change})
	}
	const entry, hook = "the MCP server", "the hook of shell commands"
	switch i.Agent {
	case ClaudeCode:
		path := at(".mcp.json")
		if i.User {
			path = home(".claude.json")
		}
		add(entry, path, i.json(func(f *jsonFile) (bool, error) {
			return i.setOrRemove(f, server{Type: "stdio", Command: i.Program, Args: []string{"mcp"}},
				"mcpServers", ServerName)
		}))
		add(hook, at(".claude", "settings.local.json"), i.json(i.nestedHooks))
	case OpenCode:
		path := firstExisting(at("opencode.jsonc"), at("opencode.json"))
		if i.User {
			path = firstExisting(
				home(".config", "opencode", "opencode.jsonc"),
				home(".config", "opencode", "opencode.json"),
			)
		}
		add(entry, path, i.json(func(f *jsonFile) (bool, error) {
			return i.setOrRemove(f, server{Type: "local", Command: []string{i.Program, "mcp"}, Enabled: true},
				"mcp", ServerName)
		}))
		add(hook, at(".opencode", "plugins", "recluse.js"), i.plugin)
	case Codex:
		path := at(".codex", "config.toml")
		if i.User {
			path = home(".codex", "config.toml")
		}
		add(entry, path, i.toml)
		add(hook, at(".codex", "hooks.json"), i.json(i.nestedHooks))
		add("the rule for the hook's commands", at(".codex", "rules", "recluse.rules"), i.rule)
	case Cursor:
		path := at(".cursor", "mcp.json")
		if i.User {
			path = home(".cursor", "mcp.json")
		}
		add(entry, path, i.json(func(f *jsonFile) (bool, error) {
			return i.setOrRemove(f, server{Command: i.Program, Args: []string{"mcp"}}, "mcpServers", ServerName)
		}))
		add(hook, at(".cursor", "hooks.json"), i.json(i.flatHooks))
	}
	if !i.Hook && !i.Undo {
		out = out[:1]
	}
	return out
}

// firstExisting returns the first path that exists, or the last path.
func firstExisting(paths ...string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return paths[len(paths)-1]
}

// HookCommand returns the command that the agent runs before each tool call.
func (i *Integration) HookCommand() string {
	c := Quote(i.Program) + " hook --agent " + string(i.Agent) + " --project " + Quote(i.Project)
	if i.AutoApprove && i.Agent == ClaudeCode {
		c += " --permission allow"
	}
	if i.Unexpected == PassThrough {
		c += " --unexpected pass"
	}
	return c
}

// isOurHook reports whether an integration has written this hook, for any program and project.
func (i *Integration) isOurHook(command any) bool {
	text, ok := command.(string)
	return ok && strings.Contains(text, " hook --agent "+string(i.Agent)+" --project ")
}

// json returns a function that changes a JSON file.
func (i *Integration) json(change func(*jsonFile) (bool, error)) func(string, []byte) ([]byte, error) {
	return func(path string, data []byte) ([]byte, error) {
		if data == nil && i.Undo {
			return nil, nil
		}
		f, err := parseJSON(path, data)
		if err != nil {
			return nil, err
		}
		changed, err := change(f)
		if err != nil || !changed {
			return data, err
		}
		out := f.bytes()
		if i.Undo && isEmptySettings(out) {
			return nil, nil
		}
		return out, nil
	}
}

// isEmptySettings reports whether a file contains nothing except a version, which Cursor requires in each file.
func isEmptySettings(data []byte) bool {
	var v map[string]any
	if json.Unmarshal(data, &v) != nil { // a file with a comment belongs to the user
		return false
	}
	delete(v, "version")
	return len(v) == 0
}

// setOrRemove sets a value, or removes it with Undo.
func (i *Integration) setOrRemove(f *jsonFile, value any, path ...string) (bool, error) {
	if i.Undo {
		return f.remove(path...)
	}
	return f.set(value, path...)
}

// nestedHooks sets or removes the hook of Claude Code and Codex: hooks.PreToolUse is a list of matchers, each with a
// list of hooks.
func (i *Integration) nestedHooks(f *jsonFile) (bool, error) {
	isOurs := func(raw map[string]any) bool {
		hooks, _ := raw["hooks"].([]any)
		if len(hooks) != 1 {
			return false
		}
		h, _ := hooks[0].(map[string]any)
		return i.isOurHook(h["command"])
	}
	hook := hookEntry{Type: "command", Command: i.HookCommand(), Timeout: hookTimeoutSeconds}
	return f.setEntry(i.unlessUndo(matcher{"Bash", []hookEntry{hook}}), isOurs, "hooks", "PreToolUse")
}

// flatHooks sets or removes the hook of Cursor: hooks.preToolUse is a list of hooks.
func (i *Integration) flatHooks(f *jsonFile) (bool, error) {
	if !i.Undo {
		root, err := f.object(true)
		if err != nil {
			return false, err
		}
		if _, v := member(root, "version"); v == nil {
			if _, err := f.set(1, "version"); err != nil {
				return false, err
			}
		}
	}
	return f.setEntry(i.unlessUndo(hookEntry{Matcher: "Shell", Command: i.HookCommand(), Timeout: hookTimeoutSeconds}),
		func(raw map[string]any) bool { return i.isOurHook(raw["command"]) }, "hooks", "preToolUse")
}

// unlessUndo returns v, or nil with Undo.
func (i *Integration) unlessUndo(v any) any {
	if i.Undo {
		return nil
	}
	return v
}

// toml changes Codex's settings.
func (i *Integration) toml(path string, data []byte) ([]byte, error) {
	name := []string{"mcp_servers", ServerName}
	if i.Undo {
		out, err := dropTable(path, data, name)
		if err != nil || bytes.Equal(out, data) {
			return data, err
		}
		if len(bytes.TrimSpace(out)) == 0 {
			return nil, nil
		}
		return out, nil
	}
	return setTable(path, data, name, []pair{{"command", tomlString(i.Program)}, {"args", `["mcp"]`}})
}

// ownFile changes a file that belongs to recluse alone, which it recognizes by the first line.
func (i *Integration) ownFile(path string, data []byte, head, body string) ([]byte, error) {
	if data != nil && !strings.HasPrefix(string(data), head) {
		if i.Undo {
			return data, nil
		}
		return nil, unusable(path, "move the file away", "the file was not written by recluse")
	}
	if i.Undo {
		return nil, nil
	}
	return []byte(head + ".\n" + body), nil
}

// plugin changes the opencode plugin.
func (i *Integration) plugin(path string, data []byte) ([]byte, error) {
	args := []string{"hook", "--agent", string(OpenCode), "--project", i.Project}
	if i.Unexpected == PassThrough {
		args = append(args, "--unexpected", "pass")
	}
	program, err := marshal(i.Program)
	if err != nil {
		return nil, err
	}
	list, err := marshal(args)
	if err != nil {
		return nil, err
	}
	r := strings.NewReplacer("$PROGRAM", strings.TrimSpace(string(program)), "$ARGS", strings.TrimSpace(string(list)))
	return i.ownFile(path, data, "// Written by recluse integrate opencode", r.Replace(openCodePlugin))
}

// rule changes the file with the rule by which Codex runs the hook's commands outside of Codex's own sandbox. In that
// sandbox they could neither start nor reach a server, because it forbids all connections and files outside of the
// project. Codex applies a rule to a command only if the command contains only plain words: no quoted program, and no
// quote within a quoted word.
func (i *Integration) rule(path string, data []byte) ([]byte, error) {
	if !i.Undo && (shellWord(i.Program) != i.Program || strings.Contains(i.Project, "'")) {
		return nil, unusable(path, "move the program or project to a path of letters, digits, and ./_+@%-",
			"Codex's rules cannot name the program %q in the project %q", i.Program, i.Project)
	}
	pattern, err := marshal([]string{i.Program, "hook", "run", "--project", i.Project})
	if err != nil {
		return nil, err
	}
	body := fmt.Sprintf(codexRule, bytes.TrimSpace(pattern))
	return i.ownFile(path, data, "# Written by recluse integrate codex", body)
}

const codexRule = `# The commands that the hook writes run outside of Codex's sandbox, and in recluse's instead.

prefix_rule(
    pattern = %s,
    decision = "allow",
    justification = "runs in the recluse sandbox of this project",
)
`

// Warnings returns what the user of an agent has to know or to do so that the hook works.
func (i *Integration) Warnings() []string {
	if i.Agent != Codex || !i.Hook || i.Undo {
		return nil
	}
	return []string{
		"Codex silently skips untrusted hooks and runs their commands on this machine: start codex in " + i.Project +
			", trust the project, and trust the hook with /hooks; repeat this after each change of the hook",
		"commands that go through the hook run outside of Codex's own sandbox and without its approval (" +
			filepath.Join(i.Project, ".codex", "rules", "recluse.rules") +
			"): they run in recluse's sandbox, which can write to the project even if Codex is read-only",
	}
}
