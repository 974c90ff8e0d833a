package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// The engine keeps what a container changes in a layer over its image. It limits the size of that layer only where its
// storage driver has quotas: overlay2 on XFS that is mounted with pquota, btrfs and zfs. Elsewhere a sandbox could fill
// the disk of the engine's machine, so the root is read-only there and files are in memory, unless the operator allows
// writes without a limit.

// storage is what the engine can do for the files of sandboxes.
type storage struct {
	writable bool
	limited  bool
	why      string // why it is not writable or not limited
}

// storageWait limits how long FilesOnDisk waits for the engine.
const storageWait = 20 * time.Second

// sizeDrivers are the storage drivers that may have quotas.
var sizeDrivers = []string{"overlay2", "btrfs", "zfs"}

// sizeTrial caches whether the engine accepts a limit on the size of a container.
type sizeTrial struct {
	mu    sync.Mutex
	tried bool  // guarded by mu
	err   error // guarded by mu; nil: it does
}

// storage returns what the engine can do for the files of sandboxes.
func (b *Backend) storage(ctx context.Context, f *dockerengine.Facts) storage {
	why := ""
	switch {
	case f.Podman:
		return storage{why: "Podman cannot limit the bytes on a writable root"}
	case f.UserSpace():
		return storage{why: "the runtime " + f.Runtime + " keeps files in a layer of its own, which the Docker engine " +
			"neither limits nor puts into snapshots; the gvisor backend has a writable root"}
	case !slices.Contains(sizeDrivers, f.Storage):
		why = "the storage driver " + f.Storage + " of the Docker engine cannot limit bytes"
	default:
		if err := b.trySize(ctx); err != nil {
			on := cmp.Or(f.FileSystem, "an unknown file system")
			why = "the Docker engine cannot limit bytes (" + f.Storage + " on " + on + "): " + err.Error()
		}
	}
	return storage{writable: why == "" || b.opts.UnlimitedDisk, limited: why == "", why: why}
}

// trySize creates a container with a limit on its size, once. The container is of an empty image and never starts.
func (b *Backend) trySize(ctx context.Context) error {
	b.sizes.mu.Lock()
	defer b.sizes.mu.Unlock()
	if !b.sizes.tried {
		err := b.cli.TrySize(ctx, map[string]string{labelInstance: b.instance}, sizeOption(1<<30))
		if ctx.Err() != nil {
			return err
		}
		b.sizes.tried, b.sizes.err = true, err
	}
	return b.sizes.err
}

// sizeOption is the option of the storage driver that limits the size of a container.
func sizeOption(size int64) map[string]string {
	return map[string]string{"size": strconv.FormatInt(size, 10)}
}

// FilesOnDisk implements sandbox.DiskStorer.
func (b *Backend) FilesOnDisk(spec sandbox.Spec) bool {
	ctx, cancel := context.WithTimeout(b.ctx, storageWait)
	defer cancel()
	f, err := b.facts(ctx)
	return err == nil && b.onDisk(ctx, f, spec)
}

// onDisk reports whether a sandbox gets a writable root whose files are on disk.
func (b *Backend) onDisk(ctx context.Context, f *dockerengine.Facts, spec sandbox.Spec) bool {
	if spec.ReadOnly {
		return false
	}
	opts, err := specOptions(spec)
	if err != nil {
		return false // start reports it
	}
	hc, err := b.patch(opts)
	return err == nil && !hc.ReadonlyRootfs && b.storage(ctx, f).writable
}

// DiskRemedy returns what makes a larger disk possible, if a spec requests more than the memory can hold.
func (b *Backend) DiskRemedy(spec sandbox.Spec) string {
	ctx, cancel := context.WithTimeout(b.ctx, storageWait)
	defer cancel()
	f, err := b.facts(ctx)
	if err != nil || spec.ReadOnly {
		return ""
	}
	remedy := "request less disk or more memory"
	if !f.Podman && !f.UserSpace() {
		remedy += ", keep the Docker engine's data on XFS mounted with pquota, or allow writes without a limit with docker.unlimited_disk"
	}
	return remedy + ": " + b.storage(ctx, f).why
}

// ownedDir is a directory of an image that gets the user of a sandbox as its owner.
type ownedDir struct {
	Path string    `json:"path"`
	Mode int64     `json:"mode"`
	Time time.Time `json:"time"`
}

// maxImageRead limits how much of an image is read to find its directories.
const maxImageRead = 1 << 30

