// Package volumes keeps the volumes of a data directory: directories with files that outlive sandboxes.
//
// A volume has a directory of its own, TENANT/NAME below the directory of the [Store], which only the user of the
// program may enter. It gets its name when it is complete, and loses it before anything of it is removed. So a program
// that is killed leaves at most a directory with a temporary name, which the next change of the store removes.
//
// A volume is of one of three kinds. An image is a file with an ext4 file system, whose size and number of files limit
// the volume. It is mounted through a loop device, which requires root, and only in mount namespaces of sandboxes: all
// mounts and the device end with the last of them. A directory has no limits. An engine volume belongs to a Docker
// engine; the store has only its record.
//
// A sandbox that uses a volume has a lease: a file that names the sandbox. A lease is valid as long as the sandbox
// exists, so the crash of a sandbox frees it.
package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

// DefaultTenant owns the volumes whose names have no tenant.
const DefaultTenant = "default"

// The files of a volume.
const (
	recordFile = "volume.json"
	imageFile  = "image.ext4"
	filesDir   = "files" // the files of a directory, or the mount point of an image
	leasesDir  = "leases"
)

// The prefixes of directories that are being made or removed. No name of a volume begins with a dot.
const (
	newPrefix = ".new-"
	oldPrefix = ".old-"
)

// lockWait is how long another program may hold the lock of the store. It holds it for short steps only.
const lockWait = 20 * time.Second

// Kind is how a volume is stored.
type Kind string

// The kinds of volumes.
const (
	KindImage     Kind = "image"
	KindDirectory Kind = "directory"
	KindEngine    Kind = "engine"
)

// Store has the volumes of a data directory.
type Store struct {
	Dir     string
	Backend string // only sandboxes of this backend use the volumes that it makes
}

// In returns the store of a data directory, for a backend.
func In(dataDir, backend string) *Store {
	return &Store{Dir: filepath.Join(dataDir, "volumes"), Backend: backend}
}

// Volume is the record of a volume.
type Volume struct {
	ID      string    `json:"id"` // differs from earlier volumes of the same name
	Tenant  string    `json:"tenant"`
	APIKey  string    `json:"api_key,omitempty"`
	Name    string    `json:"name"`
	Backend string    `json:"backend"`
	Kind    Kind      `json:"kind"`
	Size    int64     `json:"size"`
	Files   int64     `json:"files"`
	Shared  bool      `json:"shared,omitempty"`
	Created time.Time `json:"created"`

	dir string
}

// Ref returns the name by which backends find the volume.
func (v *Volume) Ref() string { return v.Tenant + "/" + v.Name }

// Mount returns the directory that sandboxes bind: the files of a directory, or the mount point of an image.
func (v *Volume) Mount() string { return filepath.Join(v.dir, filesDir) }

// Image returns the file with the file system of an image.
func (v *Volume) Image() string { return filepath.Join(v.dir, imageFile) }

// EngineName returns the name of an engine volume in the engine.
func (v *Volume) EngineName() string { return "recluse-" + v.ID }

// split returns the tenant and the name of a reference.
func split(ref string) (tenant, name string) {
	tenant, name, ok := strings.Cut(ref, "/")
	if !ok {
		return DefaultTenant, ref
	}
	return tenant, name
}

func notFound(op, ref string) error {
	_, name := split(ref)
	return &v1.Error{
		Code:    v1.CodeVolumeNotFound,
		Op:      op,
		Message: fmt.Sprintf("volume %q not found", name),
		Remedy:  "create it (recluse volume create), or list the volumes (recluse volume list)",
	}
}

func broken(op, message string, err error) error {
	return &v1.Error{Code: v1.CodeInternal, Op: op, Message: message, Err: err}
}

// Get returns the volume with this name, or TENANT/NAME.
func (s *Store) Get(ref string) (*Volume, error) {
	const op = "find volume"
	if err := v1.CheckVolumeRef(ref); err != nil {
		return nil, err
	}
	tenant, name := split(ref)
	v := &Volume{dir: filepath.Join(s.Dir, tenant, name)}
	err := atomicfile.ReadJSON(filepath.Join(v.dir, recordFile), v)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isDirectory(v.dir):
		return nil, notFound(op, ref)
	case err != nil:
		return nil, broken(op, "the record of volume "+name+" cannot be read", err)
	case v.Tenant != tenant || v.Name != name:
		return nil, broken(op, "the record of volume "+name+" is that of another volume", nil)
	}
	return v, nil
}

