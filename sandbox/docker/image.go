package docker

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

// image makes sure that the engine has an image, and returns what is known of it.
func (b *Backend) image(ctx context.Context, ref string) (img client.ImageInspectResult, err error) {
	op := "get image " + ref
	if err := dockerengine.CheckReference(op, ref); err != nil {
		return img, err
	}
	if b.opts.Pull != PullAlways {
		img, err := b.cli.ImageInspect(ctx, ref)
		if err == nil {
			return img, nil
		}
		if !errdefs.IsNotFound(err) {
			return img, failed(ctx, op, "the engine reports nothing about it", err)
		}
	}
	if b.opts.Pull == PullNever {
		return img, &sandbox.Error{
			Code: sandbox.CodeImageNotFound, Op: op, Message: "the engine does not have it, and nothing is to be pulled",
			Remedy: "docker pull " + ref + ", or build one from this machine with recluse image from-host",
		}
	}
	if err := b.cli.Pull(ctx, ref, b.opts.Progress); err != nil {
		return img, err
	}
	img, err = b.cli.ImageInspect(ctx, ref)
	return img, failed(ctx, op, "it was pulled, and is missing", err)
}
