package docker

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// snapshotRepository is the name under which the engine lists our snapshots.
const snapshotRepository = "recluse-snapshot"

// forkLabel is how Sandbox.Fork marks the snapshots it takes.
const forkLabel = "recluse.fork-of"

// noMemory is why. Engines in experimental mode can write memory to disk, with CRIU or with runsc, but read it back only into the very container that
// it came from: of such a snapshot there could be no second sandbox, and none once the container is gone.
const noMemory = "snapshots hold files, not memory, which an engine puts back only into the container that it came from"

// kept are the directories in memory whose files a snapshot holds.
var kept = []string{v1.DefaultHome, "/tmp", "/var/tmp"}

// Snapshot implements sandbox.Backend. It holds files: those in memory as an archive, beside the image. What runs goes on, and is not in it.
// An engine's commit alone would miss the former, and they are all there is where the root is read-only.
func (b *Backend) Snapshot(ctx context.Context, id string, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	const op = "snapshot"
	if opts.Labels[forkLabel] != "" {
		return nil, backend.NotSupported(Name, "fork: "+noMemory, "take a snapshot and restore it, for the files alone")
	}
	r, _, err := b.find(ctx, id)
	if err != nil {
		return nil, err
	}
	s := &sandbox.Snapshot{
		ID: "s-" + ids.Hex(6), Backend: Name, Parent: id, Created: time.Now().UTC(), Spec: r.Spec, Labels: maps.Clone(opts.Labels), Guest: r.Guest, Engine: b.opts.Runtime,
	}
	if err := b.take(ctx, r, s); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), dockerengine.CleanWait)
		defer cancel()
		return nil, errors.Join(failed(ctx, op, "it could not be taken", err), b.DeleteSnapshot(clean, s.ID))
	}
	if opts.Stop {
		return s, b.Stop(ctx, id)
	}
	return s, nil
}

func (b *Backend) take(ctx context.Context, r record, s *sandbox.Snapshot) (err error) {
	files, err := b.pack(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }()
	base, err := b.base(ctx, r)
	if err != nil {
		return err
	}
	fi, err := files.Stat()
	if err != nil {
		return err
	}
	s.Size = fi.Size()
	labels, err := recordLabels(s, s.Labels)
	if err != nil {
		return err
	}
	labels[labelSnapshot] = s.ID
	carrier, remove, err := b.cli.Carrier(ctx, dockerengine.CarrierName(), base, labels, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := b.cli.PutFile(ctx, carrier, archivePath, files, fi.Size()); err != nil {
		return err
	}
	// Not given up half way, for the same reason as Engine.Create.
	o := client.ContainerCommitOptions{Reference: snapshotRepository + ":" + s.ID, Config: &container.Config{}}
	_, err = b.cli.ContainerCommit(context.WithoutCancel(ctx), carrier, o)
	return errors.Join(err, ctx.Err())
}

// base is the image that a snapshot adds files to: the sandbox's own, or a commit of it where its root can be written.
func (b *Backend) base(ctx context.Context, r record) (string, error) {
	res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	if res.Container.HostConfig.ReadonlyRootfs {
		return res.Container.Image, nil
	}
	// Not paused: that would look as if somebody had done it behind our back. The token must not stay in the image.
	done, err := b.cli.ContainerCommit(ctx, r.Container, client.ContainerCommitOptions{NoPause: true, Config: &container.Config{}, Changes: []string{"ENV " + launch.ConfigEnv + "="}})
	return done.ID, err
}

// pack fetches the files in memory, into a file of this machine because an archive must say how long they are.
func (b *Backend) pack(ctx context.Context, r record) (*os.File, error) {
	o := guestExec(r.User, slices.Concat([]string{launch.PackArg}, kept, workDirs(r))...)
	return b.cli.ExecToFile(ctx, r.Container, o, r.Spec.Limits.Disk+r.Spec.Limits.Memory)
}

func workDirs(r record) []string {
	if r.WorkDir == "" {
		return nil
	}
	return []string{r.WorkDir}
}

// named says whether an image still has a name: a snapshot that was deleted while it was in use has none. Podman puts a registry before names.
func named(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool {
		return strings.HasPrefix(path.Base(t), snapshotRepository+":")
	})
}

// findSnapshot looks for a snapshot of this instance and gives its image.
func (b *Backend) findSnapshot(ctx context.Context, id string) (*sandbox.Snapshot, string, error) {
	if !goodSnapshot.MatchString(id) {
		return nil, "", notFound("find snapshot", "snapshot", id)
	}
	res, err := b.cli.ImageList(ctx, client.ImageListOptions{Filters: b.filter(labelSnapshot + "=" + id)})
	if err != nil {
		return nil, "", failed(ctx, "find snapshot", "the engine does not tell", err)
	}
	for _, i := range res.Items {
		if s, ok := readSnapshot(i.Labels); ok && s.ID == id && b.mine(i.Labels) && named(i.RepoTags) {
			return s, i.ID, nil
		}
	}
	return nil, "", notFound("find snapshot", "snapshot", id)
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(ctx context.Context, snap *sandbox.Snapshot, opts sandbox.RestoreOptions) (sandbox.Machine, error) {
	if snap == nil {
		return nil, notFound("restore", "snapshot", "")
	}
	s, image, err := b.findSnapshot(ctx, snap.ID)
	if err != nil {
		return nil, err
	}
	return b.start(ctx, backendkit.Restored(s.Spec, opts), image, s.ID)
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	_, image, err := b.findSnapshot(ctx, id)
	if err != nil {
		if v1.CodeOf(err) == v1.CodeNotFound {
			return nil
		}
		return err
	}
	f, err := b.facts(ctx)
	if err != nil {
		return err
	}
	// Podman would end the sandboxes that use it, if forced.
	_, err = b.cli.ImageRemove(ctx, image, client.ImageRemoveOptions{Force: !f.Podman, PruneChildren: true})
	switch {
	case errdefs.IsConflict(err) && f.Podman:
		err = b.cli.Untag(ctx, image)
	case errdefs.IsConflict(err):
		// A sandbox that was made from it runs, or another snapshot is built on it. It loses its name now and the rest with the last of them.
		_, err = b.cli.ImageRemove(ctx, snapshotRepository+":"+id, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	}
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return failed(ctx, "delete snapshot", "the engine refuses", err)
}

// dropNameless removes what was left of deleted snapshots because a sandbox used it. Best effort: the next one tries again.
func (b *Backend) dropNameless(ctx context.Context) {
	res, err := b.cli.ImageList(ctx, client.ImageListOptions{Filters: b.filter(labelSnapshot).Add("dangling", "true")})
	if err != nil {
		return
	}
	for _, i := range res.Items {
		if _, ok := readSnapshot(i.Labels); !ok || !b.mine(i.Labels) || named(i.RepoTags) {
			continue
		}
		_, _ = b.cli.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{PruneChildren: true})
	}
}

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(ctx context.Context) ([]*sandbox.Snapshot, error) {
	res, err := b.cli.ImageList(ctx, client.ImageListOptions{Filters: b.filter(labelSnapshot)})
	if err != nil {
		return nil, b.excuse(failed(ctx, "list snapshots", "the engine does not tell", err))
	}
	var out []*sandbox.Snapshot
	for _, i := range res.Items {
		if s, ok := readSnapshot(i.Labels); ok && b.mine(i.Labels) && named(i.RepoTags) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(x, y *sandbox.Snapshot) int { return x.Created.Compare(y.Created) })
	return out, nil
}
