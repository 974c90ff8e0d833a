package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// CreateVolume makes a volume of a tenant.
func (m *Manager) CreateVolume(ctx context.Context, tenant string, v v1.NewVolume) (v1.VolumeInfo, error) {
	tenant = withTenant(Key{Tenant: tenant}).Tenant
	info, err := m.createVolume(ctx, tenant, v)
	m.audit(ctx, Entry{Tenant: tenant, Action: "volume.create", Detail: v.Name, Error: errorCode(err)})
	return info, err
}

func (m *Manager) createVolume(ctx context.Context, tenant string, v v1.NewVolume) (none v1.VolumeInfo, err error) {
	if err := checkName("tenant", tenant); err != nil {
		return none, err
	}
	v = v.WithDefaults()
	if err := v.Check(); err != nil {
		return none, err
	}
	b, err := m.backend(ctx, v.Backend)
	if err != nil {
		return none, err
	}
	keeper, ok := b.(backend.VolumeKeeper)
	if !ok {
		return none, backend.NotSupported(b.Name(), "keep volumes", "use the gvisor or docker backend")
	}
	o := ownerOf(ctx, tenant)
	bounds, err := m.bounds(ctx, o)
	if err != nil {
		return none, err
	}
	admit := func(all []v1.VolumeInfo) error { return bounds.checkVolume(all, v.Size) }
	return keeper.CreateVolume(ctx, v1.VolumeOwner{Tenant: tenant, APIKey: o.Key}, v, admit)
}

// checkVolume returns an error if the bounds do not allow another volume of this size.
func (b bounds) checkVolume(all []v1.VolumeInfo, size int64) error {
	return b.check(volumesUsed(all), v1.Quota{Volumes: new(1), VolumeBytes: &size})
}

// volumesUsed returns a function that sums the volumes whose owner counts, without those whose record cannot be read.
func volumesUsed(all []v1.VolumeInfo) func(counts func(owner) bool) v1.Quota {
	return func(counts func(owner) bool) v1.Quota {
		n, size := 0, int64(0)
		for _, v := range all {
			if !v.Unreadable && counts(owner{Tenant: v.Tenant, Key: v.APIKey}) {
				n, size = n+1, size+v.Size
			}
		}
		return v1.Quota{Volumes: &n, VolumeBytes: &size}
	}
}

// keepers returns the backends that keep volumes.
func (m *Manager) keepers() (out []backend.VolumeKeeper) {
	for _, b := range m.opts.Backends {
		if k, ok := b.(backend.VolumeKeeper); ok {
			out = append(out, k)
		}
	}
	return out
}

// allVolumes returns the volumes of a tenant, or of all if it is empty. A volume whose record cannot be read is in it
// once, although each keeper lists it.
func (m *Manager) allVolumes(ctx context.Context, tenant string) (all []v1.VolumeInfo, err error) {
	for _, k := range m.keepers() {
		some, err := k.Volumes(ctx, tenant)
		if err != nil {
			return nil, err
		}
		for _, v := range some {
			i := slices.IndexFunc(all, func(o v1.VolumeInfo) bool {
				return v.Unreadable && o.Unreadable && o.Tenant == v.Tenant && o.Name == v.Name
			})
			if i < 0 {
				all = append(all, v)
			} else {
				all[i].Uses = append(all[i].Uses, v.Uses...)
			}
		}
	}
	return all, nil
}

