package dockerengine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// EventRemove is what Podman calls the destruction of a container.
const EventRemove events.Action = "remove"

// isPodman tells Podman's service from Docker's engine.
func isPodman(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// podmanID returns what stays the same of a service from one look to the next: Podman makes up a new id whenever
// it is asked for one.
func podmanID(host string, i system.Info) string {
	sum := sha256.Sum256([]byte(host + "\x00" + i.DockerRootDir + "\x00" + i.Name))
	return hex.EncodeToString(sum[:])
}

// podmanRuntime refuses a runtime that is not Podman's default: its service takes the name and uses the default
// all the same, so that the isolation would be another than the one that was asked for.
func podmanRuntime(asked, theirs string) error {
	if asked == theirs {
		return nil
	}
	return &sandbox.Error{
		Code: CodeRuntimeMissing, Op: "ask the Docker engine",
		Message: fmt.Sprintf("Podman's service runs every container with %s, whatever runtime is asked for; no runtime %q", theirs, asked),
		Remedy:  fmt.Sprintf("set runtime = %q in the containers.conf of the service, and start it again", asked),
	}
}

// Missing reports that a container does not exist. Podman calls it an internal error where the container goes away
// during the request.
func Missing(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "no such container")
}

// NameTaken reports that another container has a name, which Podman calls an internal error.
func NameTaken(err error) bool {
	return errdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "name is already in use")
}

// VolumeExists reports that a volume could not be made because it exists. Docker returns the existing one; so does
// Podman, unless two ask at once.
func VolumeExists(err error) bool {
	return err != nil && strings.Contains(err.Error(), "volume already exists")
}

// Untag removes all names from an image that is in use. Docker's API has no such call, so this is Podman's own.
func (e *Engine) Untag(ctx context.Context, image string) error {
	dial := e.Dialer()
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
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
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxComplaint)) // as much as there is
		return fmt.Errorf("untag: %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
