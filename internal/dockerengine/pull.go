package dockerengine

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

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// CheckReference rejects strings that are neither the name nor the ID of an image.
func CheckReference(op, ref string) error {
	if _, err := reference.ParseAnyReference(ref); err != nil {
		return invalidReference(op, ref, err)
	}
	return nil
}

func invalidReference(op, ref string, err error) error {
	return &v1.Error{
		Code: v1.CodeInvalidSpec, Op: op, Message: fmt.Sprintf("invalid image name %q", ref),
		Remedy: "write it as registry/name:tag, name:tag or name@sha256:…", Err: err,
	}
}

// Pull pulls an image with the credentials that the docker command would use. progress may be nil. It receives the
// downloaded bytes and the total of all layers known so far.
func (e *Engine) Pull(ctx context.Context, ref string, progress func(what string, done, total int64)) error {
	op := "pull image " + ref
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return invalidReference(op, ref, err)
	}
	domain := reference.Domain(named)
	auth, err := credentials(domain)
	if err != nil {
		return &v1.Error{
			Code:    v1.CodeImageUnreachable,
			Op:      op,
			Message: "cannot read the credentials of the registry",
			Err:     err,
			Remedy: fmt.Sprintf(
				"correct %s, or the docker-credential-… program that it names",
				filepath.Join(config.Dir(), config.ConfigFileName),
			),
		}
	}
	res, err := e.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return pullError(ctx, op, domain, err)
	}
	defer func() { _ = res.Close() }()
	layers := map[string][2]int64{}
	for m, err := range res.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = errors.New(m.Error.Message)
		}
		if err != nil {
			return pullError(ctx, op, domain, err)
		}
		if m.Progress == nil || progress == nil || m.Status != "Downloading" {
			continue
		}
		layers[m.ID] = [2]int64{m.Progress.Current, m.Progress.Total}
		var done, total int64
		for _, l := range layers {
			done, total = done+l[0], total+l[1]
		}
		progress("image "+ref, done, total)
	}
	return nil
}

// pullError returns an error whose code distinguishes a missing image, an image that this user may not pull, and an
// unreachable registry.
func pullError(ctx context.Context, op, domain string, err error) error {
	if ctx.Err() != nil || client.IsErrConnectionFailed(err) {
		return Failed(ctx, op, "the pull was interrupted", err)
	}
	text := strings.ToLower(err.Error())
	contains := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	out := &v1.Error{
		Code: v1.CodeImageUnreachable, Op: op, Message: "the registry cannot be reached", Retry: true, Err: err,
		Remedy: "connect to it, load the image with docker load, or build one with recluse image from-host",
	}
	final := func(code v1.Code, message, remedy string) {
		out.Code, out.Message, out.Remedy, out.Retry = code, message, remedy, false
	}
	switch {
	case contains("no matching manifest", "no image found in", "does not match the specified platform"):
		final(v1.CodeImageArch, "the image is not available for the Docker engine's machine", "use an image for that machine")
	case contains("no basic auth credentials", "unauthorized", "authentication required", "incorrect username or password",
		"invalid username/password") || errdefs.IsUnauthorized(err):
		final(v1.CodeImageDenied, "unknown user or wrong password", "docker login "+domain)
	case errdefs.IsNotFound(err),
		contains("not found", "manifest unknown", "does not exist", "name unknown", "repository name not known"):
		final(
			v1.CodeImageNotFound,
			"the image does not exist, or requires a login",
			"check its name, or docker login "+domain,
		)
	case contains("denied", "forbidden"):
		final(v1.CodeImageDenied, "the registry denied access", "docker login "+domain+" as a user with access to the image")
	case contains("no space left"):
		out.Code, out.Message = v1.CodeDiskFull, "the disk of the Docker engine is full"
		out.Remedy = "free space there, e.g. with docker image prune"
	}
	return out
}

// hubServer is the key under which the docker command stores the credentials of Docker Hub.
const hubServer = "https://index.docker.io/v1/"

// credentials returns the docker command's credentials for a registry, encoded for the engine; empty if there are
// none.
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
		Username: got.Username, Password: got.Password, Auth: got.Auth, ServerAddress: got.ServerAddress,
		IdentityToken: got.IdentityToken, RegistryToken: got.RegistryToken,
	})
}
