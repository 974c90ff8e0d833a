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

// Health implements sandbox.Backend. It makes a sandbox, unless that was done in the last minute, or by another program in the last hour.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h := b.health(ctx)
	if err := b.unswept(); h.OK && err != nil {
		h.Reason += "; what programs that died have left could not be ended: " + err.Error()
	}
	h.Took = time.Since(began)
	return h
}

// Answers implements backend.Answerer: it makes nothing.
func (b *Backend) Answers(ctx context.Context) sandbox.Health {
	began := time.Now()
	h, _ := b.answers(ctx)
	h.Took = time.Since(began)
	return h
}

// answers says whether engine and guest are there, and what is known of the engine.
func (b *Backend) answers(ctx context.Context) (sandbox.Health, *facts) {
	if _, err := b.cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return ill(failed(ctx, "ask the Docker engine", "it is not well", err)), nil
	}
	f, err := b.facts(ctx)
	if err != nil {
		return ill(err), nil
	}
	if _, err := b.guestProgram(ctx, f.arch); err != nil {
		return ill(err), nil
	}
	return sandbox.Health{OK: true, Version: f.version, Reason: fmt.Sprintf("runtime %s, isolation %s", f.runtime, b.level(f))}, f
}

func (b *Backend) health(ctx context.Context) sandbox.Health {
	ok, f := b.answers(ctx)
	if !ok.OK {
		return ok
	}
	b.mu.Lock()
	proven := time.Since(b.proven) < healthKept
	b.mu.Unlock()
	if proven {
		return ok
	}
	guest, err := b.guestProgram(ctx, f.arch)
	if err != nil {
		return ill(err)
	}
	img, err := b.cli.ImageInspect(ctx, b.opts.Image)
	if errdefs.IsNotFound(err) && b.opts.Pull != PullNever {
		ok.Reason += "; the image " + b.opts.Image + " will be pulled first"
		return ok
	}
	now := b.proofNow(f, guest.Hash, img.ID)
	if err == nil && b.provenBefore(now) {
		return ok
	}
	t := b.try(now)
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
func (b *Backend) try(now proof) *trial {
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
		if t.err = b.tryOut(); t.err == nil && now.Image != "" {
			b.proves(now)
		}
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
