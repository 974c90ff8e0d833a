package docker

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
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

// snapshotRepository is the name of all our snapshots in the Docker engine's list of images.
const snapshotRepository = "recluse-snapshot"

// forkLabel is the label with which Sandbox.Fork marks its snapshots.
const forkLabel = "recluse.fork-of"

// noMemory explains why snapshots lack memory. Docker engines in experimental mode can write memory to disk, with
// CRIU or with runsc. But they restore it only into the same container. Such a snapshot could not be restored into a
// second sandbox, and not at all once the container is removed.
const noMemory = "snapshots hold files but no memory, because Docker restores memory only into the same container"

// kept are the tmpfs directories whose files a snapshot holds.
var kept = []string{v1.DefaultHome, "/tmp", "/var/tmp"}

// Snapshot implements sandbox.Backend. The snapshot holds only files. Processes continue to run and are not part of
// it. Files in tmpfs directories are stored as an archive inside the image, because a commit of the container does
// not contain them. If the root is read-only, these are the only files that can have changed.
func (b *Backend) Snapshot(ctx context.Context, id string, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	const op = "snapshot"
	if opts.Labels[forkLabel] != "" {
		return nil, backend.NotSupported(Name, "fork: "+noMemory, "take a snapshot and restore it, to copy only the files")
	}
	r, _, err := b.find(ctx, id)
	if err != nil {
		return nil, err
	}
	s := &sandbox.Snapshot{
		ID:      "s-" + ids.Hex(6),
		Backend: Name,
		Parent:  id,
		Created: time.Now().UTC(),
		Spec:    backendkit.SnapshotSpec(r.Spec, opts),
		Labels:  maps.Clone(opts.Labels),
		Guest:   r.Guest,
		Engine:  b.opts.Runtime,
	}
	if err := b.take(ctx, r, s); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), dockerengine.CleanWait)
		defer cancel()
		return nil, errors.Join(failed(ctx, op, "cannot take the snapshot", err), b.DeleteSnapshot(clean, s.ID))
	}
	if opts.Stop {
		return s, b.Stop(ctx, id)
	}
	return s, nil
}

func (b *Backend) take(ctx context.Context, r record, s *sandbox.Snapshot) (err error) {
	base, err := b.base(ctx, r)
	if err != nil {
		return err
	}
	var files *os.File // nil: all files are in base
	if r.Writable {
		res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{Size: true})
		if err != nil {
			return err
		}
		if res.Container.SizeRw != nil {
			s.Size = *res.Container.SizeRw
		}
	} else {
		if files, err = b.pack(ctx, r); err != nil {
			return err
		}
		defer func() { _ = files.Close() }()
		fi, err := files.Stat()
		if err != nil {
			return err
		}
		s.Size = fi.Size()
	}
	labels, err := recordLabels(s, s.Labels)
	if err != nil {
		return err
	}
	labels[labelSnapshot], labels[labelWritable] = s.ID, strconv.FormatBool(r.Writable)
	carrier, remove, err := b.cli.Carrier(
		ctx,
		dockerengine.CarrierName(),
		base,
		labels,
		&container.HostConfig{NetworkMode: "none"},
	)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if files != nil {
		if err := b.cli.PutFile(ctx, carrier, archivePath, files, s.Size); err != nil {
			return err
		}
	}
	// Not cancelled halfway, for the same reason as in Engine.Create.
	o := client.ContainerCommitOptions{Reference: snapshotRepository + ":" + s.ID, Config: &container.Config{}}
	_, err = b.cli.ContainerCommit(context.WithoutCancel(ctx), carrier, o)
	return errors.Join(err, ctx.Err())
}

// base returns the image that a snapshot adds files to: the sandbox's image, or a commit of the container if its root
// is writable.
func (b *Backend) base(ctx context.Context, r record) (string, error) {
	res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	if res.Container.HostConfig.ReadonlyRootfs {
		return res.Container.Image, nil
	}
	// NoPause: a pause would be reported as an incident caused by another program. ENV: the token must not stay in
	// the image.
	done, err := b.cli.ContainerCommit(ctx, r.Container, client.ContainerCommitOptions{
		NoPause: true,
		Config:  &container.Config{},
		Changes: []string{"ENV " + launch.ConfigEnv + "="},
	})
	return done.ID, err
}