func isDirectory(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// unreadable returns the volume TENANT/NAME without the content of its record.
func (s *Store) unreadable(ref string) *Volume {
	tenant, name := split(ref)
	return &Volume{Tenant: tenant, Name: name, dir: filepath.Join(s.Dir, tenant, name)}
}

// List returns the volumes of a tenant, or of all tenants if it is empty, by name. The second result has the names of
// volumes whose record cannot be read.
func (s *Store) List(tenant string) (all []*Volume, unreadable []string, err error) {
	tenants := []string{tenant}
	if tenant == "" {
		if tenants, err = directories(s.Dir); err != nil {
			return nil, nil, broken("list volumes", "the directory of the volumes cannot be read", err)
		}
	}
	for _, t := range tenants {
		names, err := directories(filepath.Join(s.Dir, t))
		if err != nil {
			return nil, nil, broken("list volumes", "the directory of the volumes cannot be read", err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, ".") {
				continue // being made or removed
			}
			v, err := s.Get(t + "/" + name)
			switch {
			case err == nil:
				all = append(all, v)
			case v1.CodeOf(err) == v1.CodeInternal: // not deleted meanwhile, and a valid name
				unreadable = append(unreadable, t+"/"+name)
			}
		}
	}
	return all, unreadable, nil
}

// directories returns the names of the directories in dir, which may be missing.
func directories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// lock takes the lock of the store, under which names appear and disappear and leases are taken.
func (s *Store) lock(ctx context.Context, op string) (*filelock.Lock, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, broken(op, "the directory of the volumes cannot be made", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	l, err := filelock.Acquire(ctx, filepath.Join(s.Dir, ".lock"))
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeBusy,
			Op:      op,
			Message: "another program changes the volumes",
			Retry:   true,
			Err:     err,
		}
	}
	return l, nil
}

// Creation is how a volume is created.
type Creation struct {
	Owner  v1.VolumeOwner
	Volume v1.NewVolume
	Kind   Kind
	// Admit returns an error if the volumes that exist do not allow another one, such as a quota. Nil: all are allowed.
	Admit func(existing []*Volume) error
	// Engine has the volumes of an engine, for KindEngine.
	Engine Engine
}

// Engine is an engine that has volumes of its own.
type Engine interface {
	MakeVolume(ctx context.Context, v *Volume) error
	// DropVolume removes a volume. It returns nil if there is none.
	// Without an ID, the record of the volume could not be read, and its tenant and name identify it.
	DropVolume(ctx context.Context, v *Volume) error
}

// failpoint is called between the steps of a change. A test kills the program in it.
var failpoint = func(string) {}

