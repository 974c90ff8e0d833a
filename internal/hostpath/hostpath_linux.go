package hostpath

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// mount is one line of /proc/self/mountinfo.
type mount struct {
	dev    string // major:minor, of the file system
	root   string // what of the file system is mounted
	point  string // where
	fstype string
}

type mountTable []mount

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
	raw, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil // without /proc, names and inodes have to do
	}
	if err != nil {
		return nil, err
	}
	return parseMounts(string(raw))
}

func parseMounts(raw string) (mountTable, error) {
	var table mountTable
	for line := range strings.Lines(raw) {
		// 36 35 98:0 /root /point options [optional fields] - type source options
		head, tail, ok := strings.Cut(strings.TrimRight(line, "\n"), " - ")
		fields := strings.Fields(head)
		if !ok || len(fields) < 6 {
			return nil, fmt.Errorf("unexpected line %q", line)
		}
		fstype, _, _ := strings.Cut(tail, " ")
		table = append(table, mount{dev: fields[2], root: unescape(fields[3]), point: unescape(fields[4]), fstype: fstype})
	}
	return table, nil
}

// unescape undoes the kernel's octal escapes of white space and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// locate says on which file system a path lies, and where on it.
func (t mountTable) locate(path string) (m mount, inner string, ok bool) {
	best := -1
	for i, m := range t {
		if path != m.point && !within(path, m.point) {
			continue
		}
		if best < 0 || len(m.point) >= len(t[best].point) { // a later mount on the same point hides the earlier one
			best = i
		}
	}
	if best < 0 {
		return mount{}, "", false
	}
	m = t[best]
	return m, filepath.Join(m.root, strings.TrimPrefix(path, m.point)), true
}

// judge refuses what the mount table unmasks: bind mounts of refused places, of something below or above them, and pseudo
// file systems; for the path itself and for each mount below it.
func (t mountTable) judge(resolved string, trees []tree, refuse func(rule, format string, args ...any) error) error {
	m, inner, ok := t.locate(resolved)
	if !ok {
		return nil
	}
	type place struct{ dev, inner, where string }
	candidates := []place{{m.dev, inner, ""}}
	if pseudo[m.fstype] {
		return refuse(RulePseudo, "it lies on a %s file system, which shows the host's kernel", m.fstype)
	}
	for _, m := range t {
		if !within(m.point, resolved) {
			continue
		}
		if pseudo[m.fstype] {
			return refuse(RulePseudo, "a %s file system is mounted below it, at %s", m.fstype, m.point)
		}
		candidates = append(candidates, place{m.dev, m.root, m.point})
	}
	for _, tr := range trees {
		tm, tinner, ok := t.locate(tr.path)
		if !ok {
			continue
		}
		for _, c := range candidates {
			if c.dev != tm.dev {
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