// prepareRoot makes the directories of a container that code may write to on its writable root, and its working
// directory. The container has not started. Paths at which something is mounted stay as they are.
func (b *Backend) prepareRoot(ctx context.Context, p *plan, hc *container.HostConfig) error {
	var dirs []launch.Dir
	if !p.fromWritable { // a snapshot contains them
		dirs = backendkit.DirsOnDisk(p.User, int(p.Spec.Limits.Files()/2))
	}
	if dir := p.guestConfig().Dir; !backendkit.Below(dir, v1.DefaultHome) {
		dirs = append(dirs, launch.Dir{Path: dir, UID: -1})
	}
	mounted := targets(*hc)
	if ic := p.image.Config; ic != nil {
		for target := range ic.Volumes {
			mounted = append(mounted, path.Clean("/"+target))
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(name string, d ownedDir, uid, gid int) error {
		return w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir,
			Name:     strings.TrimPrefix(name, "/") + "/",
			Mode:     d.Mode,
			Uid:      uid,
			Gid:      gid,
			ModTime:  cmp.Or(d.Time, time.Now()),
		})
	}
	for _, d := range dirs {
		if backendkit.Below(d.Path, mounted...) || d.Path == "/etc/hosts" { // the engine mounts that one
			continue
		}
		stat, err := b.cli.ContainerStatPath(ctx, p.Container, client.ContainerStatPathOptions{Path: d.Path})
		found := ownedDir{Path: d.Path, Mode: tarMode(stat.Stat.Mode), Time: stat.Stat.Mtime}
		switch {
		case err == nil && (d.UID < 0 || !stat.Stat.Mode.IsDir()), errdefs.IsNotFound(err) && d.Optional:
			continue
		case errdefs.IsNotFound(err):
			found.Mode = 0o755
		case err != nil:
			return err
		}
		if d.UID < 0 {
			d.UID, d.GID = p.User.UID, p.User.GID
		}
		if d.Mode != "" {
			if found.Mode, err = strconv.ParseInt(d.Mode, 8, 32); err != nil {
				return err
			}
		}
		if err := add(d.Path, found, d.UID, d.GID); err != nil {
			return err
		}
		if d.Deep == 0 {
			continue
		}
		below, err := b.dirsBelow(ctx, p, d)
		if err != nil {
			return err
		}
		for _, sub := range below {
			name := path.Join(d.Path, sub.Path)
			if backendkit.Below(name, mounted...) {
				continue
			}
			if err := add(name, sub, d.UID, d.GID); err != nil {
				return err
			}
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err := b.cli.CopyToContainer(ctx, p.Container, client.CopyToContainerOptions{DestinationPath: "/", Content: &buf})
	return err
}

// tarMode returns the mode of a directory in the format of tar.
func tarMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for bit, value := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= value
		}
	}
	return mode
}

// dirsBelow returns the directories below d in an image that programs install into. A file on this machine keeps them
// for the next sandbox.
func (b *Backend) dirsBelow(ctx context.Context, p *plan, d launch.Dir) ([]ownedDir, error) {
	note := filepath.Join(b.dir, "roots", hash([]byte(p.image.ID+"\x00"+d.Path))+".json")
	var all []ownedDir
	if atomicfile.ReadJSON(note, &all) == nil {
		return limit(all, d.Deep), nil
	}
	res, err := b.cli.CopyFromContainer(ctx, p.Container, client.CopyFromContainerOptions{SourcePath: d.Path})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Content.Close() }()
	archive := tar.NewReader(io.LimitReader(res.Content, maxImageRead))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		// The archive begins with the name of the directory.
		_, rel, _ := strings.Cut(path.Clean(h.Name), "/")
		if h.Typeflag == tar.TypeDir && rel != "" && launch.InstallsInto(rel) {
			all = append(all, ownedDir{rel, h.Mode & 0o7777, h.ModTime})
		}
	}
	// The nearest come first: new packages appear there.
	slices.SortStableFunc(all, func(x, y ownedDir) int {
		return strings.Count(x.Path, "/") - strings.Count(y.Path, "/")
	})
	if os.MkdirAll(filepath.Dir(note), 0o700) == nil {
		_ = atomicfile.WriteJSON(note, all) // without it, the next sandbox reads the image again
	}
	return limit(all, d.Deep), nil
}

func limit[T any](all []T, n int) []T { return all[:min(len(all), n)] }

// imageUser returns the user of an image, or the default user if the image has none, has root, or names a user whom its
// /etc/passwd lacks.
func (b *Backend) imageUser(ctx context.Context, image client.ImageInspectResult) v1.User {
	if image.Config == nil || image.Config.User == "" {
		return v1.DefaultUser
	}
	u, err := v1.ParseUser(image.Config.User)
	if err == nil && u.Name != "" {
		u, err = b.cli.LookUpUser(ctx, image.ID, u.Name)
	}
	if err != nil || u.UID == 0 || u.GID == 0 {
		return v1.DefaultUser
	}
	return u
}

// checkRoot refuses to restore a snapshot of a writable root where the root is read-only, because its files would be
// hidden.
func checkRoot(p *plan, s storage) error {
	if !p.fromWritable || p.Writable {
		return nil
	}
	return backend.NotSupported(Name, "restore a snapshot of a writable root, because the root is read-only here: "+s.why,
		"set docker.unlimited_disk again")
}