// Create makes a volume.
func (s *Store) Create(ctx context.Context, c Creation) (*Volume, error) {
	const op = "create volume"
	c.Volume = c.Volume.WithDefaults()
	if err := c.Volume.Check(); err != nil {
		return nil, err
	}
	v := &Volume{
		ID:      "v" + ids.Hex(8),
		Tenant:  cmp.Or(c.Owner.Tenant, DefaultTenant),
		APIKey:  c.Owner.APIKey,
		Name:    c.Volume.Name,
		Backend: s.Backend,
		Kind:    c.Kind,
		Size:    c.Volume.Size,
		Files:   c.Volume.Files,
		Shared:  c.Volume.Shared,
		Created: time.Now().UTC(),
	}
	if err := v1.CheckVolumeRef(v.Ref()); err != nil {
		return nil, err
	}
	if err := s.admit(ctx, op, v, c.Admit, nil); err != nil { // before anything is made
		return nil, err
	}
	parent := filepath.Join(s.Dir, v.Tenant)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, broken(op, "the directory of the volumes cannot be made", err)
	}
	temp, err := os.MkdirTemp(parent, newPrefix) // 0700
	if err != nil {
		return nil, broken(op, "the directory of the volume cannot be made", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // already renamed, unless a step failed
	// The lock shows that the maker of the directory lives.
	maker, err := filelock.TryDir(temp)
	if err != nil {
		return nil, broken(op, "the directory of the volume cannot be locked", err)
	}
	defer maker.Release()
	failpoint("create.begun")
	v.dir = temp
	if err := v.fill(ctx, c.Engine); err != nil {
		return nil, err
	}
	failpoint("create.filled")
	if err := atomicfile.WriteJSON(filepath.Join(temp, recordFile), v); err != nil {
		return nil, broken(op, "the record of the volume cannot be written", err)
	}
	if err := syncAll(filepath.Join(temp, recordFile), temp); err != nil {
		return nil, broken(op, "the volume cannot be written to the disk", err)
	}
	failpoint("create.written")
	final := filepath.Join(parent, v.Name)
	err = s.admit(ctx, op, v, c.Admit, func() error {
		if err := os.Rename(temp, final); err != nil {
			return broken(op, "the volume cannot get its name", err)
		}
		v.dir = final
		return syncAll(parent, s.Dir)
	})
	if err != nil && c.Kind == KindEngine && v.dir == temp {
		err = errors.Join(err, c.Engine.DropVolume(context.WithoutCancel(ctx), v))
	}
	if err != nil {
		return nil, err
	}
	failpoint("create.named")
	return v, nil
}

// fill makes the content of a new volume, in its temporary directory.
func (v *Volume) fill(ctx context.Context, engine Engine) error {
	for _, d := range []string{filesDir, leasesDir} {
		if err := os.Mkdir(filepath.Join(v.dir, d), 0o700); err != nil {
			return broken("create volume", "the directory of the volume cannot be made", err)
		}
	}
	switch v.Kind {
	case KindImage:
		return v.makeImage(ctx)
	case KindEngine:
		return engine.MakeVolume(ctx, v)
	case KindDirectory:
	}
	// Any user inside may write to it. The directories above it are ours alone.
	if err := os.Chmod(v.Mount(), 0o777); err != nil {
		return broken("create volume", "the directory of the volume cannot be made", err)
	}
	return nil
}

// admit calls then under the lock of the store, if the name is free and the other volumes allow another one.
func (s *Store) admit(
	ctx context.Context, op string, v *Volume, admit func([]*Volume) error, then func() error,
) error {
	lock, err := s.lock(ctx, op)
	if err != nil {
		return err
	}
	defer lock.Release()
	s.sweep()
	if _, err := os.Lstat(filepath.Join(s.Dir, v.Tenant, v.Name)); err == nil {
		return &v1.Error{
			Code:    v1.CodeVolumeExists,
			Op:      op,
			Message: fmt.Sprintf("volume %q already exists", v.Name),
			Remedy:  "use it, delete it, or choose another name",
		}
	}
	if admit != nil {
		all, _, err := s.List("")
		if err == nil {
			err = admit(all)
		}
		if err != nil {
			return err
		}
	}
	if then != nil {
		return then()
	}
	return nil
}

// sweep removes what programs left that were killed during a change, as far as it can.
//
// Preconditions: the lock of the store is held.
func (s *Store) sweep() int {
	n := 0
	tenants, _ := directories(s.Dir) // a missing directory has no volumes
	for _, t := range tenants {
		entries, _ := os.ReadDir(filepath.Join(s.Dir, t))
		for _, e := range entries {
			dir := filepath.Join(s.Dir, t, e.Name())
			switch {
			case strings.HasPrefix(e.Name(), newPrefix):
				l, err := filelock.TryDir(dir)
				if err != nil {
					continue // its maker lives
				}
				l.Release()
			case !strings.HasPrefix(e.Name(), oldPrefix):
				continue
			}
			if os.RemoveAll(dir) == nil {
				n++
			}
		}
	}
	return n
}

// Collect removes what killed programs left. It returns the number of volumes that were incomplete.
func (s *Store) Collect(ctx context.Context) (int, error) {
	if _, err := os.Lstat(s.Dir); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	lock, err := s.lock(ctx, "collect volumes")
	if err != nil {
		return 0, err
	}
	defer lock.Release()
	return s.sweep(), nil
}

// Delete removes a volume that no sandbox uses. The volume of an engine is removed first; if that fails, the volume
// stays.
//
// A volume whose record cannot be read is removed, too, unless a sandbox of another backend has a lease of it: whether
// that sandbox exists is not known here.
func (s *Store) Delete(ctx context.Context, ref string, lives Lives, engine Engine) error {
	const op = "delete volume"
	lock, err := s.lock(ctx, op)
	if err != nil {
		return err
	}
	defer lock.Release()
	s.sweep()
	v, err := s.Get(ref)
	lost := v1.CodeOf(err) == v1.CodeInternal
	if lost {
		v, err = s.unreadable(ref), nil
	}
	if err != nil {
		return err
	}
	leases, err := v.leases(s.orForeign(lives))
	if err != nil && (!lost || v1.CodeOf(err) != v1.CodeVolumeNotFound) {
		return err
	}
	if len(leases) > 0 {
		return InUse(op, v.Name, leases[0].Use())
	}
	if (v.Kind == KindEngine || lost) && engine != nil {
		if err := engine.DropVolume(ctx, v); err != nil {
			return err
		}
	}
	failpoint("delete.begun")
	parent := filepath.Dir(v.dir)
	old := filepath.Join(parent, oldPrefix+ids.Hex(8))
	if err := os.Rename(v.dir, old); err != nil {
		return broken(op, "the volume cannot be removed", err)
	}
	if err := syncAll(parent); err != nil {
		return broken(op, "the removal cannot be written to the disk", err)
	}
	failpoint("delete.renamed")
	if err := os.RemoveAll(old); err != nil {
		return broken(op, "the files of the volume cannot be removed; the next change of a volume tries again", err)
	}
	return nil
}

// Usage returns what the volume takes on the disk of the host, in bytes, or nil if it is unknown.
func (v *Volume) Usage() *int64 {
	switch v.Kind {
	case KindImage:
		if info, err := os.Lstat(v.Image()); err == nil {
			return new(allocated(info))
		}
	case KindDirectory:
		var n int64
		_ = filepath.WalkDir(v.Mount(), func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // removed meanwhile
			}
			if info, err := d.Info(); err == nil {
				n += allocated(info)
			}
			return nil
		})
		return &n
	case KindEngine:
	}
	return nil
}

