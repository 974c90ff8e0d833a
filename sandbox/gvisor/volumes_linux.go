//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/volumes"
	"github.com/recluse-dev/recluse/sandbox"
)

// volumesFile is the file from which cmd/recluse-engine reads the volumes to mount.
const volumesFile = "volumes.json"

// volumeBind is how gVisor knows a volume. It stays the same in snapshots and copies, because the engine restores only
// the mounts that it has saved; whether a copy may write is up to the mount on the host.
type volumeBind struct {
	Source   string `json:"source"` // on the host
	Writable bool   `json:"writable,omitempty"`
}

// volumeMount is a volume that the engine mounts.
type volumeMount struct {
	Device   string `json:"device,omitempty"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// canLimitVolumes returns nil if the size of volumes can be limited.
func (b *Backend) canLimitVolumes() error {
	if b.asUser() {
		return errors.New("limiting a volume requires root")
	}
	return volumes.CanLimit()
}

// checkVolumes refuses volumes that a sandbox cannot use as requested.
func (b *Backend) checkVolumes(spec sandbox.Spec) error {
	for _, v := range spec.Volumes {
		found, err := b.volumes.Get(v.Name)
		if err != nil {
			return err
		}
		refuse := func(why, remedy string) error {
			return &v1.Error{
				Code:    v1.CodeNotSupported,
				Op:      "use volume " + found.Name,
				Message: "recluse does not run as root, and " + why,
				Remedy:  remedy,
			}
		}
		if b.asUser() && found.Kind == volumes.KindImage {
			return refuse("only root can mount a volume whose size is limited", "run recluse as root")
		}
		if b.asUser() && v.Writable {
			return refuse("the user namespace of an ordinary user has one user, "+
				"so the files could not belong to the user inside",
				"use it read-only, and write to its directory on the host (docs/STORAGE.md); or run recluse as root")
		}
	}
	return nil
}

// takeVolumes takes the leases of a new sandbox, and returns what the engine has to mount. The devices stay attached
// until they are closed and no sandbox uses them. The pipes of the sandbox must exist: they prove that the leases are
// valid.
func (b *Backend) takeVolumes(ctx context.Context, r *record) (mounts []volumeMount, devices []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(devices)
		}
	}()
	first := len(r.Volumes) == 0 // not a copy
	for i, v := range r.Spec.Volumes {
		lease := volumes.LeaseOf(r.ID, Name, b.sandboxes.Path(r.ID), r.Spec.Labels, v.Writable)
		found, err := b.volumes.Take(ctx, v.Name, lease, b.volumes.Lives)
		if err != nil {
			return nil, devices, err
		}
		m := volumeMount{Target: found.Mount(), ReadOnly: !v.Writable}
		if found.Kind == volumes.KindImage {
			d, err := b.volumes.Device(ctx, found)
			if err != nil {
				return nil, devices, err
			}
			devices, m.Device = append(devices, d), d.Name()
		}
		mounts = append(mounts, m)
		if first {
			r.Volumes = append(r.Volumes, volumeBind{Source: found.Mount(), Writable: v.Writable})
		} else if r.Volumes[i].Source != found.Mount() {
			return nil, devices, errors.New("the data directory of volume " + found.Name + " has moved")
		}
	}
	return mounts, devices, nil
}

// releaseVolumes returns the leases of a sandbox that has ended.
func (b *Backend) releaseVolumes(id string) error {
	r, err := b.load(id)
	if err != nil || len(r.Spec.Volumes) == 0 {
		return nil //nolint:nilerr // without a record, the leases are no longer valid, and the next look removes them
	}
	var refs []string
	for _, v := range r.Spec.Volumes {
		refs = append(refs, v.Name)
	}
	return b.volumes.Release(id, refs...)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing was written
	}
}

// inVolume reports whether a path inside is in a volume.
func (r *record) inVolume(inside string) bool {
	for _, v := range r.Spec.Volumes {
		if rel, err := filepath.Rel(v.Path, inside); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

// openInVolume reports whether the engine could not restore a copy because its volume is read-only and a process has a
// file of it open that was written to.
func openInVolume(r *record, err error) bool {
	for i, v := range r.Volumes {
		if v.Writable && !r.Spec.Volumes[i].Writable {
			return strings.Contains(err.Error(), "failed to restore file handles") &&
				strings.Contains(err.Error(), "read-only file system")
		}
	}
	return false
}

func copyError(err error) error {
	return &v1.Error{
		Code: v1.CodeVolumeBusy,
		Op:   "restore",
		Message: "a copy has its volumes read-only, but a program inside has a file of a volume open " +
			"that the sandbox has written to",
		Remedy: "close the file first, or create the volume with --shared",
		Err:    err,
	}
}
