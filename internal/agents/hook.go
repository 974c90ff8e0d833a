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

// Unexpected is what becomes of a call that we do not understand.
type Unexpected string

// The choices.
const (
	Block       Unexpected = "block" // it does not run
	PassThrough Unexpected = "pass"  // it runs as it is, outside of any sandbox
)

// The sizes and times of a hook.
const (
	// MaxInput bounds what a hook reads.
	MaxInput = 64 << 20
	// maxInline is the longest command that is handed on in the command line itself: Linux takes 128 KiB for one argument.
	maxInline = 64 << 10
	// DefaultTimeout ends a command whose agent gave none, so that one whose agent died does not run for ever.
	DefaultTimeout = 10 * time.Minute
	// statusBlock is the exit status by which a hook blocks a call; the reason is on stderr.
	statusBlock = 2
)

// Hook says how calls are rewritten.
type Hook struct {
	Agent   Agent
	Program string // how this program is called
	Project string // absolute; mounted at its own path
	// Permission is what Claude Code is told beside the new command: ask (empty) lets its user see and approve it, allow runs it.
	Permission string
	Unexpected Unexpected // empty: Block
	// Spool keeps a command that is too long for a command line and gives the file's path. hook run removes it.
	Spool func(code string) (string, error)
}

// Reply is how a hook answers.
type Reply struct {
	Stdout []byte
	Stderr string
	Status int
}

// call is a shell command that an agent is about to run.
type call struct {
	command    string
	dir        string
	timeout    time.Duration // 0: none was given
	background bool
	fields     object // everything it was given, to be given back
}

// errNotOurs is a call that is none of a shell command: it passes.
var errNotOurs = errors.New("not a shell command")

// Answer rewrites the call in a hook's input so that it runs in the project's session.
func (h *Hook) Answer(input []byte) Reply {
	c, err := h.read(input)
	switch {
	case errors.Is(err, errNotOurs):
		return h.pass()
	case err != nil && h.Unexpected == PassThrough:
		return h.pass()
	case err != nil:
		return block("the hook's input is not what recluse expects of %s (%v), so the command was not run. Tell your user; recluse integrate %s writes the hook anew", h.Agent, err, h.Agent)
	}
	if h.wrote(c.command) {
		return h.pass() // somebody has rewritten it already
	}
	if !within(c.dir, h.Project) {
		if real, err := filepath.EvalSymlinks(c.dir); err == nil {
			c.dir = real // it may be the same place by another name
		}
	}
	if !within(c.dir, h.Project) {
		return block("the working directory %s lies outside of %s, which is all that the sandbox shows. Change to a directory in it first", c.dir, h.Project)
	}
	line, err := h.line(c)
	if err != nil {
		return block("the command could not be handed on: %v", err)
	}
	out, err := h.rewritten(c, line)
	if err != nil {
		return block("the command could not be handed on: %v", err)
	}
	return Reply{Stdout: out}
}

func block(format string, args ...any) Reply {
	return Reply{Stderr: "recluse: " + fmt.Sprintf(format, args...) + "\n", Status: statusBlock}
}

// pass lets a call run as it is. Cursor and our plugin want JSON in any case.
func (h *Hook) pass() Reply {
	if h.Agent == Cursor || h.Agent == OpenCode {
		return Reply{Stdout: []byte("{}\n")}
	}
	return Reply{}
}

// object is a JSON object by its exact keys: into a struct, Go would also take keys that only look alike.
type object map[string]json.RawMessage

// get reads a key, if it is there.
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

// read understands a hook's input, exactly or not at all.
func (h *Hook) read(raw []byte) (*call, error) {
	if len(raw) > MaxInput {
		return nil, fmt.Errorf("more than %d MiB", MaxInput>>20)
	}
	if err := exact(raw); err != nil {
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
		return nil, errors.New("no hook_event_name or no tool_name")
	}
	if gotEvent != event || gotTool != tool {
		return nil, errNotOurs
	}
	return h.shell(in)
}