// Info describes the volume.
func (v *Volume) Info(lives Lives) (v1.VolumeInfo, error) {
	i := v.info()
	i.Disk = v.Usage()
	leases, err := v.leases(lives)
	for _, l := range leases {
		i.Uses = append(i.Uses, l.Use())
	}
	return i, err
}

// info describes the volume without its use.
func (v *Volume) info() v1.VolumeInfo {
	return v1.VolumeInfo{
		VolumeOwner: v1.VolumeOwner{Tenant: v.Tenant, APIKey: v.APIKey},

		Name:      v.Name,
		Backend:   v.Backend,
		Size:      v.Size,
		Files:     v.Files,
		DiskLimit: v.Kind == KindImage,
		Shared:    v.Shared,
		Created:   v.Created,
	}
}

// InUse returns the error for a volume that a sandbox uses.
func InUse(op, name string, u v1.VolumeUse) error {
	who := "sandbox " + u.Sandbox
	if u.Session != "" {
		who = "session " + u.Session
	}
	e := &v1.Error{
		Code:    v1.CodeVolumeBusy,
		Op:      op,
		Message: fmt.Sprintf("volume %q is in use by %s", name, who),
		Remedy:  "end " + who,
		Retry:   true,
	}
	return e
}

func syncAll(paths ...string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Lease is the right of a sandbox to use a volume.
type Lease struct {
	Sandbox  string    `json:"sandbox"`
	Backend  string    `json:"backend"`
	Session  string    `json:"session,omitempty"` // key of the session
	Group    string    `json:"group,omitempty"`   // sandboxes of one group, such as a session, replace each other
	Dir      string    `json:"dir,omitempty"`     // of the sandbox
	Writable bool      `json:"writable,omitempty"`
	Since    time.Time `json:"since"`

	Maker  backendkit.Process `json:"maker"`            // the program that makes the sandbox
	Making bool               `json:"making,omitempty"` // the sandbox may not be known to its backend yet
}

// Use describes the lease.
func (l Lease) Use() v1.VolumeUse {
	_, name, ok := strings.Cut(l.Session, "/")
	if !ok {
		name = l.Session
	}
	return v1.VolumeUse{Session: name, Sandbox: l.Sandbox, Writable: l.Writable, Since: l.Since}
}

// Lives reports whether the sandbox of a lease exists.
type Lives func(Lease) bool

// LeaseOf returns the lease of a sandbox. dir is its directory.
func LeaseOf(id, backend, dir string, labels map[string]string, writable bool) Lease {
	return Lease{
		Sandbox:  id,
		Backend:  backend,
		Session:  labels[sandbox.LabelSession],
		Group:    cmp.Or(labels[sandbox.LabelSessionID], id),
		Dir:      dir,
		Writable: writable,
		Since:    time.Now().UTC(),
		Maker:    backendkit.Self(),
	}
}

// leases returns the leases of sandboxes that exist, oldest first, and removes the others.
//
// A lease may be written between the look at the directory and the removal of another one; the callers that decide
// about leases hold the lock of the store.
func (v *Volume) leases(lives Lives) ([]Lease, error) {
	dir := filepath.Join(v.dir, leasesDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound("find the users of a volume", v.Ref())
	}
	if err != nil {
		return nil, broken("find the users of a volume", "the leases of volume "+v.Name+" cannot be read", err)
	}
	var out []Lease
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		var l Lease
		if err := atomicfile.ReadJSON(path, &l); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, broken("find the users of a volume", "a lease of volume "+v.Name+" cannot be read", err)
		}
		if !lives(l) {
			_ = os.Remove(path) // it is not valid anyway
			continue
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Lease) int { return a.Since.Compare(b.Since) })
	return out, nil
}

