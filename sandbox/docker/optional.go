package docker

import (
	"context"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

var (
	_ backend.Pauser  = (*Backend)(nil)
	_ backend.Labeler = (*Backend)(nil)

	_ backend.QuickProber = (*Backend)(nil)
)

// Pause implements backend.Pauser.
func (b *Backend) Pause(ctx context.Context, id string) error {
	r, c, err := b.find(ctx, id)
	if err != nil || c.State == container.StatePaused {
		return err
	}
	m := b.attachment(id)
	if m != nil {
		m.pausedByUs.Store(true)
	}
	_, err = b.cli.ContainerPause(ctx, r.Container, client.ContainerPauseOptions{})
	if err != nil && m != nil {
		m.pausedByUs.Store(false)
	}
	return failed(ctx, "pause", "the Docker engine cannot pause the container", err)
}

// Resume implements backend.Pauser.
func (b *Backend) Resume(ctx context.Context, id string) error {
	r, c, err := b.find(ctx, id)
	if err != nil || c.State != container.StatePaused {
		return err
	}
	_, err = b.cli.ContainerUnpause(ctx, r.Container, client.ContainerUnpauseOptions{})
	if m := b.attachment(id); err == nil && m != nil {
		m.pausedByUs.Store(false)
	}
	return failed(ctx, "resume", "the Docker engine cannot resume the container", err)
}

// Label implements backend.Labeler. The labels of a container cannot be changed, so these are stored on this machine.
func (b *Backend) Label(ctx context.Context, id string, labels map[string]string) error {
	r, _, err := b.find(ctx, id)
	if err != nil {
		return err
	}
	n := b.notes.Read(&r.Record)
	n.Labels = labels
	if labels == nil {
		n.Labels = map[string]string{}
	}
	if err := b.notes.Write(id, n); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "label sandbox", Message: "cannot store the labels", Err: err}
	}
	return nil
}
