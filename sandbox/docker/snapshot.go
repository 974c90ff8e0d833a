package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/guest/agent"
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
var kept = []string{sandbox.DefaultHome, "/tmp", "/var/tmp"}

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
		ID: "s-" + randomHex(6), Backend: Name, Parent: id, Created: time.Now().UTC(), Spec: r.Spec, Labels: maps.Clone(opts.Labels), Guest: r.Guest, Engine: b.opts.Runtime,
	}
	if err := b.take(ctx, r, s); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
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
	labels, err := snapshotLabels(s)
	if err != nil {
		return err
	}
	carrier, remove, err := b.carrier(ctx, carrierName(), base, labels, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	archive, wait := wrap(files, fi.Size())
	_, err = b.cli.CopyToContainer(ctx, carrier, client.CopyToContainerOptions{DestinationPath: "/", Content: archive})
	_ = archive.Close() // ends whoever writes into it
	if err = errors.Join(err, wait()); err != nil {
		return err
	}
	// Not given up halfway, for the reason that create tells.
	_, err = b.cli.ContainerCommit(context.WithoutCancel(ctx), carrier, client.ContainerCommitOptions{Reference: snapshotRepository + ":" + s.ID, Config: &container.Config{}})
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
	done, err := b.cli.ContainerCommit(ctx, r.Container, client.ContainerCommitOptions{NoPause: true, Config: &container.Config{}, Changes: []string{"ENV " + agent.ConfigEnv + "="}})
	return done.ID, err
}

// pack fetches the files in memory into a file of this machine, because an archive must say how long they are. The file has no name.
func (b *Backend) pack(ctx context.Context, r record) (f *os.File, err error) {
	conn, err := b.exec(ctx, r.Container, r.User, false, append([]string{agent.PackArg}, kept...)...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if f, err = os.CreateTemp("", "recluse-snapshot-"); err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // at once, so that nobody who is killed leaves it; where a file in use cannot be removed it is left to the system
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	var words strings.Builder
	limited := &limitedWriter{w: f, left: r.Spec.Limits.Disk + r.Spec.Limits.Memory}
	if _, err := stdcopy.StdCopy(limited, &words, conn.Reader); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if words.Len() > 0 {
		return nil, fmt.Errorf("the guest says: %.500s", words.String())
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// limitedWriter refuses what is more than a sandbox's files can be.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errors.New("the sandbox sends more than it can hold")
	}
	return l.w.Write(p)
}

// wrap gives the archive of the engine's in which the archive of the sandbox's files is one file. wait gives what went wrong with it.
func wrap(files io.Reader, size int64) (r *io.PipeReader, wait func() error) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path.Base(ownDir) + "/", Mode: 0o755})
		if err == nil {
			err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Base(ownDir) + "/" + archiveName, Size: size, Mode: 0o644})
		}
		if err == nil {
			_, err = io.Copy(t, files)
		}
		err = errors.Join(err, t.Close())
		_ = w.CloseWithError(err) // never fails
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil // the engine says better why it did not want the rest
		}
		done <- err
	}()
	return r, func() error { return <-done }
}

func snapshotLabels(s *sandbox.Snapshot) (map[string]string, error) {
	spec, err := json.Marshal(s.Spec)
	if err != nil {
		return nil, err
	}
	labels, err := json.Marshal(s.Labels)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		labelSnapshot: s.ID, labelParent: s.Parent, labelCreated: s.Created.Format(time.RFC3339Nano), labelSpec: string(spec), labelSpecHash: hash(spec),
		labelLabels: string(labels), labelGuest: s.Guest, labelSize: strconv.FormatInt(s.Size, 10),
		labelSession: s.Labels[sandbox.LabelSession],
	}, nil
}

func readSnapshot(l map[string]string) (*sandbox.Snapshot, bool) {
	s := &sandbox.Snapshot{ID: l[labelSnapshot], Backend: Name, Parent: l[labelParent], Guest: l[labelGuest]}
	if !goodSnapshot.MatchString(s.ID) || hash([]byte(l[labelSpec])) != l[labelSpecHash] || json.Unmarshal([]byte(l[labelSpec]), &s.Spec) != nil {
		return nil, false
	}
	_ = json.Unmarshal([]byte(l[labelLabels]), &s.Labels)
	s.Created, _ = time.Parse(time.RFC3339Nano, l[labelCreated])
	s.Size, _ = strconv.ParseInt(l[labelSize], 10, 64)
	return s, true
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
	spec := s.Spec.WithDefaults()
	if opts.Labels != nil {
		spec.Labels = maps.Clone(opts.Labels)
	}
	if len(opts.Env) > 0 {
		if spec.Env == nil {
			spec.Env = map[string]string{}
		}
		maps.Copy(spec.Env, opts.Env)
	}
	return b.start(ctx, spec, image, s.ID)
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	_, image, err := b.findSnapshot(ctx, id)
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		return err
	}
	f, err := b.facts(ctx)
	if err != nil {
		return err
	}
	// Podman would end the sandboxes that use it, if forced.
	_, err = b.cli.ImageRemove(ctx, image, client.ImageRemoveOptions{Force: !f.podman, PruneChildren: true})
	switch {
	case errdefs.IsConflict(err) && f.podman:
		err = b.untag(ctx, image)
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