// shell reads the arguments of a shell tool.
func (h *Hook) shell(in object) (*call, error) {
	c := &call{}
	if err := in.get("tool_input", &c.fields); err != nil || c.fields == nil {
		return nil, errors.New("tool_input is no object")
	}
	var (
		command            *string
		timeout            *float64 // milliseconds
		roots              []string // Cursor
		workdir, directory string   // opencode, Cursor
	)
	if err := errors.Join(
		c.fields.get("command", &command), c.fields.get("timeout", &timeout), c.fields.get("run_in_background", &c.background),
		c.fields.get("workdir", &workdir), c.fields.get("working_directory", &directory), in.get("cwd", &c.dir), in.get("workspace_roots", &roots),
	); err != nil {
		return nil, err
	}
	if command == nil {
		return nil, errors.New("tool_input has no command")
	}
	if strings.ContainsRune(*command, 0) {
		return nil, errors.New("the command holds a NUL byte")
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
			return nil, fmt.Errorf("a timeout of %v ms", *timeout)
		}
		c.timeout = time.Duration(*timeout * float64(time.Millisecond))
	}
	return c, nil
}

// prefix is how every command of ours begins.
func (h *Hook) prefix() string { return word(h.Program) + " hook run " }

// line is the command that the agent runs instead.
func (h *Hook) line(c *call) (string, error) {
	var b strings.Builder
	b.WriteString(h.prefix())
	b.WriteString("--project " + Quote(h.Project))
	if c.dir != h.Project {
		if h.Agent == Codex && strings.Contains(c.dir, "'") {
			return "", fmt.Errorf("the working directory %s holds a single quote, which Codex's rules cannot match; work in another directory", c.dir)
		}
		b.WriteString(" --dir " + Quote(c.dir))
	}
	switch {
	case c.timeout > 0:
		b.WriteString(" --timeout " + c.timeout.String())
	case !c.background:
		b.WriteString(" --timeout " + DefaultTimeout.String())
	}
	if len(c.command) <= maxInline && !(h.Agent == Codex && strings.Contains(c.command, "'")) { // else Codex's rule does not match; see rule
		b.WriteString(" -- " + Quote(c.command))
		return b.String(), nil
	}
	if h.Spool == nil {
		return "", errors.New("it is too long")
	}
	file, err := h.Spool(c.command)
	if err != nil {
		return "", err
	}
	b.WriteString(" --file " + Quote(file))
	return b.String(), nil
}

// wrote reports whether a whole command is one that line makes for this project: with anything more in it, or behind it, a part would run on
// this machine.
func (h *Hook) wrote(command string) bool {
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

// rewritten is the answer with a new command and everything else as it came.
func (h *Hook) rewritten(c *call, line string) ([]byte, error) {
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
		decision = "allow" // the only word with which it takes new input
	}
	if decision == "" || decision == "ask" {
		// Without a terminal, Claude Code refuses what it would ask about, and shows the reason.
		decision, reason = "ask", reason+"; to run such commands without asking, as claude -p needs: recluse integrate claude-code --bash --auto-approve"
	}
	return marshal(map[string]any{"hookSpecificOutput": map[string]any{
		"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason, "updatedInput": c.fields,
	}})
}

// marshal writes JSON without escaping what HTML would need.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// exact refuses JSON whose texts Go would change by reading them: bytes that are no UTF-8, and halves of surrogate pairs.
func exact(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("it is not UTF-8")
	}
	var high bool // the escape before was the first half of a pair
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' || i+1 >= len(raw) {
			if high {
				return errHalf
			}
			continue
		}
		i++
		if raw[i] != 'u' {
			if high {
				return errHalf
			}
			continue
		}
		if i+4 >= len(raw) {
			return errors.New("it ends in the middle of an escape")
		}
		digits := strings.ToLower(string(raw[i+1 : i+5]))
		i += 4
		first, second := digits[0] == 'd' && strings.Contains("89ab", digits[1:2]), digits[0] == 'd' && strings.Contains("cdef", digits[1:2])
		if high != second {
			return errHalf
		}
		high = first
	}
	if high {
		return errHalf
	}
	return nil
}

var errHalf = errors.New("it holds half of a surrogate pair")
