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

// CheckReference refuses what is not the name of an image, nor an image's id.
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

// Pull fetches an image with the credentials that the docker command would use. progress, which may be nil, receives
// the bytes so far and of all layers that are known.
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
			Code: v1.CodeImageUnreachable, Op: op, Message: "the registry's credentials cannot be read", Err: err,
			Remedy: fmt.Sprintf("correct %s, or the program docker-credential-… that it names", filepath.Join(config.Dir(), config.ConfigFileName)),
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

// pullError tells an image that does not exist from one that is not for this user, and from a registry that cannot be
// reached.
func pullError(ctx context.Context, op, domain string, err error) error {
	if ctx.Err() != nil || client.IsErrConnectionFailed(err) {
		return Failed(ctx, op, "the pull was cut off", err)
	}
	text := strings.ToLower(err.Error())
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	out := &v1.Error{
		Code: v1.CodeImageUnreachable, Op: op, Message: "the registry cannot be reached", Retry: true, Err: err,
		Remedy: "connect to it, load the image with docker load, or build one from this machine with recluse image from-host",
	}
	final := func(code v1.Code, message, remedy string) {
		out.Code, out.Message, out.Remedy, out.Retry = code, message, remedy, false
	}
	switch {
	case says("no matching manifest", "no image found in", "does not match the specified platform"):
		final(v1.CodeImageArch, "there is none for the engine's machine", "use an image for that machine")
	case says("no basic auth credentials", "unauthorized", "authentication required", "incorrect username or password",
		"invalid username/password") || errdefs.IsUnauthorized(err):
		final(v1.CodeImageDenied, "the registry does not know this user, or the password is wrong", "docker login "+domain)
	case says("not found", "manifest unknown", "does not exist", "name unknown", "repository name not known") || errdefs.IsNotFound(err):
		final(v1.CodeImageNotFound, "there is no such image, or it needs a login", "check its name, or docker login "+domain)
	case says("denied", "forbidden"):
		final(v1.CodeImageDenied, "the registry refuses", "docker login "+domain+" as a user who may have it")
	case says("no space left"):
		out.Code, out.Message, out.Remedy = v1.CodeDiskFull, "the engine's disk is full", "make room there, e.g. with docker image prune"
	}
	return out
}

// hubServer is the name under which the docker command keeps the credentials of Docker Hub.
const hubServer = "https://index.docker.io/v1/"

// credentials returns what the docker command knows for a registry, encoded for the engine; empty for none.
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
