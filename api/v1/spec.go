package v1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
)

// Spec describes a sandbox to create. The zero Spec is the default sandbox: the host's /usr read-only, no network, the
// default limits.
//
// It is the only declaration of these settings: the flags of the command line, the configuration of limits, JSON and
// the schemas are derived from its fields. Tags: flag is the name on the command line, short its letter, value the name
// of the value in help texts, doc the description. A setting with scope command can also differ for each command of a
// sandbox; backend names the only backend that supports it. To add a setting, add a field here and its consumer.
type Spec struct {
	// Image is an OCI image (registry reference, oci:DIR, tar:FILE). If Image and RootFS are empty, the default root
	// file system is used.
	Image string `json:"image,omitempty" flag:"image" value:"image" doc:"root file system from an OCI image: a reference such as python:3.12, oci:DIR, or tar:FILE of docker save"`
	// RootFS is a directory of the host to use as the root. It is never changed: the sandbox writes to a layer of its
	// own.
	RootFS string `json:"rootfs,omitempty" flag:"rootfs" value:"directory" doc:"root file system from a directory of the host, which is never changed"`
	// ReadOnly makes the root file system read-only. The home directory and the directories for temporary files are
	// then in memory.
	ReadOnly bool   `json:"read_only,omitempty" flag:"read-only" doc:"read-only root file system, with the home directory in memory; so with docker unless it can limit bytes on disk"`
	Limits   Limits `json:"limits,omitzero" doc:"limits; what is left out takes its default"`
	// Network is what code may connect to; nothing by default.
	Network Network `json:"network,omitzero" doc:"network policy: what code may connect to; nothing by default"`
	// Mounts are host directories to show inside; none by default.
	Mounts []Mount `json:"mounts,omitempty" flag:"mount" value:"host:path[:rw]" doc:"directory of the host to show inside, read-only without :rw"`
	// Volumes are volumes to show inside; none by default. Files in a volume outlive the sandbox, do not count for its
	// limits, and are not part of snapshots.
	Volumes []Volume                   `json:"volumes,omitempty" flag:"volume" value:"name:path[:rw]" doc:"volume (recluse volume create) to show inside, read-only unless rw"`
	Options map[string]json.RawMessage `json:"options,omitempty" doc:"settings of a single backend, keyed by its name; options of another backend are refused"`
	// Env is the environment of every process inside.
	Env map[string]string `json:"env,omitempty" flag:"env" short:"e" scope:"command" doc:"environment variables"`
	// Dir is where commands start. Empty: the home directory, or the working directory of the image. A missing
	// directory is created; where the root is read-only it is a file system in memory that shares Limits.Disk with the
	// home directory, half each.
	Dir string `json:"dir,omitempty" flag:"dir" value:"directory" scope:"command" doc:"working directory inside, created if it is missing (default the home directory)"`
	// Shell is the program that runs scripts (Command.Shell) and that recluse shell opens: a path, or a name on PATH.
	// If it is missing, the sandbox is not created: no_shell. Empty: bash, or sh if there is no bash.
	Shell string `json:"shell,omitempty" flag:"shell" value:"program" doc:"shell of the sandbox, a path or a name (default bash, else sh)"`
	// User is the user that processes run as: a uid, uid:gid, or a user name of the image; see ParseUser. Empty:
	// DefaultUID.
	User string `json:"user,omitempty" flag:"user" value:"user" doc:"user that code runs as: UID, UID:GID or root; with docker also a user name of the image (default 1000)"`
	// Sudo lets code become root inside, with sudo or in commands whose user is root. If User is root, it always may.
	// Only backends with a kernel of their own allow it.
	Sudo bool `json:"sudo,omitempty" flag:"sudo" doc:"let code become root inside, with sudo and in commands of the user root; always so if the user is root"`
	// Hostname inside; empty: the sandbox's id.
	Hostname string            `json:"hostname,omitempty" flag:"hostname" value:"name" doc:"host name inside (default the sandbox's id)"`
	Labels   map[string]string `json:"labels,omitempty" doc:"labels of the sandbox; those of a session are set beside its spec"`
	Persist  bool              `json:"persist,omitempty" doc:"keep the sandbox when the program that created it ends without closing it"`
	// Cold makes the backend boot instead of restoring its template.
	Cold bool `json:"cold,omitempty" flag:"cold" doc:"boot the sandbox from scratch; slower than the default, which restores a booted one"`
}

