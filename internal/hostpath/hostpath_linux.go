package hostpath

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Open resolves path and judges it. It returns an O_PATH handle of the directory or file that was judged, and its
// resolved name. Later changes of the name do not change what /proc/self/fd/<handle> refers to. The caller must close
// the handle.
func (p *Policy) Open(path string) (*os.File, string, error) {
	if err := checkSyntax(path); err != nil {
		return nil, "", err
	}
	// The kernel resolves the path, so that this program cannot resolve it differently.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", missing(path, &os.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(fd), path)
	resolved, err := p.judgeHandle(path, f)
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, resolved, nil
}

// Judge resolves path and judges it. It returns the resolved path, or a *[RefusedError].
func (p *Policy) Judge(path string) (string, error) {
	f, resolved, err := p.Open(path)
	if err != nil {
		return "", err
	}
	return resolved, f.Close()
}

// judgeHandle judges the file behind a handle and returns its resolved name.
func (p *Policy) judgeHandle(path string, f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", missing(path, err)
	}
	resolved, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil { // there is no /proc
		if resolved, err = filepath.EvalSymlinks(path); err != nil {
			return "", missing(path, err)
		}
	}
	// The name of a deleted directory, of a pipe or of a file in another mount namespace does not lead back to it.
	st, err := os.Lstat(resolved)
	if err != nil || !filepath.IsAbs(resolved) || filepath.Clean(resolved) != resolved || !os.SameFile(info, st) {
		return "", &RefusedError{
			Path:     path,
			Resolved: resolved,
			Rule:     RuleUnstable,
			Err:      err,
			Reason:   "it was moved or deleted meanwhile, or belongs to another mount namespace",
			Remedy:   "retry, with a path without symlinks",
		}
	}
	if err := p.judge(path, resolved, info); err != nil {
		return "", err
	}
	return resolved, nil
}

// mountTable is the mount table of this process.
type mountTable []*mountinfo.Info

// pseudo are the types of file systems that show the host's kernel. They are refused wherever they are mounted.
var pseudo = map[string]bool{
	"proc":        true,
	"sysfs":       true,
	"devtmpfs":    true,
	"devpts":      true,
	"cgroup":      true,
	"cgroup2":     true,
	"debugfs":     true,
	"tracefs":     true,
	"securityfs":  true,
	"configfs":    true,
	"bpf":         true,
	"efivarfs":    true,
	"pstore":      true,
	"mqueue":      true,
	"binfmt_misc": true,
	"fusectl":     true,
	"rpc_pipefs":  true,
	"selinuxfs":   true,
	"smackfs":     true,
	"resctrl":     true,
}

// mounts reads the mount table. It is empty if there is no /proc.
func (p *Policy) mounts() (mountTable, error) {
	file := p.mountinfo
	if file == "" {
		file = "/proc/self/mountinfo"
	}
	f, err := os.Open(file)
	if os.IsNotExist(err) {
		return nil, nil // without /proc, only names and inodes are compared
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// locate returns the mount of a path, and the location of the path on the file system of the mount. best is nil if no
// mount contains the path.
func (t mountTable) locate(path string) (best *mountinfo.Info, inner string) {
	for _, m := range t {
		// A later mount on the same point hides the earlier one.
		if (path == m.Mountpoint || within(path, m.Mountpoint)) &&
			(best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m
		}
	}
	if best == nil {
		return nil, ""
	}
	return best, filepath.Join(best.Root, strings.TrimPrefix(path, best.Mountpoint))
}

// judge refuses a path by means of the mount table. It refuses pseudo file systems, and bind mounts of a refused tree,
// of a part of one, or of a directory above one. It checks the path itself and each mount below it.
func (t mountTable) judge(resolved string, trees []tree, refuse func(rule, format string, args ...any) error) error {
	m, inner := t.locate(resolved)
	if m == nil {
		return nil
	}
	type location struct {
		on         *mountinfo.Info
		inner      string // path on the file system
		mountpoint string // of a mount below the path; empty: the path itself
	}
	candidates := []location{{m, inner, ""}}
	if pseudo[m.FSType] {
		return refuse(RulePseudo, "it is on a %s file system, which shows the host's kernel", m.FSType)
	}
	for _, m := range t {
		if !within(m.Mountpoint, resolved) {
			continue
		}
		if pseudo[m.FSType] {
			return refuse(RulePseudo, "a %s file system is mounted below it, at %s", m.FSType, m.Mountpoint)
		}
		candidates = append(candidates, location{m, m.Root, m.Mountpoint})
	}
	for _, tr := range trees {
		tm, tinner := t.locate(tr.path)
		if tm == nil {
			continue
		}
		for _, c := range candidates {
			if c.on.Major != tm.Major || c.on.Minor != tm.Minor {
				continue
			}
			rel := tr.relate(c.inner, tinner)
			if rel == apart {
				continue
			}
			if c.mountpoint == "" {
				return refuse(tr.rule, "%s", explain(rel, tr, " through a bind mount"))
			}
			return refuse(tr.rule, "the mount below it at %s shows %s or a part of it, which holds %s",
				c.mountpoint, tr.rule, tr.reason)
		}
	}
	return nil
}
