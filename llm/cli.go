package llm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/procgroup"
)

// cliGrace is how long a killed program may keep its output open before it is closed.
const cliGrace = 2 * time.Second

// maxStderr is how many bytes at the end of a program's standard error are kept.
const maxStderr = 4 << 10

// knownCommands are the command lines of agents that read a prompt from standard input and write the reply to standard
// output, by model name.
var knownCommands = map[string][]string{
	"claude": {"claude", "-p"},
	"codex":  {"codex", "exec", "--skip-git-repo-check", "-"},
}

// commandLine implements dialect with an agent program on this machine. The agent has its own key and settings. It runs
// in an empty directory, and its standard output is the reply.
type commandLine struct {
	commands map[string][]string
}

// ask implements dialect.
func (c *commandLine) ask(ctx context.Context, q question, out *sink, _ *outcome) error {
	args := c.commands[q.model]
	if len(args) == 0 {
		args = knownCommands[q.model]
	}
	dir, err := os.MkdirTemp("", "recluse-agent-")
	if err != nil {
		return &failure{code: v1.CodeModelUnreachable, message: err.Error()}
	}
	defer os.RemoveAll(dir)
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(run, args[0], args[1:]...)
	cmd.Dir, cmd.WaitDelay = dir, cliGrace
	cmd.Stdin = strings.NewReader(prompt(q.req.Messages))
	stderr := &procgroup.Tail{Max: maxStderr}
	cmd.Stderr = stderr
	idle, _ := ctx.Value(idleKey{}).(*idleWatch)
	stdout := &runeWriter{write: func(s string) bool {
		idle.touch()
		if out.write(s) {
			return true
		}
		cancel() // the rest of the reply is not needed
		return false
	}}
	cmd.Stdout = stdout
	procgroup.Own(cmd)
	err = cmd.Run()
	if out.finish != "" || ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		stdout.flush()
		return nil
	}
	return agentFailure(err, args[0], stderr.String())
}

// agentFailure returns the failure of a program that could not be started or that failed.
func agentFailure(err error, program, stderr string) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &failure{
			code:    v1.CodeModelUnknown,
			message: fmt.Sprintf("program %s is not installed", program),
			remedy:  "install it, or correct providers.{provider}.commands",
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &failure{
			code:    v1.CodeModelRefused,
			message: fmt.Sprintf("%s ended with %s: %s", program, exit.ProcessState, oneLine(stderr, 300)),
			remedy:  "run the command by hand; it may need a login",
		}
	}
	return &failure{code: v1.CodeModelUnreachable, message: err.Error()}
}

// prompt returns a conversation as one text, for a program without roles. A single message is returned unchanged.
func prompt(messages []Message) string {
	if len(messages) == 1 {
		return messages[0].Content
	}
	var b strings.Builder
	for _, m := range messages {
		if m.Role == System {
			b.WriteString(m.Content + "\n\n")
		}
	}
	for _, m := range messages {
		switch m.Role {
		case User:
			b.WriteString("[user]\n" + m.Content + "\n\n")
		case Assistant:
			b.WriteString("[you]\n" + m.Content + "\n\n")
		case System: // written above
		}
	}
	b.WriteString("Reply with your next message only.\n")
	return b.String()
}

// runeWriter passes bytes on as text and never splits a UTF-8 character.
type runeWriter struct {
	write func(string) bool
	rest  []byte
}

// Write implements io.Writer. When the text is no longer wanted, the program is killed and Write fails; it never blocks
// the program.
func (w *runeWriter) Write(p []byte) (int, error) {
	data := append(w.rest, p...)
	n := len(data)
	for back := 1; back <= min(utf8.UTFMax-1, len(data)); back++ {
		if b := data[len(data)-back]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[len(data)-back:]) {
				n = len(data) - back
			}
			break
		}
	}
	w.rest = bytes.Clone(data[n:])
	if n > 0 && !w.write(strings.ToValidUTF8(string(data[:n]), "�")) {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// flush writes a replacement character for an incomplete character at the end.
func (w *runeWriter) flush() {
	if len(w.rest) > 0 {
		w.write("�")
	}
}