// Volumes lists the volumes of a tenant, by name. The uses include sessions that have no sandbox now, such as
// hibernated ones.
func (m *Manager) Volumes(ctx context.Context, tenant string) ([]v1.VolumeInfo, error) {
	tenant = withTenant(Key{Tenant: tenant}).Tenant
	if err := checkName("tenant", tenant); err != nil {
		return nil, err
	}
	all, err := m.allVolumes(ctx, tenant)
	if err != nil {
		return nil, err
	}
	out := append([]v1.VolumeInfo{}, all...)
	for i := range out {
		out[i].Uses = append(out[i].Uses, m.idleUses(out[i])...)
	}
	slices.SortFunc(out, func(a, b v1.VolumeInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// idleUses returns the live sessions of a volume that do not hold it.
func (m *Manager) idleUses(v v1.VolumeInfo) (out []v1.VolumeUse) {
	for _, s := range m.sessions() {
		s.mu.Lock()
		used, over := s.rec.Spec.Volumes, !s.rec.State.Live()
		held := slices.ContainsFunc(v.Uses, func(u v1.VolumeUse) bool { return u.Session == s.key.Name })
		s.mu.Unlock()
		i := slices.IndexFunc(used, func(u sandbox.Volume) bool { return u.Name == v.Name })
		if i >= 0 && !held && !over && s.key.Tenant == v.Tenant {
			out = append(out, v1.VolumeUse{Session: s.key.Name, Writable: used[i].Writable})
		}
	}
	return out
}

// Volume returns a volume of a tenant.
func (m *Manager) Volume(ctx context.Context, tenant, name string) (v1.VolumeInfo, error) {
	all, err := m.Volumes(ctx, tenant)
	if err != nil {
		return v1.VolumeInfo{}, err
	}
	i := slices.IndexFunc(all, func(v v1.VolumeInfo) bool { return v.Name == name })
	if i < 0 {
		return v1.VolumeInfo{}, volumeNotFound("show volume", name)
	}
	return all[i], nil
}

func volumeNotFound(op, name string) error {
	return &v1.Error{
		Code:    v1.CodeVolumeNotFound,
		Op:      op,
		Message: fmt.Sprintf("volume %.140q not found", name),
		Remedy:  "create it (recluse volume create), or list the volumes (recluse volume list)",
	}
}

// DeleteVolume removes a volume with its files. It fails with the code volume_busy if a session has it, also a
// hibernated one.
func (m *Manager) DeleteVolume(ctx context.Context, tenant, name string) error {
	tenant = withTenant(Key{Tenant: tenant}).Tenant
	err := m.awaitVolumes(ctx, tenant, []string{name}, func() error { return m.deleteVolume(ctx, tenant, name) })
	m.audit(ctx, Entry{Tenant: tenant, Action: "volume.delete", Detail: name, Error: errorCode(err)})
	return err
}

func (m *Manager) deleteVolume(ctx context.Context, tenant, name string) error {
	const op = "delete volume"
	v, err := m.Volume(ctx, tenant, name)
	if err != nil {
		return err
	}
	if v.Unreadable {
		return m.deleteUnreadable(ctx, tenant+"/"+name)
	}
	for _, u := range v.Uses {
		if u.Session != "" {
			return &v1.Error{
				Code:    v1.CodeVolumeBusy,
				Op:      op,
				Message: fmt.Sprintf("volume %q is in use by session %s", name, u.Session),
				Remedy:  "end the session (recluse session end " + u.Session + ")",
				Retry:   true,
			}
		}
	}
	k, ok := m.known(v.Backend).(backend.VolumeKeeper)
	if !ok {
		return volumeNotFound(op, name)
	}
	return k.DeleteVolume(ctx, v.Tenant+"/"+v.Name)
}

// deleteUnreadable removes a volume whose record cannot be read. Its backend is unknown, so each keeper tries: one with
// an engine first, which may have its files. Sessions that have it, but no sandbox, could not use it anyway.
func (m *Manager) deleteUnreadable(ctx context.Context, ref string) (err error) {
	keepers := m.keepers()
	slices.SortStableFunc(keepers, func(a, b backend.VolumeKeeper) int {
		switch {
		case a.OtherVolumes() == b.OtherVolumes():
			return 0
		case a.OtherVolumes():
			return -1
		}
		return 1
	})
	for _, k := range keepers {
		if err = k.DeleteVolume(ctx, ref); err == nil {
			return nil
		}
	}
	return err
}

// volumeWait is how long a call waits for a volume whose sandbox is being ended, beyond the grace of its programs.
const volumeWait = 5 * time.Second

// awaitVolumes calls do again while a volume is busy only because the sandbox of an ended session is still being
// removed: for callers, the session has ended. The volume may become free between the call and the look at its
// sandboxes, so there is one more call after a look that finds no such sandbox.
func (m *Manager) awaitVolumes(ctx context.Context, tenant string, names []string, do func() error) error {
	deadline := time.Now().Add(m.opts.endGrace + volumeWait)
	for last := false; ; {
		err := do()
		if v1.CodeOf(err) != v1.CodeVolumeBusy || last || time.Now().After(deadline) {
			return err
		}
		if last = !m.heldByEnded(ctx, tenant, names); last {
			continue
		}
		select {
		case <-time.After(heldPause):
		case <-ctx.Done():
			return err
		}
	}
}

// heldByEnded reports whether one of the volumes is held by a sandbox of a session that has ended.
func (m *Manager) heldByEnded(ctx context.Context, tenant string, names []string) bool {
	live := map[string]bool{}
	for _, s := range m.sessions() {
		s.mu.Lock()
		live[s.rec.Sandbox] = s.rec.State.Live() && s.rec.State != v1.StateEnding
		s.mu.Unlock()
	}
	all, err := m.Volumes(ctx, tenant)
	return err == nil && slices.ContainsFunc(all, func(v v1.VolumeInfo) bool {
		return slices.Contains(names, v.Name) && slices.ContainsFunc(v.Uses, func(u v1.VolumeUse) bool {
			return u.Session != "" && u.Sandbox != "" && !live[u.Sandbox]
		})
	})
}

// withVolumes makes a sandbox with volumes.
func (s *Session) withVolumes(
	ctx context.Context, of []sandbox.Volume, do func() (*sandbox.Sandbox, error),
) (sb *sandbox.Sandbox, err error) {
	if len(of) == 0 {
		return do()
	}
	var names []string
	for _, v := range of {
		_, name, _ := strings.Cut(v.Name, "/")
		names = append(names, name)
	}
	err = s.m.awaitVolumes(ctx, s.key.Tenant, names, func() error {
		sb, err = do()
		return err
	})
	return sb, err
}

// collectVolumes removes what killed programs left of volumes.
func (m *Manager) collectVolumes(ctx context.Context, c *Collected) error {
	var errs []error
	for _, k := range m.keepers() {
		n, err := k.CollectVolumes(ctx)
		c.Volumes += n
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tenantVolumes returns the volumes of a session's spec as its backend knows them. Only volumes of the session's tenant
// are accepted, and volumes outside of the data directory only for callers on the server's own socket.
func (s *Session) tenantVolumes(ctx context.Context, b sandbox.Backend, of []sandbox.Volume) ([]sandbox.Volume, error) {
	if len(of) == 0 {
		return of, nil
	}
	s.mu.Lock()
	remote := s.rec.Remote
	s.mu.Unlock()
	k, ok := b.(backend.VolumeKeeper)
	if !ok {
		return of, nil // the backend refuses them
	}
	have, err := k.Volumes(ctx, s.key.Tenant)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(of)
	for i, v := range out {
		known := slices.ContainsFunc(have, func(h v1.VolumeInfo) bool { return h.Name == v.Name })
		switch {
		case known:
			out[i].Name = s.key.Tenant + "/" + v.Name
		case remote || !k.OtherVolumes() || strings.Contains(v.Name, "/"):
			return nil, volumeNotFound("open session", v.Name)
		}
	}
	return out, nil
}

// keepAccess records the volumes that a copy may no longer write to.
func (s *Session) keepAccess(got []sandbox.Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(got) != len(s.rec.Spec.Volumes) {
		return
	}
	s.rec.Spec.Volumes = slices.Clone(s.rec.Spec.Volumes) // the original shares it
	for i := range got {
		s.rec.Spec.Volumes[i].Writable = got[i].Writable
	}
}
