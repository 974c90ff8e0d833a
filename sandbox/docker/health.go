package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Health implements sandbox.Backend. It makes a trial sandbox, unless this program did so in the last minute, or
// another program in the last hour.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h := b.health(ctx)
	if err := b.sweeper.Err(); h.OK && err != nil {
		h.Reason += "; sandboxes of dead programs could not be removed: " + err.Error()
	}
	h.Took = time.Since(began)
	return h
}

// QuickHealth implements backend.QuickProber. It does not make a sandbox.
func (b *Backend) QuickHealth(ctx context.Context) sandbox.Health {
	began := time.Now()
	h, _ := b.answers(ctx)
	h.Took = time.Since(began)
	return h
}

// answers reports whether the Docker engine and the guest's program are available, and returns the facts about the
// engine.
func (b *Backend) answers(ctx context.Context) (sandbox.Health, *dockerengine.Facts) {
	if _, err := b.cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return backend.Unhealthy(failed(ctx, "query the Docker engine", "the ping failed", err)), nil
	}
	f, err := b.facts(ctx)
	if err != nil {
		return backend.Unhealthy(err), nil
	}
	if _, err := b.guestProgram(ctx, f.Arch); err != nil {
		return backend.Unhealthy(err), nil
	}
	return sandbox.Health{
		OK:      true,
		Version: f.Version,
		Reason:  fmt.Sprintf("runtime %s, isolation %s", f.Runtime, b.level(f)),
	}, f
}

func (b *Backend) health(ctx context.Context) sandbox.Health {
	ok, f := b.answers(ctx)
	if !ok.OK {
		return ok
	}
	if b.proofs.Fresh() {
		return ok
	}
	guest, err := b.guestProgram(ctx, f.Arch)
	if err != nil {
		return backend.Unhealthy(err)
	}
	img, err := b.cli.ImageInspect(ctx, b.opts.Image)
	if errdefs.IsNotFound(err) && b.opts.Pull != PullNever {
		ok.Reason += "; the image " + b.opts.Image + " will be pulled first"
		return ok
	}
	now := b.proofNow(f, guest.Hash, img.ID)
	if kept, found := b.proofs.Kept(); err == nil && found && kept.setting() == now {
		return ok
	}
	known, err := b.trials.Wait(ctx, trialWait, func(ctx context.Context) error {
		var err error
		now.Redirects, err = b.tryOut(ctx)
		if err == nil && now.Image != "" {
			b.proofs.Keep(now)
		}
		return err
	})
	switch {
	case err != nil:
		return backend.Unhealthy(err)
	case !known:
		ok.Reason += "; slow: a sandbox did not start within " + trialWait.String()
	}
	return ok
}

// tryOut makes a sandbox and removes it. It reports whether the guest can redirect connections in it.
func (b *Backend) tryOut(ctx context.Context) (redirects bool, err error) {
	// A stream alone proves nothing: the guest must answer.
	if b.opts.filtered() {
		return sandbox.TryRedirection(ctx, b, sandbox.Spec{})
	}
	sb, err := sandbox.Open(ctx, b, sandbox.Spec{})
	if err != nil {
		return false, err
	}
	return false, sb.Close()
}

// proof describes a sandbox that was made successfully: everything on which that depended.
type proof struct {
	Engine  string `json:"engine"` // ID of the Docker engine
	Version string `json:"version"`
	Runtime string `json:"runtime"`
	Command string `json:"command"` // of the runtime
	Guest   string `json:"guest"`
	Image   string `json:"image"` // ID of the image
	Profile string `json:"profile"`

	Redirects bool `json:"redirects"` // a result: the guest can redirect connections
}

// setting returns the proof without its results.
func (p proof) setting() proof {
	p.Redirects = false
	return p
}

// proofNow returns the proof that a trial with the image of the options would have now.
func (b *Backend) proofNow(f *dockerengine.Facts, guest, image string) proof {
	profile, _ := json.Marshal([]any{b.opts.Network, b.opts.Volumes, b.opts.HostConfig}) // check has validated them
	return proof{
		Engine:  f.ID,
		Version: f.Version,
		Runtime: f.Runtime,
		Command: f.Command,
		Guest:   guest,
		Image:   image,
		Profile: hash(profile),
	}
}
