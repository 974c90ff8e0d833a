package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// image makes sure that the engine has an image, and gives what is known of it.
func (b *Backend) image(ctx context.Context, ref string) (client.ImageInspectResult, error) {
	op := "get image " + ref
	if _, err := reference.ParseAnyReference(ref); err != nil {
		return client.ImageInspectResult{}, &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: op, Message: "this is not an image's name", Err: err}
	}
	if b.opts.Pull != PullAlways {
		img, err := b.cli.ImageInspect(ctx, ref)
		if err == nil {
			return img, nil
		}
		if !errdefs.IsNotFound(err) {
			return img, failed(ctx, op, "the engine does not tell about it", err)
		}
	}
	if b.opts.Pull == PullNever {
		return client.ImageInspectResult{}, &sandbox.Error{
			Code: sandbox.CodeImageNotFound, Op: op, Message: "the engine does not have it, and nothing is to be pulled",
			Remedy: "docker pull " + ref + ", or build one from this machine with recluse image from-host",
		}
	}
	if err := b.pull(ctx, ref); err != nil {
		return client.ImageInspectResult{}, err
	}
	img, err := b.cli.ImageInspect(ctx, ref)
	return img, failed(ctx, op, "it was pulled, and is not there", err)
}

// pull fetches an image with the credentials that the docker command would use.
func (b *Backend) pull(ctx context.Context, ref string) error {
	op := "pull image " + ref
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: op, Message: "this is not an image's name", Err: err}
	}
	auth, err := credentials(reference.Domain(named))
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeImageUnreachable, Op: op, Message: "the registry's credentials cannot be read", Err: err}
	}
	res, err := b.cli.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return pullError(ctx, op, err)
	}
	defer func() { _ = res.Close() }()
	layers := map[string][2]int64{}
	for m, err := range res.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = errors.New(m.Error.Message)
		}
		if err != nil {
			return pullError(ctx, op, err)
		}
		if m.Progress == nil || b.opts.Progress == nil || m.Status != "Downloading" {
			continue
		}
		layers[m.ID] = [2]int64{m.Progress.Current, m.Progress.Total}
		var done, total int64
		for _, l := range layers {
			done, total = done+l[0], total+l[1]
		}
		b.opts.Progress("image "+ref, done, total)
	}
	return nil
}

// pullError tells an image that does not exist from a registry that cannot be reached.
func pullError(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil || client.IsErrConnectionFailed(err) {
		return failed(ctx, op, "the pull was cut off", err)
	}
	text := err.Error()
	out := &sandbox.Error{
		Code: sandbox.CodeImageUnreachable, Op: op, Message: "the registry cannot be reached", Retry: true, Err: err,
		Remedy: "connect to it, load the image with docker load, or build one from this machine with recluse image from-host",
	}
	switch {
	case errdefs.IsNotFound(err), strings.Contains(text, "not found"), strings.Contains(text, "manifest unknown"), strings.Contains(text, "does not exist"):
		out.Code, out.Message, out.Retry = sandbox.CodeImageNotFound, "there is no such image, or it needs a login", false
		out.Remedy = "check its name, or docker login first"
	case errdefs.IsUnauthorized(err), strings.Contains(text, "unauthorized"), strings.Contains(text, "denied"):
		out.Message, out.Retry, out.Remedy = "the registry refuses", false, "docker login first"
	case strings.Contains(text, "no space left"):
		out.Code, out.Message, out.Remedy = sandbox.CodeDiskFull, "the engine's disk is full", "make room there, e.g. with docker image prune"
	}
	return out
}

// hubServer is under what name the docker command keeps the credentials of Docker Hub.
const hubServer = "https://index.docker.io/v1/"

// credentials gives what the docker command knows for a registry, as the engine wants it; empty for none.
func credentials(domain string) (string, error) {
	f, err := config.Load(config.Dir())
	if err != nil {
		return "", err
	}
	if domain == "docker.io" {
		domain = hubServer
	}
	got, err := f.GetAuthConfig(domain)
	if err != nil {
		return "", fmt.Errorf("credentials for %s: %w", domain, err)
	}
	return authconfig.Encode(registry.AuthConfig{
		Username: got.Username, Password: got.Password, Auth: got.Auth, ServerAddress: got.ServerAddress, IdentityToken: got.IdentityToken, RegistryToken: got.RegistryToken,
	})
}
