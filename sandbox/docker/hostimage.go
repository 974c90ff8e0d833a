package docker

import (
	"context"
	"errors"

	"github.com/recluse-dev/recluse/internal/dockersetup"
)

// ImportHost builds a small image out of this machine's own shell, tools and Python, where no registry can be
// reached, and hands it to the engine under a name.
func (b *Backend) ImportHost(ctx context.Context, name string) error {
	f, err := b.facts(ctx)
	if err != nil {
		return err
	}
	what := "the engine does not take it"
	if err = dockersetup.ImportHost(ctx, b.cli.Client, f.Arch, name); errors.Is(err, dockersetup.ErrHost) {
		what = "the image cannot be built"
	}
	return failed(ctx, "build image "+name, what, err)
}
