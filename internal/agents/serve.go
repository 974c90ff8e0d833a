package agents

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// HookFlags are the values of a hook's command line flags.
type HookFlags struct {
	Agent, Project, Permission, Unexpected string
}

// NewHook returns the hook for the flags. The rewritten commands call this program.
func NewHook(f HookFlags) (*Hook, error) {
	invalid := func(message string) error { return &v1.Error{Code: v1.CodeInvalidRequest, Message: message} }
	agent, err := Parse(f.Agent)
	if err != nil {
		return nil, err
	}
	h := &Hook{
		Agent:      agent,
		Project:    filepath.Clean(f.Project),
		Permission: f.Permission,
		Unexpected: Unexpected(f.Unexpected),
		Spool:      spool,
	}
	switch {
	case !filepath.IsAbs(f.Project):
		return nil, invalid("--project must be an absolute path")
	case h.Permission != "" && h.Permission != "ask" && h.Permission != "allow":
		return nil, invalid("--permission must be ask or allow")
	case h.Unexpected != Block && h.Unexpected != PassThrough:
		return nil, invalid("--unexpected must be block or pass")
	}
	if h.Program, err = os.Executable(); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "find this program", Err: err}
	}
	if called := os.Args[0]; filepath.IsAbs(called) && sameFile(called, h.Program) {
		h.Program = called // the path that integrate wrote, also into Codex's rule
	}
	return h, nil
}

func sameFile(x, y string) bool {
	a, aerr := os.Stat(x)
	b, berr := os.Stat(y)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}

// Serve reads a call from in, writes the answer, and returns the exit status. It neither reads the configuration nor
// calls a server, because an agent waits for it before every tool call.
func (h *Hook) Serve(in io.Reader, out, errs io.Writer) int {
	blocked := func(err error) int {
		fmt.Fprintf(errs, "recluse: %v\n", err)
		return statusBlock // with any other status, agents run the command outside of the sandbox
	}
	call, err := io.ReadAll(io.LimitReader(in, MaxInput+1))
	if err != nil {
		return blocked(err)
	}
	reply := h.Answer(call)
	if reply.Stderr != "" {
		if _, err := io.WriteString(errs, reply.Stderr); err != nil {
			return statusBlock
		}
	}
	if _, err := out.Write(reply.Stdout); err != nil {
		return blocked(err)
	}
	return reply.Status
}
