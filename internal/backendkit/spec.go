package backendkit

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// ImageConfig is the configuration that an image has for the code that runs in it.
type ImageConfig struct {
	Env []string
	Dir string // empty: the home directory
}

// GuestConfig returns the common part of the guest's configuration. Code runs as the guest's own user, unless the
// backend sets another user. The backend also adds the limits that the guest has to enforce.
func GuestConfig(r Record, state string, img ImageConfig) launch.Config {
	c := launch.Config{
		Token:     r.Token,
		UID:       -1,
		GID:       -1,
		Home:      v1.DefaultHome,
		Dir:       v1.DefaultHome,
		State:     state,
		Env:       img.Env,
		OpenFiles: r.Spec.Limits.OpenFiles,
		CPUs:      int(math.Ceil(r.Spec.Limits.CPUs)),
	}
	for _, dir := range []string{img.Dir, r.Spec.Dir} {
		if dir != "" {
			c.Dir = path.Clean(dir)
		}
	}
	return c
}

// RefusePlain refuses what plain processes cannot have: a spec may set no more than its environment, its directory, its
// network and volumes. Limits equal to the defaults count as not set.
func RefusePlain(name string, spec sandbox.Spec, remedy string) error {
	l, d := spec.Limits, sandbox.Limits{}.WithDefaults().InMemory()
	for _, c := range []struct {
		set  bool
		what string
	}{
		{spec.Image != "", "use an image"},
		{spec.RootFS != "", "use a root file system"},
		{spec.ReadOnly, "make the root file system read-only"},
		{len(spec.Mounts) > 0, "mount directories"},
		{spec.Hostname != "", "set a hostname"},
		{spec.User != "", "run code as another user"},
		{spec.Sudo, "let code become root"},
		{spec.Options[name] != nil, "use options of a spec"},
		{l.Memory != d.Memory, "limit memory"},
		{l.CPUs != d.CPUs, "limit cpus"},
		{l.Processes != d.Processes, "limit processes"},
		{l.Disk != d.Disk, "limit disk"},
		{l.OpenFiles != d.OpenFiles, "limit open files"},
	} {
		if c.set {
			return backend.NotSupported(name, c.what, remedy)
		}
	}
	return nil
}

// WithoutSize returns a spec with the default memory and processors, for RefusePlain, where a machine has any size.
func WithoutSize(spec sandbox.Spec) sandbox.Spec {
	l, d := spec.Limits, sandbox.Limits{}.WithDefaults().InMemory()
	l.Disk = 0
	if l.InMemory().Disk == spec.Limits.Disk {
		spec.Limits.Disk = d.Disk // its default depends on the memory
	}
	spec.Limits.Memory, spec.Limits.CPUs = d.Memory, d.CPUs
	return spec
}

// SetUser sets the user that code runs as, and whether it may become root.
func SetUser(c *launch.Config, spec sandbox.Spec, u v1.User) {
	c.UID, c.GID, c.Root = u.UID, u.GID, spec.Sudo || u.IsRoot()
	if u.UID == 0 {
		c.Env = append([]string{"HOME=/root", "USER=root", "LOGNAME=root"}, c.Env...)
	}
}

// Tmpfs is a file system in memory. Its owner is root, unless a backend sets another one.
type Tmpfs struct {
	launch.Tmpfs
	Exec  bool // programs on it may be executed
	Guest bool // for the guest's own use
}

// TmpfsLayout returns the file systems in memory of a sandbox. The home directory has the whole disk limit, and the
// others share Limits.Scratch. state is the guest's own directory. work is a working directory that the root file
// system lacks; it gets half of the disk limit. Empty: none. Each file uses memory that its size does not include, so
// the number of files is limited, too.
func TmpfsLayout(l sandbox.Limits, state, work string) []Tmpfs {
	l = l.InMemory()
	scratch := func(path, mode string, share int64) Tmpfs {
		return Tmpfs{Tmpfs: launch.Tmpfs{Path: path, Mode: mode, Size: l.Scratch() / share, Inodes: l.Files() / share}}
	}
	home := Tmpfs{Tmpfs: launch.Tmpfs{Path: v1.DefaultHome, Mode: "0750", Size: l.Disk, Inodes: l.Files()}}
	tmp, varTmp := scratch("/tmp", "1777", 2), scratch("/var/tmp", "1777", 8)
	home.Exec, tmp.Exec, varTmp.Exec = true, true, true // compiled parts of packages are loaded from there
	own := scratch(state, "0755", 4)
	own.Guest = true
	all := []Tmpfs{home, tmp, varTmp, scratch("/dev/shm", "1777", 8), own}
	if work != "" {
		all[0].Size, all[0].Inodes = home.Size/2, home.Inodes/2
		second := all[0]
		second.Path = work
		all = append(all, second)
	}
	return all
}

// Below reports whether path is one of the directories or below one. All paths must be clean.
func Below(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// InMemory reports whether path is on one of the file systems in memory that every sandbox has and that code inside may
// write to.
func InMemory(path string) bool {
	return slices.ContainsFunc(TmpfsLayout(sandbox.Limits{}, "", ""), func(t Tmpfs) bool {
		return !t.Guest && Below(path, t.Path)
	})
}

// DecodeOptions decodes the options that a spec has for a backend into v. Unknown fields are an error with
// v1.CodeInvalidSpec. Without options, v is unchanged.
func DecodeOptions(spec sandbox.Spec, backend string, v any) error {
	text := spec.Options[backend]
	if len(text) == 0 {
		return nil
	}
	return DecodeStrict(text, "the options of the "+backend+" backend", v)
}

// DecodeStrict decodes one JSON value into v. Unknown fields, duplicate fields, fields in another case and anything
// after the value are an error with v1.CodeInvalidSpec. what names the value in the error.
func DecodeStrict(text []byte, what string, v any) error {
	if err := json.Unmarshal(text, v, json.RejectUnknownMembers(true)); err != nil {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "check spec", Message: "invalid " + what, Err: fieldError(err)}
	}
	return nil
}

// fieldError returns errors about fields in the wording that is also used for requests. Other errors are returned
// unchanged.
func fieldError(err error) error {
	if e, ok := errors.AsType[*json.SemanticError](err); ok && errors.Is(e.Err, json.ErrUnknownName) {
		return fmt.Errorf("unknown field %q", e.JSONPointer.LastToken())
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && errors.Is(e.Err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("duplicate field %q", e.JSONPointer.LastToken())
	}
	return err
}

// RefuseInProduction returns an error with v1.CodeConsentMissing if RECLUSE_ENV is production, where nothing may weaken
// the isolation. If what is empty, it only rejects an invalid RECLUSE_ENV.
func RefuseInProduction(op, what, remedy string) error {
	production, err := backend.Production()
	if err != nil || !production || what == "" {
		return err
	}
	return &v1.Error{
		Code:    v1.CodeConsentMissing,
		Op:      op,
		Message: "RECLUSE_ENV=production forbids " + what,
		Remedy:  remedy,
	}
}
