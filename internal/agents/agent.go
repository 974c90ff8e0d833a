package agents

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Agent is a supported coding agent.
type Agent string

// The supported agents.
const (
	ClaudeCode Agent = "claude-code"
	OpenCode   Agent = "opencode"
	Codex      Agent = "codex"
	Cursor     Agent = "cursor"
)

// All is the list of supported agents.
var All = []Agent{ClaudeCode, OpenCode, Codex, Cursor}

// Parse returns the agent with this name.
func Parse(name string) (Agent, error) {
	var names []string
	for _, a := range All {
		if string(a) == name {
			return a, nil
		}
		names = append(names, string(a))
	}
	return "", &v1.Error{
		Code:    CodeUnknown,
		Op:      "integrate",
		Message: fmt.Sprintf("unknown agent %.40q", name),
		Remedy:  "use one of " + strings.Join(names, ", "),
	}
}

// agentVariables are the environment variables that agents set for commands on the host, one or more for each agent.
var agentVariables = []string{"CLAUDECODE", "OPENCODE", "CODEX_SANDBOX", "CODEX_THREAD_ID", "CURSOR_AGENT"}

// Inside reports whether the environment shows that a supported agent runs this program.
func Inside(getenv func(string) string) bool {
	return slices.ContainsFunc(agentVariables, func(name string) bool { return getenv(name) != "" })
}

// SessionName returns the name of the session of a project. It is the same for all agents.
func SessionName(project string) string {
	sum := sha256.Sum256([]byte(project))
	base := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, filepath.Base(project))
	if len(base) > 40 {
		base = base[:40]
	}
	return "project-" + strings.Trim(base, "-_") + "-" + hex.EncodeToString(sum[:4])
}

// Quote returns a text as one quoted word of a POSIX shell. The text must not contain NUL.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// plainCharacters are the characters that need no quoting in a shell.
const plainCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+@%-"

// shellWord quotes a text for a POSIX shell only if necessary, because Codex's rules do not match a quoted program
// name.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, plainCharacters) == "" {
		return s
	}
	return Quote(s)
}

// unquote decodes the word at the beginning of a command, and returns the rest of the command. ok is false if the word
// does not have the form that Quote returns.
func unquote(s string) (word, rest string, ok bool) {
	if s, ok = strings.CutPrefix(s, "'"); !ok {
		return "", "", false
	}
	var b strings.Builder
	for {
		part, after, closed := strings.Cut(s, "'")
		if !closed {
			return "", "", false
		}
		b.WriteString(part)
		if s, ok = strings.CutPrefix(after, `\''`); !ok {
			return b.String(), after, true
		}
		b.WriteByte('\'')
	}
}

// within reports whether path is dir or below it. Both are absolute.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
