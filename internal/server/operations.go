package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func listOperations(c *call, ses *session.Session, _ none) (v1.OperationPage, error) {
	ops, err := ses.Operations(c.ctx())
	if err != nil {
		return v1.OperationPage{}, err
	}
	var out v1.OperationPage
	out.Operations, out.Next = paged(c, ops, func(o sandbox.Operation) string { return pageKey("", o.Started, o.ID) })
	return out, nil
}

func showOperation(c *call, ses *session.Session, _ none) (sandbox.Operation, error) {
	return ses.Operation(c.ctx(), c.r.PathValue("operation"))
}

func signalOperation(c *call, ses *session.Session, in v1.SignalRequest) (none, error) {
	sig, ok := v1.ParseSignal(in.Signal)
	if !ok {
		return none{}, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "signal",
			Message: fmt.Sprintf("invalid signal %q", in.Signal),
			Remedy:  "write SIGTERM, TERM or 15",
		}
	}
	return none{}, ses.Signal(c.ctx(), c.r.PathValue("operation"), sig, sandbox.SignalOptions{Tree: in.Tree})
}

// inputOperation sends input to a running operation. It returns when the operation has read the input.
func inputOperation(c *call, ses *session.Session, in v1.Input) (none, error) {
	if in.Size != nil && !validSize(*in.Size) {
		return none{}, invalidSize(*in.Size)
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	err := ses.Input(ctx, c.r.PathValue("operation"), in)
	if v1.CodeOf(err) == v1.CodeCancelled && c.s.draining() {
		return none{}, &v1.Error{
			Code:    v1.CodeUnavailable,
			Op:      "send input",
			Message: "the server is stopping, and the operation has not read the input yet; it may still read it",
			Remedy:  "look at the output of the operation before you send the input again",
		}
	}
	return none{}, err
}

// awaitOperation waits for the verdict of an operation and returns it without the output. If the caller disconnects,
// the operation continues.
func awaitOperation(c *call, ses *session.Session, _ none) (*sandbox.Verdict, error) {
	ctx, cancel := c.untilDrain()
	defer cancel()
	v, err := ses.Follow(ctx, c.r.PathValue("operation"), sandbox.FollowOptions{})
	return v, c.drained(err)
}

// followOperation returns the output so far, or, if the caller accepts events, follows the operation to its end.
func followOperation(c *call, ses *session.Session) error {
	if c.r.Header.Get(v1.HeaderLastEvent) != "" {
		return resume(c, ses)
	}
	m := v1.Mark{
		Op:      c.r.PathValue("operation"),
		Offsets: v1.Offsets{Stdout: c.number("stdout", 0), Stderr: c.number("stderr", 0)},
	}
	if c.wantsEvents() {
		return follow(c, ses, m)
	}
	var stdout, stderr bounded
	out := v1.Followed{Next: m.Offsets}
	v, err := ses.Follow(c.ctx(), m.Op, sandbox.FollowOptions{
		StdoutOffset: m.Stdout,
		StderrOffset: m.Stderr,
		Stdout:       &stdout,
		Stderr:       &stderr,
		NoWait:       true,
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
	out.Stdout, out.Stderr = v1.Text(stdout.String()), v1.Text(stderr.String())
	out.Verdict, out.Running = v, v == nil && err == nil
	out.Next.Stdout += out.Skipped.Stdout + int64(stdout.Len())
	out.Next.Stderr += out.Skipped.Stderr + int64(stderr.Len())
	return c.reply(out)
}

// maxFollowed is how many bytes of a stream one answer contains. The caller requests the rest with the offsets in next.
const maxFollowed = 1 << 20

var errFull = errors.New("the answer is full")

// bounded is a buffer for at most maxFollowed bytes.
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

// ReadFrom returns errFull. The method of bytes.Buffer would bypass the limit.
func (b *bounded) ReadFrom(io.Reader) (int64, error) { return 0, errFull }

func listContexts(c *call, ses *session.Session, _ none) (v1.ContextPage, error) {
	list, err := ses.Contexts(c.ctx())
	if err != nil {
		return v1.ContextPage{}, err
	}
	var out v1.ContextPage
	out.Contexts, out.Next = paged(c, list, func(x sandbox.Context) string { return x.Name })
	return out, nil
}
