package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// Health implements sandbox.Backend. It makes a sandbox, unless that was done in the last minute.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h := b.health(ctx)
	h.Took = time.Since(began)
	return h
}

func (b *Backend) health(ctx context.Context) sandbox.Health {
	if _, err := b.cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return ill(failed(ctx, "ask the Docker engine", "it is not well", err))
	}
	f, err := b.facts(ctx)
	if err != nil {
		return ill(err)
	}
	ok := sandbox.Health{OK: true, Version: f.version, Reason: fmt.Sprintf("runtime %s, isolation %s", f.runtime, b.level(f))}
	b.mu.Lock()
	proven := time.Since(b.proven) < healthKept
	b.mu.Unlock()
	if proven {
		return ok
	}
	if _, err := b.guestProgram(ctx, f.arch); err != nil {
		return ill(err)
	}
	if _, err := b.cli.ImageInspect(ctx, b.opts.Image); errdefs.IsNotFound(err) && b.opts.Pull != PullNever {
		ok.Reason += "; the image " + b.opts.Image + " will be pulled first"
		return ok
	}
	t := b.try()
	select {
	case <-t.done:
		if t.err != nil {
			return ill(t.err)
		}
	case <-time.After(trialWait):
		ok.Reason += "; slow: a sandbox was not there within " + trialWait.String()
	case <-ctx.Done():
		return ill(ctx.Err())
	}
	return ok
}

func ill(err error) sandbox.Health {
	h := sandbox.Health{Reason: err.Error()}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		h.Remedy, e = e.Remedy, &sandbox.Error{Code: e.Code, Op: e.Op, Message: e.Message, Err: e.Err}
		h.Reason = e.Error()
	}
	return h
}

// trial is a sandbox that is made to see whether that works. It outlives the call that asked, since an engine under load takes longer
// than a caller waits, and it is not left half made.
type trial struct {
	began time.Time
	done  chan struct{}
	err   error // once done is closed
}

// try gives the trial that is under way, the one that lately failed, or a new one.
func (b *Backend) try() *trial {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.trying; t != nil {
		select {
		case <-t.done:
			if t.err != nil && time.Since(t.began) < healthRetry {
				return t
			}
		default:
			return t
		}
	}
	t := &trial{began: time.Now(), done: make(chan struct{})}
	b.trying = t
	if b.closed {
		t.err = &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: "try a sandbox", Message: "the backend was closed"}
		close(t.done)
		return t
	}
	b.watchers.Go(func() {
		defer close(t.done)
		t.err = b.tryOut()
	})
	return t
}

func (b *Backend) tryOut() error {
	ctx, cancel := context.WithTimeout(b.ctx, trialLimit)
	defer cancel()
	// A stream alone proves nothing: the guest has to answer.
	sb, err := sandbox.Open(ctx, b, sandbox.Spec{})
	if err != nil {
		return err
	}
	return sb.Close()
}
