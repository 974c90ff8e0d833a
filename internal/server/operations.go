package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func listOperations(c *call, _ none) (v1.OperationPage, error) {
	ses, err := c.session()
	if err != nil {
		return v1.OperationPage{}, err
	}
	ops, err := ses.Operations(c.ctx())
	if err != nil {
		return v1.OperationPage{}, err
	}
	var out v1.OperationPage
	out.Operations, out.Next, err = paged(c, ops, func(o sandbox.Operation) string { return place("", o.Started, o.ID) })
	return out, err
}

func showOperation(c *call, _ none) (sandbox.Operation, error) {
	ses, err := c.session()
	if err != nil {
		return sandbox.Operation{}, err
	}
	return ses.Operation(c.ctx(), c.r.PathValue("operation"))
}

func forgetOperation(c *call, _ none) (none, error) {
	ses, err := c.session()
	if err != nil {
		return none{}, err
	}
	return none{}, ses.Forget(c.ctx(), c.r.PathValue("operation"))
}

func cancelOperation(c *call, _ none) (none, error) {
	ses, err := c.session()
	if err != nil {
		return none{}, err
	}
	return none{}, ses.Cancel(c.ctx(), c.r.PathValue("operation"))
}

func signalOperation(c *call, in v1.SignalRequest) (none, error) {
	sig, err := parseSignal(in.Signal)
	if err != nil {
		return none{}, err
	}
	ses, err := c.session()
	if err != nil {
		return none{}, err
	}
	return none{}, ses.Signal(c.ctx(), c.r.PathValue("operation"), sig, sandbox.SignalOptions{Tree: in.Tree})
}

// awaitOperation waits for a verdict without its output. When the caller goes away the operation goes on.
func awaitOperation(c *call, _ none) (*sandbox.Verdict, error) {
	ses, err := c.session()
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	v, err := ses.Follow(ctx, c.r.PathValue("operation"), sandbox.FollowOptions{})
	if err != nil && c.s.draining() {
		err = closingError()
	}
	return v, err
}

// followOperation gives the output so far, or follows it.
func followOperation(c *call) error {
	ses, err := c.session()
	if err != nil {
		return err
	}
	if c.r.Header.Get(v1.HeaderLastEvent) != "" {
		return resume(c, ses)
	}
	m := v1.Mark{Op: c.r.PathValue("operation")}
	if m.Stdout, err = c.number("stdout", 0); err != nil {
		return err
	}
	if m.Stderr, err = c.number("stderr", 0); err != nil {
		return err
	}
	if c.wantsEvents() {
		return follow(c, ses, m)
	}
	var stdout, stderr bounded
	out := v1.Followed{Next: m.Offsets}
	v, err := ses.Follow(c.ctx(), m.Op, sandbox.FollowOptions{
		StdoutOffset: m.Stdout, StderrOffset: m.Stderr, Stdout: &stdout, Stderr: &stderr, NoWait: true,
		Skipped: func(stream int, n int64) {
			if stream == 2 {
				out.Skipped.Stderr += n
			} else {
				out.Skipped.Stdout += n
			}
		},
	})
	if err != nil && !errors.Is(err, errFull) {
		return err
	}
	out.Stdout, out.Stderr, out.Verdict, out.Running = v1.Text(stdout.String()), v1.Text(stderr.String()), v, v == nil && err == nil
	out.Next.Stdout += out.Skipped.Stdout + int64(stdout.Len())
	out.Next.Stderr += out.Skipped.Stderr + int64(stderr.Len())
	return c.reply(out)
}

// maxFollowed is how much of a stream one answer holds; the rest comes from where it says.
const maxFollowed = 1 << 20

var errFull = errors.New("the answer is full")

// bounded takes up to maxFollowed bytes.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	room := maxFollowed - b.Len()
	n, _ := b.Buffer.Write(p[:min(len(p), room)])
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// ReadFrom would get around the bound.
func (b *bounded) ReadFrom(io.Reader) (int64, error) { return 0, errFull }

func listContexts(c *call, _ none) (v1.ContextPage, error) {
	ses, err := c.session()
	if err != nil {
		return v1.ContextPage{}, err
	}
	list, err := ses.Contexts(c.ctx())
	if err != nil {
		return v1.ContextPage{}, err
	}
	var out v1.ContextPage
	out.Contexts, out.Next, err = paged(c, list, func(x sandbox.Context) string { return x.Name })
	return out, err
}

func closeContext(c *call, _ none) (none, error) {
	ses, err := c.session()
	if err != nil {
		return none{}, err
	}
	return none{}, ses.CloseContext(c.ctx(), c.r.PathValue("context"))
}

// parseSignal reads a name or a number. Names are Linux's, whatever the server runs on: the sandbox is Linux.
func parseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for i, known := range signals {
		if known == name {
			return syscall.Signal(i + 1), nil
		}
	}
	return 0, &v1.Error{Code: v1.CodeInvalidRequest, Op: "signal", Message: fmt.Sprintf("%q is no signal", s), Remedy: "write SIGTERM, TERM or 15"}
}

// signals are Linux's, from 1 on.
var signals = []string{
	"HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP",
	"TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
}
