package e2b

import (
	"context"
	"errors"
	"testing"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// TestSandboxesInContainers has what the API takes from the backend, on Docker with runc.
func TestSandboxesInContainers(t *testing.T) {
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	e, err := dockertest.Start(t.Context(), engine.Path)
	if errors.Is(err, dockertest.ErrMissing) {
		testneed.Lacking(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	err = e.Prepare(t.Context(), func(ctx context.Context, host string) error {
		b, err := docker.New(docker.Options{Host: host, Instance: "test-image", Dir: t.TempDir(), GuestPath: guest.Path})
		if err != nil {
			return err
		}
		defer b.Close()
		return b.ImportHost(ctx, dockertest.Image)
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, "RECLUSE_BACKEND_ORDER=docker", "RECLUSE_DOCKER_HOST="+e.Host, "RECLUSE_DOCKER_IMAGE="+dockertest.Image,
		"RECLUSE_DOCKER_PULL=never", "RECLUSE_DOCKER_RUNTIME=runc").node(sdk, "container.mjs")
}
