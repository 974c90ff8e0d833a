package docker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// remedyName says how an image is named.
const remedyName = "write it as registry/name:tag, name:tag or name@sha256:…"

// image makes sure that the engine has an image, and gives what is known of it.
func (b *Backend) image(ctx context.Context, ref string) (client.ImageInspectResult, error) {
	op := "get image " + ref
	if _, err := reference.ParseAnyReference(ref); err != nil {
		return client.ImageInspectResult{}, &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: op, Message: "this is not an image's name", Remedy: remedyName, Err: err}
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
		return &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: op, Message: "this is not an image's name", Remedy: remedyName, Err: err}
	}
	auth, err := credentials(reference.Domain(named))
	if err != nil {
		return &sandbox.Error{
			Code: sandbox.CodeImageUnreachable, Op: op, Message: "the registry's credentials cannot be read", Err: err,
			Remedy: fmt.Sprintf("mend %s, or the program docker-credential-… that it names", filepath.Join(config.Dir(), config.ConfigFileName)),
		}
	}
	res, err := b.cli.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return pullError(ctx, op, reference.Domain(named), err)
	}
	defer func() { _ = res.Close() }()
	layers := map[string][2]int64{}
	for m, err := range res.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = errors.New(m.Error.Message)
		}
		if err != nil {
			return pullError(ctx, op, reference.Domain(named), err)
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

// pullError tells an image that does not exist from one that is not for this user, and from a registry that cannot be reached.
func pullError(ctx context.Context, op, domain string, err error) error {
	if ctx.Err() != nil || client.IsErrConnectionFailed(err) {
		return failed(ctx, op, "the pull was cut off", err)
	}
	text := strings.ToLower(err.Error())
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	out := &sandbox.Error{
		Code: sandbox.CodeImageUnreachable, Op: op, Message: "the registry cannot be reached", Retry: true, Err: err,
		Remedy: "connect to it, load the image with docker load, or build one from this machine with recluse image from-host",
	}
	switch {
	case says("no matching manifest", "no image found in", "does not match the specified platform"):
		out.Code, out.Message, out.Retry = sandbox.CodeImageArch, "there is none for the engine's machine", false
		out.Remedy = "use an image for that machine"
	case says("no basic auth credentials", "unauthorized", "authentication required", "incorrect username or password", "invalid username/password") || errdefs.IsUnauthorized(err):
		out.Code, out.Message, out.Retry = sandbox.CodeImageDenied, "the registry does not know this user, or the password is wrong", false
		out.Remedy = "docker login " + domain
	case says("not found", "manifest unknown", "does not exist", "name unknown", "repository name not known") || errdefs.IsNotFound(err):
		out.Code, out.Message, out.Retry = sandbox.CodeImageNotFound, "there is no such image, or it needs a login", false
		out.Remedy = "check its name, or docker login " + domain
	case says("denied", "forbidden"):
		out.Code, out.Message, out.Retry = sandbox.CodeImageDenied, "the registry refuses", false
		out.Remedy = "docker login " + domain + " as a user who may have it"
	case says("no space left"):
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
