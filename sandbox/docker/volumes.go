package docker

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/volumes"
	"github.com/recluse-dev/recluse/sandbox"
)

// labelVolume is the label of a named volume that has the files of a volume of the data directory.
const labelVolume = "dev.recluse.volume"

// leaseWait is how long a lease is valid although there is no container yet.
const leaseWait = 5 * time.Minute

// MakeVolume implements volumes.Engine. The engine makes the volume when a sandbox first uses it, so that a program
// that is killed leaves no volume without a record.
func (b *Backend) MakeVolume(ctx context.Context, _ *volumes.Volume) error {
	_, err := b.facts(ctx) // fails if the engine does not answer
	return err
}

// DropVolume implements volumes.Engine.
func (b *Backend) DropVolume(ctx context.Context, v *volumes.Volume) error {
	if v.ID != "" {
		return b.dropNamed(ctx, v.EngineName())
	}
	found, err := b.cli.VolumeList(ctx, client.VolumeListOptions{Filters: b.filter(labelVolume + "=" + v.Ref())})
	if err != nil {
		return failed(ctx, "delete volume", "the Docker engine cannot list the volumes", err)
	}
	for _, item := range found.Items {
		if err := b.dropNamed(ctx, item.Name); err != nil {
			return err
		}
	}
	return nil
}

// dropNamed removes a volume of the engine.
func (b *Backend) dropNamed(ctx context.Context, name string) error {
	_ = os.Remove(b.ownerNote(name)) // usually it does not exist
	_, err := b.cli.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return failed(ctx, "delete volume", "the Docker engine cannot remove the volume", err)
}

// holds is volumes.Lives for containers. If the engine does not answer, the sandbox counts as alive.
func (b *Backend) holds(l volumes.Lease) bool {
	ctx, cancel := context.WithTimeout(b.ctx, dockerengine.CleanWait)
	defer cancel()
	_, c, err := b.find(ctx, l.Sandbox)
	if v1.CodeOf(err) == v1.CodeNotFound {
		return time.Since(l.Since) < leaseWait && l.Maker.Alive() && l.Making
	}
	return err != nil || c.State != container.StateExited && c.State != container.StateDead
}

// engineVolumes returns the volumes of a sandbox with their names in the engine, and makes those of the data directory
// that the engine does not have yet.
func (b *Backend) engineVolumes(ctx context.Context, of []sandbox.Volume) ([]Volume, error) {
	out := slices.Concat(b.opts.Volumes, of)
	for i := range out {
		ref := out[i].Name
		if !strings.Contains(ref, "/") {
			continue // a volume that people made in the engine
		}
		v, err := b.volumes.Get(ref)
		if err != nil {
			return nil, err
		}
		out[i].Name = v.EngineName()
		_, err = b.cli.VolumeCreate(ctx, client.VolumeCreateOptions{
			Name: v.EngineName(), Labels: map[string]string{labelVolume: ref, labelInstance: b.instance},
		})
		if err != nil && !dockerengine.VolumeExists(err) {
			return nil, failed(ctx, "prepare volume "+v.Name, "the Docker engine cannot make the volume", err)
		}
	}
	return out, nil
}

// takeVolumes takes the leases of a new sandbox.
func (b *Backend) takeVolumes(ctx context.Context, p *plan) error {
	for _, v := range p.Spec.Volumes {
		if !strings.Contains(v.Name, "/") {
			continue
		}
		lease := volumes.LeaseOf(p.ID, Name, "", p.Spec.Labels, v.Writable)
		lease.Making = true
		if _, err := b.volumes.Take(ctx, v.Name, lease, b.holds); err != nil {
			b.releaseVolumes(p.record)
			return err
		}
	}
	return nil
}

// releaseVolumes returns the leases of a sandbox that has ended. Errors are ignored: the leases are no longer valid.
func (b *Backend) releaseVolumes(r record) {
	for _, v := range r.Spec.Volumes {
		if strings.Contains(v.Name, "/") {
			_ = b.volumes.Release(r.ID, v.Name)
		}
	}
}