// Limits bounds what a sandbox may use. Zero means the default. Exceeding a limit costs the process that exceeds it,
// not the sandbox.
type Limits struct {
	// Memory is in bytes.
	Memory int64 `json:"memory,omitempty" flag:"memory" doc:"maximum memory of the sandbox"`
	// CPUs is a share of one core's time, such as 0.5.
	CPUs float64 `json:"cpus,omitempty" flag:"cpus" value:"cores" min:"0" doc:"maximum number of processor cores that it can use; 0.5 is half of one"`
	// Processes includes threads.
	Processes int `json:"processes,omitempty" flag:"processes" min:"0" doc:"maximum number of processes and threads"`
	// Disk is what can be written to the root file system, in bytes. Where files are kept in memory, it is what can be
	// written to the home directory, and counts as memory; the other writable directories have a smaller space of their
	// own: see Scratch. Its default depends on that: see OnDisk and InMemory.
	Disk int64 `json:"disk,omitempty" flag:"disk" doc:"maximum size of all written files (default 10 GiB on disk; with a read-only root half of the memory, or less if the memory is below 96 MiB)"`
	// OpenFiles is the limit of each process.
	OpenFiles int `json:"open_files,omitempty" flag:"open-files" min:"0" doc:"maximum number of open files of one process"`
}

// Mount shows a directory of the host inside the sandbox.
type Mount struct {
	Host     string `json:"host" doc:"absolute path on the host"`
	Path     string `json:"path" doc:"absolute path inside"`
	Writable bool   `json:"writable,omitempty" doc:"allow writes; otherwise read-only"`
}

// String formats the mount for people.
func (m Mount) String() string { return m.Host + " on " + m.Path }

// Over returns l, with zero fields taken from base.
func (l Limits) Over(base Limits) Limits {
	return Limits{
		Memory:    cmp.Or(l.Memory, base.Memory),
		CPUs:      cmp.Or(l.CPUs, base.CPUs),
		Processes: cmp.Or(l.Processes, base.Processes),
		Disk:      cmp.Or(l.Disk, base.Disk),
		OpenFiles: cmp.Or(l.OpenFiles, base.OpenFiles),
	}
}

// WithDefaults returns l, with zero fields set to their defaults, except Disk.
func (l Limits) WithDefaults() Limits {
	return l.Over(Limits{
		Memory:    DefaultMemory,
		CPUs:      DefaultCPUs,
		Processes: DefaultProcesses,
		OpenFiles: DefaultOpenFiles,
	})
}

// OnDisk returns l with the default of Disk for a sandbox whose files are on disk.
func (l Limits) OnDisk() Limits {
	l.Disk = cmp.Or(l.Disk, DefaultDisk)
	return l
}

// InMemory returns l with the default of Disk for a sandbox whose files are in memory.
//
// Preconditions: the other defaults are filled in.
func (l Limits) InMemory() Limits {
	l.Disk = cmp.Or(l.Disk, max(1<<20, min(l.Memory/2, l.Memory-MemoryReserve-MinScratch)))
	return l
}

// Storage returns the limits with the default of Disk. Where it is unknown yet whether the backend can keep files on
// disk, onDisk is true: in quotas, the default on disk counts.
//
// Preconditions: the other defaults are filled in.
func (s Spec) Storage(onDisk bool) Limits {
	if onDisk && !s.ReadOnly {
		return s.Limits.OnDisk()
	}
	return s.Limits.InMemory()
}

// Scratch returns the number of bytes that /tmp, /var/tmp, /dev/shm and the guest's own files may use together, beside
// Disk.
//
// Preconditions: defaults are filled in.
func (l Limits) Scratch() int64 {
	return max(MinScratch, min(l.Disk/2, l.Memory-MemoryReserve-l.Disk))
}

// fileCost is the memory that a file costs beside its content. An eighth of all memory may be used for that.
const fileCost = 2 << 10

// Files returns how many files and directories the home directory can hold. All other directories together can hold as
// many. On disk they share the sum.
//
// Preconditions: defaults are filled in.
func (l Limits) Files() int64 { return max(1024, l.Memory/8/fileCost) / 2 }

func badLimits(format string, args ...any) error {
	return &Error{Code: CodeInvalidSpec, Op: "check limits", Message: fmt.Sprintf(format, args...)}
}

// Check returns an error for limits with which no sandbox would boot.
//
// Preconditions: defaults are filled in, except Disk.
func (l Limits) Check() error {
	bad := badLimits
	switch {
	case l.Memory < MinMemory:
		return bad("memory of %s is below the minimum of %s", SizeText(l.Memory), SizeText(MinMemory))
	case math.IsNaN(l.CPUs) || math.IsInf(l.CPUs, 0) || l.CPUs < MinCPUs:
		return bad("%v cpus are below the minimum of %v", l.CPUs, MinCPUs)
	case l.Processes < MinProcesses:
		return bad("%d processes are below the minimum of %d", l.Processes, MinProcesses)
	case l.OpenFiles < MinOpenFiles:
		return bad("%d open files are below the minimum of %d", l.OpenFiles, MinOpenFiles)
	case l.Disk != 0 && l.Disk < 1<<20:
		return bad("disk of %s is below the minimum of 1 MiB", SizeText(l.Disk))
	}
	return nil
}

