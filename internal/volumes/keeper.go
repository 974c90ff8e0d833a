package volumes

import (
	"cmp"
	"context"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Keeper implements backend.VolumeKeeper for the volumes of a backend.
type Keeper struct {
	*Store
	// Limits returns nil if the backend can limit the size of a volume, and otherwise the reason.
	Limits func() error
	// Unlimited is the operator's consent to volumes whose size is not limited.
	Unlimited bool
	Setting   string // the name of that setting; empty: backend.unlimited_disk
	// Unlimitable is the kind of such volumes.
	Unlimitable Kind
	Lives       Lives
	Engine      Engine // for KindEngine
}

var _ backend.VolumeKeeper = (*Keeper)(nil)

// CreateVolume implements backend.VolumeKeeper.
func (k *Keeper) CreateVolume(
	ctx context.Context, o sandbox.VolumeOwner, n sandbox.NewVolume, admit func([]sandbox.VolumeInfo) error,
) (sandbox.VolumeInfo, error) {
	c := Creation{Owner: o, Volume: n, Kind: KindImage, Engine: k.Engine}
	if reason := k.Limits(); reason != nil {
		if !k.Unlimited {
			return sandbox.VolumeInfo{}, &v1.Error{
				Code:    v1.CodeConsentMissing,
				Op:      "create volume",
				Message: "the size of the volume cannot be limited: " + reason.Error(),
				Remedy:  "set " + cmp.Or(k.Setting, "backend.unlimited_disk") + " to allow volumes without a limit",
			}
		}
		c.Kind = k.Unlimitable
	}
	if admit != nil {
		c.Admit = func(all []*Volume) error { return admit(k.infos(all)) }
	}
	v, err := k.Create(ctx, c)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	return v.Info(k.Lives)
}

// infos describes volumes without their use.
func (k *Keeper) infos(all []*Volume) []sandbox.VolumeInfo {
	out := make([]sandbox.VolumeInfo, len(all))
	for i, v := range all {
		out[i] = v.info()
	}
	return out
}

// Volumes implements backend.VolumeKeeper.
func (k *Keeper) Volumes(_ context.Context, tenant string) ([]sandbox.VolumeInfo, error) {
	all, unreadable, err := k.List(tenant)
	if err != nil {
		return nil, err
	}
	var out []sandbox.VolumeInfo
	for _, v := range all {
		if v.Backend != k.Backend {
			continue
		}
		i, err := v.Info(k.Lives)
		if v1.CodeOf(err) == v1.CodeVolumeNotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	for _, ref := range unreadable {
		out = append(out, k.describeUnreadable(ref))
	}
	return out, nil
}

// describeUnreadable describes a volume whose record cannot be read, with the uses by sandboxes of this backend.
func (k *Keeper) describeUnreadable(ref string) sandbox.VolumeInfo {
	v := k.unreadable(ref)
	i := sandbox.VolumeInfo{VolumeOwner: v1.VolumeOwner{Tenant: v.Tenant}, Name: v.Name, Unreadable: true}
	i.Disk = new(diskuse.Tree(v.dir))
	leases, _ := v.leases(k.orForeign(k.Lives)) // they may be damaged, too
	for _, l := range leases {
		if l.Backend == k.Backend {
			i.Uses = append(i.Uses, l.Use())
		}
	}
	return i
}

// DeleteVolume implements backend.VolumeKeeper.
func (k *Keeper) DeleteVolume(ctx context.Context, ref string) error {
	return k.Delete(ctx, ref, k.Lives, k.Engine)
}

// OtherVolumes implements backend.VolumeKeeper.
func (k *Keeper) OtherVolumes() bool { return k.Engine != nil }

// VolumeStorage implements backend.VolumeKeeper.
func (k *Keeper) VolumeStorage() (dir string, unlimited error) { return k.Dir, k.Limits() }

// CollectVolumes implements backend.VolumeKeeper.
func (k *Keeper) CollectVolumes(ctx context.Context) (int, error) { return k.Collect(ctx) }

// ReadOnlyCopies makes the volumes of a copy read-only that are not shared. The original goes on writing to them.
func (k *Keeper) ReadOnlyCopies(of []sandbox.Volume) {
	for i, v := range of {
		if k.OtherVolumes() && !strings.Contains(v.Name, "/") {
			continue // nobody counts its writers
		}
		if found, err := k.Get(v.Name); err != nil || !found.Shared {
			of[i].Writable = false
		}
	}
}
