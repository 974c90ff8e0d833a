package session

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Space returns the space of the file system of the data directory; ok is false if it is unknown.
func (m *Manager) Space() (s diskuse.Space, ok bool) { return diskuse.Of(m.opts.DataDir) }

// collectFiles removes the files of backends that nothing needs.
func (m *Manager) collectFiles(ctx context.Context, c *Collected) error {
	var errs []error
	for _, b := range m.opts.Backends {
		if d, ok := b.(backend.DiskUser); ok {
			removed, err := d.Reclaim(ctx)
			errs = append(errs, err)
			c.Files = append(c.Files, removed...)
			for _, u := range removed {
				c.Bytes += u.Bytes
			}
		}
	}
	return errors.Join(errs...)
}

// DiskReport returns what takes space on the disk, the largest first. What backends keep outside this machine is not in
// it. A backend that does not answer is left out, and its error is returned beside the rest.
func (m *Manager) DiskReport(ctx context.Context) (v1.DiskReport, error) {
	r := v1.DiskReport{Dir: m.opts.DataDir, Uses: []v1.DiskUse{}}
	if s, ok := m.Space(); ok {
		r.Total, r.Free, r.Low = s.Total, s.Free, s.Low()
	}
	var errs []error
	names := map[string]bool{} // directories that backends have reported
	for _, b := range m.opts.Backends {
		names[b.Name()] = true
		d, ok := b.(backend.DiskUser)
		if !ok {
			continue
		}
		uses, err := d.DiskUse(ctx)
		errs = append(errs, err)
		r.Uses = append(r.Uses, uses...)
	}
	volumes, err := m.volumeUses(ctx)
	errs = append(errs, err)
	r.Uses = slices.Concat(r.Uses, volumes, m.ownFiles(names))
	if err := m.nameSessions(ctx, r.Uses); err != nil {
		errs = append(errs, err)
	}
	slices.SortStableFunc(r.Uses, func(x, y v1.DiskUse) int { return cmp.Compare(y.Bytes, x.Bytes) })
	return r, errors.Join(errs...)
}

// volumesDir is the directory of volumes in the data directory.
const volumesDir = "volumes"

// volumeUses returns what volumes take, and what killed programs left of them. Volumes that a Docker engine keeps are
// not in it.
func (m *Manager) volumeUses(ctx context.Context) (uses []v1.DiskUse, err error) {
	all, err := m.allVolumes(ctx, "")
	for _, v := range all {
		if v.Disk != nil {
			u := v1.DiskUse{Kind: v1.DiskVolume, Name: v.Tenant + "/" + v.Name, Backend: v.Backend, Bytes: *v.Disk}
			uses = append(uses, u)
		}
	}
	left, _ := filepath.Glob(filepath.Join(m.opts.DataDir, volumesDir, "*", ".*"))
	for _, path := range left {
		uses = append(uses, v1.DiskUse{Kind: v1.DiskLeft, Name: filepath.Base(path), Bytes: diskuse.Tree(path)})
	}
	return uses, err
}

// ownFiles returns what the data and cache directories contain besides volumes and the directories of backends.
func (m *Manager) ownFiles(backends map[string]bool) []v1.DiskUse {
	var all []v1.DiskUse
	list := func(dir string, kindOf func(name string) v1.DiskKind) {
		entries, _ := os.ReadDir(dir) // a missing directory takes nothing
		for _, e := range entries {
			if kind := kindOf(e.Name()); kind != "" {
				all = append(all, v1.DiskUse{Kind: kind, Name: e.Name(), Bytes: diskuse.Tree(filepath.Join(dir, e.Name()))})
			}
		}
	}
	list(m.opts.DataDir, func(name string) v1.DiskKind {
		switch {
		case backends[name], name == volumesDir:
			return ""
		case name == "runs":
			return v1.DiskRun
		}
		return v1.DiskLog
	})
	cache, err := xdg.Cache()
	if err != nil {
		return all
	}
	list(cache, func(name string) v1.DiskKind {
		if name == "images" {
			return ""
		}
		return v1.DiskCache
	})
	list(filepath.Join(cache, "images"), func(string) v1.DiskKind { return v1.DiskImage })
	return all
}

// nameSessions sets the sessions to which sandboxes and snapshots belong.
func (m *Manager) nameSessions(ctx context.Context, uses []v1.DiskUse) error {
	owner := map[string]string{}
	for _, s := range m.sessions() {
		s.mu.Lock()
		if s.rec.Sandbox != "" {
			owner[s.rec.Sandbox] = s.key.String()
		}
		s.mu.Unlock()
	}
	var errs []error
	for _, b := range m.opts.Backends {
		list, err := askBackend(ctx, b, m.opts.searchWait, b.Snapshots)
		if err != nil && v1.CodeOf(err) != v1.CodeNotSupported {
			errs = append(errs, err)
		}
		for _, i := range list {
			owner[i.ID] = i.Labels[labelSession]
		}
	}
	for i, u := range uses {
		uses[i].Session = strings.TrimSpace(owner[u.Name])
	}
	return errors.Join(errs...)
}