// CheckInMemory returns an error if the memory cannot hold the files.
//
// Preconditions: defaults are filled in.
func (l Limits) CheckInMemory() error {
	if l.Disk > l.Memory-MemoryReserve-MinScratch {
		return badLimits("disk of %s leaves less than %s of the memory of %s, which holds files and processes",
			SizeText(l.Disk), SizeText(MemoryReserve+MinScratch), SizeText(l.Memory))
	}
	return nil
}

// WithDefaults returns the spec with its zero fields filled in. The result shares no memory with the receiver.
func (s Spec) WithDefaults() Spec {
	s.Limits = s.Limits.WithDefaults()
	s.Network.Rules = slices.Clone(s.Network.Rules)
	s.Mounts = slices.Clone(s.Mounts)
	s.Volumes = slices.Clone(s.Volumes)
	s.Options = maps.Clone(s.Options)
	for name, o := range s.Options {
		s.Options[name] = slices.Clone(o)
	}
	s.Env = maps.Clone(s.Env)
	s.Labels = maps.Clone(s.Labels)
	return s
}

// Check returns an error for a spec that no backend could use. Whether the host path of a mount is permitted is checked
// by the backend, which resolves the path.
//
// Preconditions: defaults are filled in.
func (s Spec) Check() error {
	bad := func(format string, args ...any) error {
		return &Error{Code: CodeInvalidSpec, Op: "check spec", Message: fmt.Sprintf(format, args...)}
	}
	if s.Image != "" && s.RootFS != "" {
		return bad("image and rootfs exclude each other")
	}
	if strings.ContainsRune(s.RootFS, 0) || strings.ContainsRune(s.Image, 0) {
		return bad("NUL in image or rootfs")
	}
	if err := CheckEnv("check spec", s.Env); err != nil {
		return err
	}
	if s.Dir != "" && (!path.IsAbs(s.Dir) || strings.ContainsRune(s.Dir, 0)) {
		return bad("working directory %q is not absolute", s.Dir)
	}
	if strings.ContainsRune(s.Shell, 0) || strings.ContainsRune(s.Shell, '/') && !path.IsAbs(s.Shell) {
		return bad("shell %q is neither an absolute path nor a name", s.Shell)
	}
	if _, err := ParseUser(s.User); err != nil {
		return err
	}
	if len(s.Hostname) > 63 || strings.ContainsAny(s.Hostname, "/\x00 \n\t") {
		return bad("invalid hostname %q", s.Hostname)
	}
	for name, o := range s.Options {
		if !json.Valid(o) {
			return bad("the options of the %s backend are not valid JSON", name)
		}
	}
	var paths []string
	for _, m := range s.Mounts {
		paths = append(paths, m.Path)
	}
	for _, v := range s.Volumes {
		if err := CheckVolumeRef(v.Name); err != nil {
			return bad("invalid volume name %q; use a mount for a directory of the host", v.Name)
		}
		paths = append(paths, v.Path)
	}
	if why := badPath(paths); why != "" {
		return bad("%s", why)
	}
	return s.Limits.Check()
}

// badPath returns why mounts cannot be at these paths, or "" if they can.
func badPath(paths []string) string {
	seen := map[string]bool{}
	for _, at := range paths {
		p := path.Clean(at)
		switch {
		case !path.IsAbs(at) || strings.ContainsRune(at, 0):
			return fmt.Sprintf("mount path %q is not absolute", at)
		case p == "/" || reserved(p):
			return fmt.Sprintf("mount path %q would hide a directory of the sandbox itself", at)
		case seen[p]:
			return fmt.Sprintf("two mounts at %q", p)
		}
		seen[p] = true
	}
	return ""
}

// ValidVariable reports whether name and value can be an environment variable.
func ValidVariable(name, value string) bool {
	return name != "" && !strings.ContainsAny(name, "=\x00") && !strings.ContainsRune(value, 0)
}

// CheckEnv returns an error for an environment that no sandbox could have.
func CheckEnv(op string, env map[string]string) error {
	n := 0
	for k, v := range env {
		if !ValidVariable(k, v) {
			return &Error{Code: CodeInvalidSpec, Op: op, Message: fmt.Sprintf("invalid environment variable %q", k)}
		}
		n += len(k) + len(v) + 2 // the equals sign and the final NUL
	}
	if n > MaxEnv {
		return &Error{
			Code:    CodeInvalidSpec,
			Op:      op,
			Message: fmt.Sprintf("environment of %d bytes is above the maximum of %d KiB", n, MaxEnv>>10),
			Remedy:  "write large values to files",
		}
	}
	return nil
}

// reserved reports whether p is, or lies below, a path that the sandbox itself needs.
func reserved(p string) bool {
	for _, r := range []string{
		"/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/run", "/tmp", "/var/tmp",
		"/.recluse", DefaultHome,
	} {
		if p == r || strings.HasPrefix(p, r+"/") {
			return true
		}
	}
	return p == "/home" || p == "/var"
}
