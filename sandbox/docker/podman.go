package docker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// Podman's service speaks the engine's language, with an accent. What it needs told differently, and what it tells differently, is here.

// eventRemove is what Podman calls the destruction of a container.
const eventRemove events.Action = "remove"

// isPodman tells Podman's service from Docker's engine.
func isPodman(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// podmanID gives what stays the same of a service from one look to the next: Podman makes up a new id whenever it is asked for one.
func podmanID(host string, i system.Info) string {
	return hash([]byte(host + "\x00" + i.DockerRootDir + "\x00" + i.Name))
}

// product is what the engine is called.
func (f *facts) product() string {
	if f.podman {
		return "Podman"
	}
	return "Docker"
}

// podmanRuntime refuses a runtime that is not Podman's default: its service takes the name and uses the default all the same, so that the
// walls would be others than those that were asked for.
func podmanRuntime(asked, theirs string) error {
	if asked == theirs {
		return nil
	}
	return &sandbox.Error{
		Code: CodeRuntimeMissing, Op: "ask the Docker engine", Message: fmt.Sprintf("Podman's service runs every container with %s, whatever runtime is asked for; no runtime %q", theirs, asked),
		Remedy: fmt.Sprintf("set runtime = %q in the containers.conf of the service, and start it again", asked),
	}
}

// missing says that a container does not exist. Podman calls it an error of its own where it goes away while one asks.
func missing(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "no such container")
}

// taken says that a container's name is another's, which Podman takes for an error of its own.
func taken(err error) bool {
	return errdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "name is already in use")
}

// madeByAnother says that a volume could not be made because it is there. Docker gives the one that there is; so does Podman, unless two ask at once.
func madeByAnother(err error) bool {
	return err != nil && strings.Contains(err.Error(), "volume already exists")
}

// noHealthcheck keeps the image's health check from running beside us. Podman would make a timer also for one that says NONE.
func (p *plan) noHealthcheck() *container.HealthConfig {
	if p.facts.podman && (p.image.Config == nil || p.image.Config.Healthcheck == nil) {
		return nil
	}
	return &container.HealthConfig{Test: []string{"NONE"}}
}

// untag takes all names from an image that is in use. The engine's language has no word for it, so this is in Podman's own.
func (b *Backend) untag(ctx context.Context, image string) error {
	dial := b.cli.Dialer()
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	address := "http://podman/v4.0.0/libpod/images/" + url.PathEscape(strings.TrimPrefix(image, "sha256:")) + "/untag"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= http.StatusBadRequest && res.StatusCode != http.StatusNotFound {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxWords)) // as much as there is
		return fmt.Errorf("untag: %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