// pack downloads the files in tmpfs directories into a file of this machine, because a tar archive must state its
// size in advance.
func (b *Backend) pack(ctx context.Context, r record) (*os.File, error) {
	user := r.User
	if r.Spec.Sudo {
		user = v1.User{} // some files may belong to root
	}
	o := guestExec(user, slices.Concat([]string{launch.PackArg}, kept, workDirs(r))...)
	return b.cli.ExecToFile(ctx, r.Container, o, r.Spec.Limits.Disk+r.Spec.Limits.Memory)
}

func workDirs(r record) []string {
	if r.WorkDir == "" {
		return nil
	}
	return []string{r.WorkDir}
}

// named reports whether an image still has a name. A snapshot that was deleted while in use has none. Podman prefixes
// names with a registry.
func named(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool {
		return strings.HasPrefix(path.Base(t), snapshotRepository+":")
	})
}

// foundSnapshot is a snapshot and its image.
type foundSnapshot struct {
	*sandbox.Snapshot
	image    string // ID
	writable bool   // it is of a writable root
}

// findSnapshot returns a snapshot of this instance.
func (b *Backend) findSnapshot(ctx context.Context, id string) (f foundSnapshot, err error) {
	if !goodSnapshot.MatchString(id) {
		return f, notFound("find snapshot", "snapshot", id)
	}
	res, err := b.cli.ImageList(ctx, client.ImageListOptions{Filters: b.filter(labelSnapshot + "=" + id)})
	if err != nil {
		return f, failed(ctx, "find snapshot", "the Docker engine cannot list images", err)
	}
	for _, i := range res.Items {
		if s, ok := readSnapshot(i.Labels); ok && s.ID == id && b.mine(i.Labels) && named(i.RepoTags) {
			return foundSnapshot{s, i.ID, i.Labels[labelWritable] == "true"}, nil
		}
	}
	return f, notFound("find snapshot", "snapshot", id)
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(
	ctx context.Context,
	snap *sandbox.Snapshot,
	opts sandbox.RestoreOptions,
) (sandbox.Machine, error) {
	if snap == nil {
		return nil, notFound("restore", "snapshot", "")
	}
	s, err := b.findSnapshot(ctx, snap.ID)
	if err != nil {
		return nil, err
	}
	spec := backendkit.RestoredSpec(s.Spec, opts)
	if opts.Copy {
		b.volumes.ReadOnlyCopies(spec.Volumes)
	}
	return b.start(ctx, spec, s.image, s.ID, s.writable)
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	s, err := b.findSnapshot(ctx, id)
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
	// With Force, Podman would remove the sandboxes that use the image.
	_, err = b.cli.ImageRemove(ctx, s.image, client.ImageRemoveOptions{Force: !f.Podman, PruneChildren: true})
	switch {
	case errdefs.IsConflict(err) && f.Podman:
		err = b.cli.Untag(ctx, s.image)
	case errdefs.IsConflict(err):
		// A sandbox that was made from it exists, or another snapshot is based on it. It loses its name now, and the
		// rest is removed with the last of them.
		_, err = b.cli.ImageRemove(ctx, snapshotRepository+":"+id, client.ImageRemoveOptions{
			Force:         true,
			PruneChildren: true,
		})
	}
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return failed(ctx, "delete snapshot", "the Docker engine cannot remove the image", err)
}

// removeUntagged removes the images of deleted snapshots that a sandbox still used when they were deleted. It ignores
// errors, because the next call tries again.
func (b *Backend) removeUntagged(ctx context.Context) {
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
		return nil, b.ignoreIfUnused(failed(ctx, "list snapshots", "the Docker engine cannot list images", err))
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
