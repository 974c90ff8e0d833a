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

// Agent is a coding agent that we know.
type Agent string

// The agents.
const (
	ClaudeCode Agent = "claude-code"
	OpenCode   Agent = "opencode"
	Codex      Agent = "codex"
	Cursor     Agent = "cursor"
)

// All lists them.
var All = []Agent{ClaudeCode, OpenCode, Codex, Cursor}

// Parse reads the name of an agent.
func Parse(name string) (Agent, error) {
	var names []string
	for _, a := range All {
		if string(a) == name {
			return a, nil
		}
		names = append(names, string(a))
	}
	return "", &v1.Error{Code: CodeUnknown, Op: "integrate", Message: fmt.Sprintf("%.40q is no agent that is known", name), Remedy: "say one of " + strings.Join(names, ", ")}
}

// marks are the variables that agents set for the commands they run on the host, one or more for each agent.
var marks = []string{"CLAUDECODE", "OPENCODE", "CODEX_SANDBOX", "CODEX_THREAD_ID", "CURSOR_AGENT"}

// Inside reports whether an agent that we know runs this program, by its environment.
func Inside(getenv func(string) string) bool {
	return slices.ContainsFunc(marks, func(name string) bool { return getenv(name) != "" })
}

// SessionName is the session of a project: the same for every agent that works on it.
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

// Quote makes one word of a POSIX shell from any text without NUL.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// plainCharacters are the characters that a shell takes as they are.
const plainCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+@%-"

// word quotes a text for a POSIX shell, but only if it must: Codex's rules do not match a quoted program name.
func word(s string) string {
	if s != "" && strings.Trim(s, plainCharacters) == "" {
		return s
	}
	return Quote(s)
}

// unquote takes a word that Quote has made from the beginning of a command, and gives what stands behind it. Words in any other form are none.
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

// within reports whether a path lies in a directory, or is it. Both are absolute.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
