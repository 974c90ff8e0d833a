package e2b

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/session"
)

// forkResult is a copy, or why there is none.
type forkResult struct {
	Sandbox *access  `json:"sandbox,omitempty"`
	Error   *failure `json:"error,omitempty"`
}

// maxForks is the number of copies of a request.
const maxForks = 100

// fork makes live copies of a sandbox.
func (c *call) fork(ses *session.Session) error {
	var in struct {
		Count   *int   `json:"count"`
		Timeout *int64 `json:"timeout"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	left := 1
	if in.Count != nil {
		left = *in.Count
	}
	if left < 1 || left > maxForks {
		return invalid("count is not a number from 1 to 100")
	}
	timeout, err := timeoutOf(in.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	var out []forkResult
	for left > 0 {
		n := min(left, session.MaxForks)
		left -= n
		made, err := c.forkOnce(ses, n, timeout)
		switch {
		case err != nil && len(out) == 0:
			return err
		case err != nil: // some copies exist already
			for range n + left {
				out = append(out, forkResult{Error: &failure{Code: statusOf(err), Message: text(err)}})
			}
			return c.reply(http.StatusCreated, out)
		}
		for _, f := range made {
			a := c.access(f)
			out = append(out, forkResult{Sandbox: &a})
		}
	}
	return c.reply(http.StatusCreated, out)
}

// forkOnce makes n copies, or none.
func (c *call) forkOnce(ses *session.Session, n int, timeout time.Duration) ([]*session.Session, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = ids.Hex(idBytes)
	}
	made, err := ses.Fork(c.r.Context(), n, names)
	if err != nil {
		return nil, err
	}
	for _, f := range made {
		if err := f.SetExpiry(c.r.Context(), time.Now().Add(timeout)); err != nil {
			ctx := context.WithoutCancel(c.r.Context())
			for _, f := range made {
				err = errors.Join(err, f.End(ctx, "the timeout of the copy was refused"))
			}
			return nil, err
		}
	}
	return made, nil
}
