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

// cliGrace is how long a command line that was ended may hold its output open before we stop listening.
const cliGrace = 2 * time.Second

// maxComplaint is how much of a command line's standard error is kept.
const maxComplaint = 4 << 10

// agents are command lines that answer a prompt on their standard input with text on their standard output.
var agents = map[string][]string{
	"claude": {"claude", "-p"},
	"codex":  {"codex", "exec", "--skip-git-repo-check", "-"},
}

// commandLine asks an agent that is installed on this machine. It has its own key and its own habits; we give it an empty directory
// to work in and take what it prints.
type commandLine struct {
	commands map[string][]string
}

// ask implements dialect.
func (c *commandLine) ask(ctx context.Context, q question, out *sink, _ *outcome) error {
	args := c.commands[q.model]
	if len(args) == 0 {
		args = agents[q.model]
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
	complaint := &procgroup.Tail{Max: maxComplaint}
	cmd.Stderr = complaint
	idle, _ := ctx.Value(idleKey{}).(*idleWatch)
	heard := &runeWriter{write: func(s string) bool {
		idle.touch()
		if out.write(s) {
			return true
		}
		cancel() // enough: nobody pays for the rest
		return false
	}}
	cmd.Stdout = heard
	procgroup.Own(cmd)
	err = cmd.Run()
	if out.finish != "" || ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		heard.flush()
		return nil
	}
	return agentFailure(err, args[0], complaint.String())
}

// agentFailure says why a command line gave no answer.
func agentFailure(err error, program, complaint string) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &failure{code: v1.CodeModelUnknown, message: fmt.Sprintf("the program %s is not installed", program), remedy: "install it, or correct providers.{provider}.commands"}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &failure{code: v1.CodeModelRefused, message: fmt.Sprintf("%s ended with %s: %s", program, exit.ProcessState, brief(complaint, 300)), remedy: "try the command by hand; it may want a login"}
	}
	return &failure{code: v1.CodeModelUnreachable, message: err.Error()}
}

// prompt writes a conversation for a program that knows no roles. One message alone is given as it is.
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

// runeWriter passes on bytes as text that never breaks within a character.
type runeWriter struct {
	write func(string) bool
	rest  []byte
}

// Write implements io.Writer. It always takes everything: a program that is not listened to any more is ended, not blocked.
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

// flush passes on a character that never was whole.
func (w *runeWriter) flush() {
	if len(w.rest) > 0 {
		w.write("�")
	}
}
