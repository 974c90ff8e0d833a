package agents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Unexpected is how a hook handles input that it does not understand.
type Unexpected string

// The values of Unexpected.
const (
	Block       Unexpected = "block" // the command does not run
	PassThrough Unexpected = "pass"  // the command runs unchanged, outside of the sandbox
)

// Limits of a hook.
const (
	// MaxInput is the maximum size of a hook's input in bytes.
	MaxInput = 64 << 20
	// maxInline is the maximum size of a command that is passed as an argument. Linux allows 128 KiB for one argument.
	maxInline = 64 << 10
	// DefaultTimeout is the timeout of a command for which the agent sets none, so that a command whose agent died does
	// not run forever.
	DefaultTimeout = 10 * time.Minute
	// statusBlock is the exit status with which a hook blocks a call; the reason is on stderr.
	statusBlock = 2
)

// Hook rewrites the shell commands of an agent.
type Hook struct {
	Agent   Agent
	Program string // path of this program
	Project string // absolute; mounted at its own path
	// Permission is the decision that Claude Code receives with the new command: with ask (or empty) its user approves
	// the command, with allow the command runs.
	Permission string
	Unexpected Unexpected // empty: Block
	// Spool writes a command that cannot be an argument into a file, and returns the path. The command hook run removes
	// the file.
	Spool func(code string) (string, error)
}

// Reply is the output and the exit status of a hook.
type Reply struct {
	Stdout []byte
	Stderr string
	Status int
}

// call is a shell command that an agent is about to run.
type call struct {
	command    string
	dir        string
	timeout    time.Duration // 0: not set
	background bool
	fields     object // all arguments of the tool, which the answer repeats
}

// errNotShell means that a call is not a shell command, and passes unchanged.
var errNotShell = errors.New("not a shell command")

// Answer returns the answer to a hook's input: the call with a command that runs in the project's session.
func (h *Hook) Answer(input []byte) Reply {
	c, err := h.read(input)
	switch {
	case errors.Is(err, errNotShell):
		return h.pass()
	case err != nil && h.Unexpected == PassThrough:
		return h.pass()
	case err != nil:
		return block("the command was not run, because the hook's input is not in the expected format of %s (%v). "+
			"Tell your user; recluse integrate %s writes the hook again", h.Agent, err, h.Agent)
	}
	if h.isRewritten(c.command) {
		return h.pass() // the command is rewritten already
	}
	if !within(c.dir, h.Project) {
		if resolved, err := filepath.EvalSymlinks(c.dir); err == nil {
			c.dir = resolved // it may be in the project under another name
		}
	}
	if !within(c.dir, h.Project) {
		return block("the working directory %s is outside of %s, and the sandbox contains only that directory. "+
			"Change to a directory in it first", c.dir, h.Project)
	}
	line, err := h.rewrittenCommand(c)
	if err != nil {
		return block("the command could not be passed on: %v", err)
	}
	out, err := h.response(c, line)
	if err != nil {
		return block("the command could not be passed on: %v", err)
	}
	return Reply{Stdout: out}
}

func block(format string, args ...any) Reply {
	return Reply{Stderr: "recluse: " + fmt.Sprintf(format, args...) + "\n", Status: statusBlock}
}

// pass returns the answer for a call that runs unchanged. Cursor and the opencode plugin require JSON.
func (h *Hook) pass() Reply {
	if h.Agent == Cursor || h.Agent == OpenCode {
		return Reply{Stdout: []byte("{}\n")}
	}
	return Reply{}
}

// object is a JSON object with exact keys. Go's decoder ignores the case of keys when it decodes into a struct.
type object map[string]json.RawMessage

// get decodes the value of a key into v. It does nothing if the key is missing.
func (o object) get(key string, v any) error {
	raw, ok := o[key]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// read returns the call in a hook's input. It returns errNotShell for another tool, and another error for an unexpected
// input.
func (h *Hook) read(raw []byte) (*call, error) {
	if len(raw) > MaxInput {
		return nil, fmt.Errorf("larger than %d MiB", MaxInput>>20)
	}
	if err := checkExact(raw); err != nil {
		return nil, err
	}
	var in object
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, err
	}
	var gotEvent, gotTool string
	if err := errors.Join(in.get("hook_event_name", &gotEvent), in.get("tool_name", &gotTool)); err != nil {
		return nil, err
	}
	event, tool := "PreToolUse", "Bash"
	switch h.Agent {
	case Cursor:
		event, tool = "preToolUse", "Shell"
	case OpenCode:
		event, tool = "tool.execute.before", "bash"
	case ClaudeCode, Codex:
	}
	if gotEvent == "" || gotTool == "" {
		return nil, errors.New("missing hook_event_name or tool_name")
	}
	if gotEvent != event || gotTool != tool {
		return nil, errNotShell
	}
	return h.shell(in)
}

