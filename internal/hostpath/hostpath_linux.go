package hostpath

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Open resolves path, judges it, and returns an O_PATH handle on the very directory or file that was judged, and its
// resolved name. What happens to the name afterwards does not change what /proc/self/fd/<handle> means. The caller closes
// the handle.
func (p *Policy) Open(path string) (*os.File, string, error) {
	if err := checkSyntax(path); err != nil {
		return nil, "", err
	}
	// The kernel resolves, so that there is no second opinion about what the path means.
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

func (p *Policy) judgeHandle(path string, f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", missing(path, err)
	}
	resolved, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil { // no /proc here
		if resolved, err = filepath.EvalSymlinks(path); err != nil {
			return "", missing(path, err)
		}
	}
	// A deleted directory, a pipe, or a place in another mount namespace has a name that leads nowhere or elsewhere.
	st, err := os.Lstat(resolved)
	if err != nil || !filepath.IsAbs(resolved) || filepath.Clean(resolved) != resolved || !os.SameFile(info, st) {
		return "", &RefusedError{
			Path: path, Resolved: resolved, Rule: RuleUnstable, Err: err,
			Reason: "it has no lasting name: it was moved or deleted meanwhile, or belongs to another mount namespace", Remedy: "try again with a plain path",
		}
	}
	if err := p.judge(path, resolved, info); err != nil {
		return "", err
	}
	return resolved, nil
}

type mountTable []*mountinfo.Info

// pseudo file systems show the host's kernel, wherever they are mounted.
var pseudo = map[string]bool{
	"proc": true, "sysfs": true, "devtmpfs": true, "devpts": true, "cgroup": true, "cgroup2": true, "debugfs": true,
	"tracefs": true, "securityfs": true, "configfs": true, "bpf": true, "efivarfs": true, "pstore": true, "mqueue": true,
	"binfmt_misc": true, "fusectl": true, "rpc_pipefs": true, "selinuxfs": true, "smackfs": true, "resctrl": true,
}

func (p *Policy) mounts() (mountTable, error) {
	file := p.mountinfo
	if file == "" {
		file = "/proc/self/mountinfo"
	}
	f, err := os.Open(file)
	if os.IsNotExist(err) {
		return nil, nil // without /proc, names and inodes have to do
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// locate says on which mount a path lies, and where on its file system; without one it is nil.
func (t mountTable) locate(path string) (best *mountinfo.Info, inner string) {
	for _, m := range t {
		// A later mount on the same point hides the earlier one.
		if (path == m.Mountpoint || within(path, m.Mountpoint)) && (best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m
		}
	}
	if best == nil {
		return nil, ""
	}
	return best, filepath.Join(best.Root, strings.TrimPrefix(path, best.Mountpoint))
}

// judge refuses what the mount table unmasks: bind mounts of refused places, of something below or above them, and pseudo
// file systems; for the path itself and for each mount below it.
func (t mountTable) judge(resolved string, trees []tree, refuse func(rule, format string, args ...any) error) error {
	m, inner := t.locate(resolved)
	if m == nil {
		return nil
	}
	type place struct {
		on           *mountinfo.Info
		inner, where string
	}
	candidates := []place{{m, inner, ""}}
	if pseudo[m.FSType] {
		return refuse(RulePseudo, "it lies on a %s file system, which shows the host's kernel", m.FSType)
	}
	for _, m := range t {
		if !within(m.Mountpoint, resolved) {
			continue
		}
		if pseudo[m.FSType] {
			return refuse(RulePseudo, "a %s file system is mounted below it, at %s", m.FSType, m.Mountpoint)
		}
		candidates = append(candidates, place{m, m.Root, m.Mountpoint})
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
			if c.where == "" {
				return refuse(tr.rule, "%s", explain(rel, tr, " by way of a bind mount"))
			}
			return refuse(tr.rule, "the mount below it at %s shows %s or a part of it, which holds %s", c.where, tr.rule, tr.reason)
		}
	}
	return nil
}
