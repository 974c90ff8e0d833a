package docker

import (
	"context"
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// sweep ends what programs of this instance have left that died. Best effort: the next program tries again, and Start must not fail for it.
func (b *Backend) sweep(ctx context.Context) {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter()})
	if err != nil {
		return
	}
	var ending sync.WaitGroup
	slots := make(chan struct{}, sweepers)
	end := func(f func()) {
		slots <- struct{}{}
		ending.Go(func() {
			f()
			<-slots
		})
	}
	for _, c := range res.Items {
		r, ok := readRecord(c.ID, c.Labels)
		switch {
		case !b.mine(c.Labels):
		case ok && !r.Spec.Persist && b.readNote(r).Owner.dead():
			end(func() { _ = b.Stop(ctx, r.ID) })
		case !ok && c.Labels[labelCarrier] != "" && c.State == container.StateCreated && ownerOf(c.Labels).dead():
			end(func() { _ = b.remove(ctx, c.ID) })
		}
	}
	ending.Wait()
}