// shell returns the call in the arguments of a shell tool.
func (h *Hook) shell(in object) (*call, error) {
	c := &call{}
	if err := in.get("tool_input", &c.fields); err != nil || c.fields == nil {
		return nil, errors.New("tool_input is not an object")
	}
	var (
		command            *string
		timeout            *float64 // milliseconds
		roots              []string // Cursor
		workdir, directory string   // opencode, Cursor
	)
	if err := errors.Join(
		c.fields.get(
			"command",
			&command,
		),
		c.fields.get("timeout", &timeout),
		c.fields.get("run_in_background", &c.background),
		c.fields.get(
			"workdir",
			&workdir,
		),
		c.fields.get("working_directory", &directory),
		in.get("cwd", &c.dir),
		in.get("workspace_roots", &roots),
	); err != nil {
		return nil, err
	}
	if command == nil {
		return nil, errors.New("missing command in tool_input")
	}
	if strings.ContainsRune(*command, 0) {
		return nil, errors.New("the command contains a NUL byte")
	}
	c.command = *command
	if c.dir == "" && len(roots) > 0 {
		c.dir = roots[0]
	}
	for _, d := range []string{workdir, directory} {
		switch {
		case d == "":
		case filepath.IsAbs(d):
			c.dir = d
		default:
			c.dir = filepath.Join(c.dir, d)
		}
	}
	if c.dir == "" {
		c.dir = h.Project
	}
	if !filepath.IsAbs(c.dir) {
		return nil, fmt.Errorf("the working directory %.80q is not absolute", c.dir)
	}
	c.dir = filepath.Clean(c.dir)
	if timeout != nil {
		if *timeout <= 0 || *timeout > float64(24*time.Hour/time.Millisecond) {
			return nil, fmt.Errorf("invalid timeout of %v ms", *timeout)
		}
		c.timeout = time.Duration(*timeout * float64(time.Millisecond))
	}
	return c, nil
}

// prefix returns the beginning of all rewritten commands.
func (h *Hook) prefix() string { return shellWord(h.Program) + " hook run " }

// rewrittenCommand returns the command that the agent runs instead.
func (h *Hook) rewrittenCommand(c *call) (string, error) {
	var b strings.Builder
	b.WriteString(h.prefix())
	b.WriteString("--project " + Quote(h.Project))
	if c.dir != h.Project {
		if h.Agent == Codex && strings.Contains(c.dir, "'") {
			return "", fmt.Errorf("the working directory %s contains a single quote, "+
				"which Codex's rules cannot match; work in another directory", c.dir)
		}
		b.WriteString(" --dir " + Quote(c.dir))
	}
	switch {
	case c.timeout > 0:
		b.WriteString(" --timeout " + c.timeout.String())
	case !c.background:
		b.WriteString(" --timeout " + DefaultTimeout.String())
	}
	// Codex's rules do not match words that contain quotes; see Integration.rule.
	if len(c.command) <= maxInline && !(h.Agent == Codex && strings.Contains(c.command, "'")) {
		b.WriteString(" -- " + Quote(c.command))
		return b.String(), nil
	}
	if h.Spool == nil {
		return "", errors.New("the command is too long")
	}
	file, err := h.Spool(c.command)
	if err != nil {
		return "", err
	}
	b.WriteString(" --file " + Quote(file))
	return b.String(), nil
}

// isRewritten reports whether the whole command has the form that rewrittenCommand returns for this project. With
// anything more in it, a part of the command would run on this machine.
func (h *Hook) isRewritten(command string) bool {
	rest, ok := strings.CutPrefix(command, h.prefix()+"--project "+Quote(h.Project))
	if !ok {
		return false
	}
	if after, ok := strings.CutPrefix(rest, " --dir "); ok {
		var dir string
		if dir, rest, ok = unquote(after); !ok || dir != filepath.Clean(dir) || !within(dir, h.Project) {
			return false
		}
	}
	if after, ok := strings.CutPrefix(rest, " --timeout "); ok {
		end := max(strings.IndexByte(after, ' '), 0)
		if d, err := v1.ParseDuration(after[:end]); err != nil || d <= 0 || d.Std().String() != after[:end] {
			return false
		}
		rest = after[end:]
	}
	last, ok := strings.CutPrefix(rest, " -- ")
	if !ok {
		if last, ok = strings.CutPrefix(rest, " --file "); !ok {
			return false
		}
	}
	_, rest, ok = unquote(last)
	return ok && rest == ""
}

// response returns the answer with the new command and all other arguments unchanged.
func (h *Hook) response(c *call, line string) ([]byte, error) {
	command, err := marshal(line)
	if err != nil {
		return nil, err
	}
	c.fields["command"] = bytes.TrimSuffix(command, []byte("\n"))
	switch h.Agent {
	case Cursor:
		return marshal(map[string]any{"permission": "allow", "updated_input": c.fields})
	case OpenCode:
		return marshal(map[string]any{"args": c.fields})
	case ClaudeCode, Codex:
	}
	decision, reason := h.Permission, "runs in the recluse sandbox of this project"
	if h.Agent == Codex {
		decision = "allow" // Codex accepts a changed input only with this decision
	}
	if decision == "" || decision == "ask" {
		// Without a terminal, Claude Code refuses commands that need an approval, and shows the reason.
		decision, reason = "ask", reason+"; to run such commands without asking, as claude -p needs: recluse integrate claude-code --bash --auto-approve"
	}
	return marshal(map[string]any{"hookSpecificOutput": map[string]any{
		"hookEventName":            "PreToolUse",
		"permissionDecision":       decision,
		"permissionDecisionReason": reason,
		"updatedInput":             c.fields,
	}})
}

// marshal returns v as JSON without HTML escapes.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// checkExact returns an error for JSON whose strings Go's decoder would change: invalid UTF-8 and unpaired surrogates.
func checkExact(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("invalid UTF-8")
	}
	var high bool // the previous escape was the first half of a pair
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' || i+1 >= len(raw) {
			if high {
				return errSurrogate
			}
			continue
		}
		i++
		if raw[i] != 'u' {
			if high {
				return errSurrogate
			}
			continue
		}
		if i+4 >= len(raw) {
			return errors.New("incomplete escape at the end")
		}
		digits := strings.ToLower(string(raw[i+1 : i+5]))
		i += 4
		first, second := digits[0] == 'd' &&
			strings.Contains("89ab", digits[1:2]), digits[0] == 'd' &&
			strings.Contains("cdef", digits[1:2])
		if high != second {
			return errSurrogate
		}
		high = first
	}
	if high {
		return errSurrogate
	}
	return nil
}

var errSurrogate = errors.New("unpaired surrogate")
