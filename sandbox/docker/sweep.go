package docker

import (
	"context"
	"fmt"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
)

// sweep ends what dead programs of this instance have left, several containers at once.
func (b *Backend) sweep(ctx context.Context) error {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter()})
	if err != nil {
		return err
	}
	return backendkit.EndAll(len(res.Items), func(i int) (err error) {
		c := res.Items[i]
		r, ok := readRecord(c.ID, c.Labels)
		switch {
		case !b.mine(c.Labels):
		case ok && !r.Spec.Persist && b.notes.Read(&r.Record).Owner.Dead():
			err = b.Stop(ctx, r.ID)
		case !ok && c.Labels[dockerengine.LabelCarrier] != "" && c.State == container.StateCreated && dockerengine.CarrierOwner(c.Labels).Dead():
			err = b.cli.Remove(ctx, c.ID)
		}
		if err != nil {
			return fmt.Errorf("container %.12s: %w", c.ID, err)
		}
		return nil
	})
}
