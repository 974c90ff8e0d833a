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

// ServerName is how agents call our MCP server.
const ServerName = "recluse"

// hookSeconds is how long an agent waits for the hook. It needs milliseconds; this is for a machine that is busy.
const hookSeconds = 30

//go:embed opencode.js
var openCodePlugin string

// Integration says what to write for an agent.
type Integration struct {
	Agent   Agent
	Program string // how the agent calls this program
	Project string // absolute
	// User writes the MCP entry into the user's own settings, for all projects. A hook always belongs to one project.
	User bool
	// Home is the user's directory, for User.
	Home string
	// Hook also has the agent's shell commands run in the project's session, which shows the project writable: the user's consent.
	Hook bool
	// AutoApprove runs them without asking, where the agent leaves that to a hook.
	AutoApprove bool
	// Unexpected is what becomes of calls that the hook does not understand.
	Unexpected Unexpected
	// Undo takes away what an integration has written.
	Undo bool
}

// Plan says what changes, and changes nothing. Files that are as they should be are left out.
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

// server is how agents write an MCP server, each its own part of it.
type server struct {
	Type    string   `json:"type,omitempty"`
	Command any      `json:"command"`
	Args    []string `json:"args,omitempty"`
	Enabled bool     `json:"enabled,omitempty"`
}

// matcher is how Claude Code and Codex write a hook of a tool.
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

// file is one that is to be changed.
type file struct {
	path, what string
	change     func(path string, data []byte) ([]byte, error)
}

// files lists them for the agent.
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
			return i.put(f, server{Type: "stdio", Command: i.Program, Args: []string{"mcp"}}, "mcpServers", ServerName)
		}))
		add(hook, at(".claude", "settings.local.json"), i.json(i.nested))
	case OpenCode:
		path := first(at("opencode.jsonc"), at("opencode.json"))
		if i.User {
			path = first(home(".config", "opencode", "opencode.jsonc"), home(".config", "opencode", "opencode.json"))
		}
		add(entry, path, i.json(func(f *jsonFile) (bool, error) {
			return i.put(f, server{Type: "local", Command: []string{i.Program, "mcp"}, Enabled: true}, "mcp", ServerName)
		}))
		add(hook, at(".opencode", "plugins", "recluse.js"), i.plugin)
	case Codex:
		path := at(".codex", "config.toml")
		if i.User {
			path = home(".codex", "config.toml")
		}
		add(entry, path, i.toml)
		add(hook, at(".codex", "hooks.json"), i.json(i.nested))
		add("the rule for the hook's commands", at(".codex", "rules", "recluse.rules"), i.rule)
	case Cursor:
		path := at(".cursor", "mcp.json")
		if i.User {
			path = home(".cursor", "mcp.json")
		}
		add(entry, path, i.json(func(f *jsonFile) (bool, error) {
			return i.put(f, server{Command: i.Program, Args: []string{"mcp"}}, "mcpServers", ServerName)
		}))
		add(hook, at(".cursor", "hooks.json"), i.json(i.flat))
	}
	if !i.Hook && !i.Undo {
		out = out[:1]
	}
	return out
}

// first gives the first path that is there, or the last.
func first(paths ...string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return paths[len(paths)-1]
}

// HookCommand is what the agent calls before each tool.
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

// ours recognizes a hook that an integration has written, whatever program and project it names.
func (i *Integration) ours(command any) bool {
	text, ok := command.(string)
	return ok && strings.Contains(text, " hook --agent "+string(i.Agent)+" --project ")
}

// json changes a file of JSON.
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
		if i.Undo && leftover(out) {
			return nil, nil
		}
		return out, nil
	}
}

// leftover reports what is left of a file that held nothing but ours. The version is what Cursor wants in each.
func leftover(data []byte) bool {
	var v map[string]any
	if json.Unmarshal(data, &v) != nil { // a comment makes it somebody's
		return false
	}
	delete(v, "version")
	return len(v) == 0
}

// put sets or removes one value.
func (i *Integration) put(f *jsonFile, value any, path ...string) (bool, error) {
	if i.Undo {
		return f.remove(path...)
	}
	return f.set(value, path...)
}

// nested is the form of Claude Code and Codex: hooks.PreToolUse is a list of matchers, each with a list of hooks.
func (i *Integration) nested(f *jsonFile) (bool, error) {
	mine := func(raw map[string]any) bool {
		hooks, _ := raw["hooks"].([]any)
		if len(hooks) != 1 {
			return false
		}
		h, _ := hooks[0].(map[string]any)
		return i.ours(h["command"])
	}
	return f.entry(i.orNothing(matcher{"Bash", []hookEntry{{Type: "command", Command: i.HookCommand(), Timeout: hookSeconds}}}), mine, "hooks", "PreToolUse")
}

// flat is the form of Cursor: hooks.preToolUse is a list of hooks.
func (i *Integration) flat(f *jsonFile) (bool, error) {
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
	return f.entry(i.orNothing(hookEntry{Matcher: "Shell", Command: i.HookCommand(), Timeout: hookSeconds}),
		func(raw map[string]any) bool { return i.ours(raw["command"]) }, "hooks", "preToolUse")
}

func (i *Integration) orNothing(v any) any {
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

// whole changes a file that holds nothing but ours. Its head tells so.
func (i *Integration) whole(path string, data []byte, head, body string) ([]byte, error) {
	if data != nil && !strings.HasPrefix(string(data), head) {
		if i.Undo {
			return data, nil
		}
		return nil, unusable(path, "move it away", "it was not written by recluse")
	}
	if i.Undo {
		return nil, nil
	}
	return []byte(head + ".\n" + body), nil
}

// plugin is opencode's.
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
	return i.whole(path, data, "// Written by recluse integrate opencode", r.Replace(openCodePlugin))
}

// rule has Codex run the commands that the hook writes outside of Codex's own sandbox. Inside of it they could neither start nor reach a
// server: it forbids every connection, and files outside of the project. Codex applies a rule to a command only if it finds nothing
// but plain words in it: no quoted program, and no quote within a quoted word.
func (i *Integration) rule(path string, data []byte) ([]byte, error) {
	if !i.Undo && (word(i.Program) != i.Program || strings.Contains(i.Project, "'")) {
		return nil, unusable(path, "move it to a path of letters, digits, and ./_+@%-",
			"Codex's rules cannot name the program %q in the project %q", i.Program, i.Project)
	}
	pattern, err := marshal([]string{i.Program, "hook", "run", "--project", i.Project})
	if err != nil {
		return nil, err
	}
	return i.whole(path, data, "# Written by recluse integrate codex", fmt.Sprintf(codexRule, bytes.TrimSpace(pattern)))
}

const codexRule = `# The commands that the hook writes run outside of Codex's sandbox, and in recluse's instead.

prefix_rule(
    pattern = %s,
    decision = "allow",
    justification = "runs in the recluse sandbox of this project",
)
`

// Warnings tells what the user of an agent has to know, or do, for the hook to work.
func (i *Integration) Warnings() []string {
	if i.Agent != Codex || !i.Hook || i.Undo {
		return nil
	}
	return []string{
		"Codex silently skips untrusted hooks and runs their commands on this machine: start codex in " + i.Project +
			", trust the project, and trust the hook by /hooks; again after each change of the hook",
		"commands that go through the hook run outside of Codex's own sandbox and without its approval (" + filepath.Join(i.Project, ".codex", "rules", "recluse.rules") +
			"): in recluse's sandbox, which may write to the project even where Codex is read-only",
	}
}