// orForeign returns lives for leases of this backend. Those of other backends count as valid.
func (s *Store) orForeign(lives Lives) Lives {
	return func(l Lease) bool { return l.Backend != "" && l.Backend != s.Backend || lives(l) }
}

// Take gives a sandbox the lease of a volume, or returns an error with the code volume_busy.
func (s *Store) Take(ctx context.Context, ref string, l Lease, lives Lives) (*Volume, error) {
	const op = "use volume"
	lock, err := s.lock(ctx, op)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	v, err := s.Get(ref)
	if err == nil && v.Backend != s.Backend {
		err = &v1.Error{
			Code:    v1.CodeNotSupported,
			Op:      op,
			Message: fmt.Sprintf("volume %q belongs to the %s backend, not to %s", v.Name, v.Backend, s.Backend),
			Remedy:  "use that backend, or create another volume",
		}
	}
	if err != nil {
		return nil, err
	}
	others, err := v.leases(lives)
	if err != nil {
		return nil, err
	}
	if l.Writable && !v.Shared {
		for _, o := range others {
			if o.Writable && o.Group != l.Group {
				err := InUse(op, v.Name, o.Use())
				e, _ := errors.AsType[*v1.Error](err)
				e.Message = strings.Replace(e.Message, "is in use", "is written to", 1)
				e.Remedy += ", use the volume read-only, or create it with --shared for several writers"
				return nil, e
			}
		}
	}
	if err := atomicfile.WriteJSON(v.lease(l.Sandbox), l); err != nil {
		return nil, broken(op, "the lease of the volume cannot be written", err)
	}
	return v, nil
}

func (v *Volume) lease(sandboxID string) string {
	return filepath.Join(v.dir, leasesDir, sandboxID+".json")
}

// Release returns the leases of a sandbox that has ended.
func (s *Store) Release(sandboxID string, refs ...string) error {
	var errs []error
	for _, ref := range refs {
		err := v1.CheckVolumeRef(ref)
		if err == nil { // also if the record cannot be read
			err = os.Remove(s.unreadable(ref).lease(sandboxID))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
