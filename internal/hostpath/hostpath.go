// Package hostpath decides which paths of the host may be mounted into a sandbox.
//
// A sandbox is only as strong as the mounts allow: /var/run/docker.sock alone gives root on the host. So a path is
// first resolved completely (symlinks, "//", ".", "..", trailing slashes). Then it is compared with a list of refused
// trees: the system's own directories, the state and sockets of container engines, and the key folders of every home
// directory. Key files such as .netrc and id_rsa are refused in any directory. A path is refused if it is one of these
// trees, is below one, or contains one. The last rule also refuses "/", "/var/lib", "/home" and a home directory
// itself.
//
// Comparing names is not enough, because a directory can have several names. A bind mount of /etc at /mnt/x has another
// name, but the same device and inode. A bind mount of /etc/ssh does not even have the inode of a listed directory.
// Paths are therefore compared in three ways: by resolved name, by device and inode of the path and of its parents, and
// on Linux by their location on the file system according to the mount table. Mounts below the path are judged like the
// path itself.
//
// Between the judgement and the mount, an attacker may replace a directory by a symlink. On Linux, [Policy.Open]
// therefore judges an open O_PATH handle and returns it. Mount /proc/self/fd/<n> (or pass the descriptor to the
// engine), not the name.
//
// This package cannot detect hard links to a secret file inside a harmless directory, and secrets in directories that
// are not on the list. Callers add more directories with [Policy.Refuse].
package hostpath

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// maxPath is Linux's PATH_MAX. A longer path cannot be mounted.
const maxPath = 4096

// The rules that are not a path. [RefusedError.Rule] is one of these, or the refused path itself.
const (
	RuleSyntax   = "syntax"   // empty, relative, or with characters that mount options cannot contain
	RuleMissing  = "missing"  // does not exist, or cannot be read
	RuleType     = "type"     // a socket, device or pipe
	RulePseudo   = "pseudo"   // on proc, sysfs or a similar file system, wherever that is mounted
	RuleUnstable = "unstable" // the path changed while it was judged
)

// RefusedError reports which path was refused, by which rule and why.
type RefusedError struct {
	Path     string // as requested
	Resolved string // the resolved path; empty if it was not resolved
	Rule     string // the refused path of the policy, or one of the Rule constants
	Reason   string // lower-case sentence without a full stop
	Remedy   string // what to do instead; may be empty
	Err      error  // the cause or nil; Reason describes it, and errors.Is(err, fs.ErrNotExist) works
}

// Error returns the reason. It contains neither the path nor the remedy, which the caller adds.
func (e *RefusedError) Error() string {
	if e.Resolved != "" && e.Resolved != e.Path && !strings.Contains(e.Reason, e.Resolved) {
		return fmt.Sprintf("%s; it resolves to %q", e.Reason, e.Resolved)
	}
	return e.Reason
}

// Unwrap returns the cause, if any.
func (e *RefusedError) Unwrap() error { return e.Err }

// MountError returns the error of a backend that does not mount path because of err.
func MountError(path string, err error) error {
	out := &v1.Error{
		Code:    v1.CodeMountRefused,
		Op:      "mount " + path,
		Message: "mounting this path is not allowed",
		Err:     err,
		Remedy:  "mount a directory that contains only what the code needs",
	}
	e, ok := errors.AsType[*RefusedError](err)
	if !ok && errors.Is(err, fs.ErrNotExist) { // removed after it was judged
		e, ok = missing(path, err), true
	}
	if ok {
		out.Remedy = cmp.Or(e.Remedy, out.Remedy)
		if e.Rule == RuleMissing { // the path was not judged, and the reason is the whole message
			out.Message, out.Err = e.Reason, nil
		}
	}
	return out
}

// Resolve judges the host paths of mounts. It returns the mounts with resolved host paths, or the error of the first
// path that is refused.
func (p *Policy) Resolve(mounts []sandbox.Mount) ([]sandbox.Mount, error) {
	mounts = slices.Clone(mounts)
	for i, m := range mounts {
		resolved, err := p.Judge(m.Host)
		if err != nil {
			return nil, MountError(m.Host, err)
		}
		mounts[i].Host = resolved
	}
	return mounts, nil
}

// Rule is a tree that must not be mounted into a sandbox.
type Rule struct {
	Path   string // absolute
	Reason string // completes "which holds …"
}

// Policy is a set of refused paths. The zero Policy only refuses relative paths, sockets, pseudo file systems, "/" and
// the like. [Default] returns the policy for this host.
type Policy struct {
	// Trees are refused, together with all paths below and above them.
	Trees []Rule
	// Homes are home directories. Their key folders are refused, and therefore also the home directories themselves.
	Homes []string
	// HomeBases are directories, such as /home, in which every entry counts as a home directory, even if its user is
	// not in /etc/passwd.
	HomeBases []string

	// Allow are paths that an operator allows although they are in a refused tree, such as a project below /root.
	// Refused paths below an allowed path, such as key folders and key files, stay refused. Paths that were added with
	// Refuse also stay refused.
	Allow []string

	firm      []string // paths of Trees that Allow does not affect
	mountinfo string   // set by tests; empty: the kernel's mount table
}

// Refuse adds a path that is refused whatever Allow contains, such as the state directory of the caller. The reason
// completes the words "which holds …".
func (p *Policy) Refuse(path, reason string) {
	p.Trees, p.firm = append(p.Trees, Rule{Path: path, Reason: reason}), append(p.firm, path)
}

// checkSyntax refuses names that could be misread before they reach the mount call. A colon or comma ends a field in
// mount options, and a newline ends a line in mount tables. JSON encoders silently replace invalid UTF-8, which would
// mount a different path.
func checkSyntax(path string) error {
	refuse := func(remedy, format string, args ...any) error {
		return &RefusedError{Path: path, Rule: RuleSyntax, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	if path == "" {
		return refuse(remedyAbsolute, "it is empty")
	}
	if len(path) >= maxPath {
		return &RefusedError{
			Path:   path[:32] + "…",
			Rule:   RuleSyntax,
			Reason: fmt.Sprintf("it is %d bytes long, the limit is %d", len(path), maxPath-1),
		}
	}
	if !utf8.ValidString(path) {
		return refuse(remedyRename, "it is not valid UTF-8")
	}
	for _, r := range path[len(filepath.VolumeName(path)):] {
		if r == ':' || r == ',' {
			return refuse(remedyRename, "it contains %q, which is not allowed in mount options", r)
		}
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return refuse(remedyRename, "it contains the control character %q", r)
		}
	}
	if !filepath.IsAbs(path) {
		return refuse(remedyAbsolute, "it is relative, and its meaning depends on the working directory")
	}
	return nil
}

// missing converts an error of the file system to a RefusedError.
func missing(path string, err error) *RefusedError {
	e := &RefusedError{Path: path, Rule: RuleMissing, Reason: "it cannot be resolved: " + err.Error(), Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Reason, e.Remedy = "it does not exist", "create it first"
	case errors.Is(err, fs.ErrPermission):
		e.Reason, e.Remedy = "permission denied", "allow this user to read it, or use another directory"
	}
	return e
}

// judge returns nil if a resolved path may be mounted, or a *RefusedError.
//
// Preconditions: resolved is absolute, clean and free of symlinks; info is the FileInfo of resolved.
func (p *Policy) judge(path, resolved string, info fs.FileInfo) error {
	if err := checkSyntax(resolved); err != nil {
		var re *RefusedError
		errors.As(err, &re)
		re.Path, re.Resolved = path, resolved
		return err
	}
	refuse := func(rule, format string, args ...any) error {
		return &RefusedError{
			Path:     path,
			Resolved: resolved,
			Rule:     rule,
			Reason:   fmt.Sprintf(format, args...),
			Remedy:   remedyShare,
		}
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSocket != 0:
		return refuse(RuleType, "it is a socket, through which the sandbox could reach a service of the host")
	case mode&(fs.ModeDevice|fs.ModeCharDevice) != 0:
		return refuse(RuleType, "it is a device")
	case mode&fs.ModeNamedPipe != 0:
		return refuse(RuleType, "it is a named pipe")
	case !mode.IsDir() && !mode.IsRegular():
		return refuse(RuleType, "it is neither a directory nor a regular file")
	}
	if filepath.Dir(resolved) == resolved {
		return refuse(resolved, "it is the root of the whole file system")
	}
	for name := range strings.SplitSeq(resolved, string(filepath.Separator)) {
		if keyNames[name] {
			return refuse(name, "it is a %s folder or inside one, which holds credentials", name)
		}
	}
	if isKeyFile(resolved, info.Mode()) {
		return refuse(filepath.Base(resolved), "it holds credentials")
	}
	if info.IsDir() {
		for _, name := range socketNames {
			if st, err := os.Lstat(filepath.Join(resolved, name)); err == nil && st.Mode()&fs.ModeSocket != 0 {
				return refuse(name, "it contains the socket %s of a container engine", name)
			}
		}
	}

	if name := p.keysBelow(resolved); name != "" {
		return &RefusedError{
			Path:     path,
			Resolved: resolved,
			Rule:     name,
			Remedy:   "move the credentials out of it, or mount a directory without them",
			Reason:   fmt.Sprintf("it contains %s, which holds credentials", name),
		}
	}
	trees := p.expand(resolved)
	for _, t := range trees {
		if rel := t.relate(resolved, t.path); rel != apart {
			return refuse(t.rule, "%s", explain(rel, t, ""))
		}
	}
	if rel, t := sameFile(resolved, info, trees); rel != apart {
		return refuse(t.rule, "%s", explain(rel, t, " under another name"))
	}
	table, err := p.mounts()
	if err != nil {
		return refuse(RuleUnstable, "the mount table cannot be read: %v", err)
	}
	return table.judge(resolved, trees, refuse)
}

// The remedies of several refusals.
const (
	remedyShare    = "use a directory made for sharing, such as a project folder"
	remedyAbsolute = "use an absolute path"
	remedyRename   = "rename it, or use its parent directory"
)

// tree is a refused path.
type tree struct {
	path   string // the resolved path, as far as it exists
	rule   string // the path as in the policy
	reason string
	node   bool // paths below are not refused: a home directory has harmless folders
	firm   bool // Policy.Allow does not affect it
}

// relation is the position of a candidate relative to a refused tree.
type relation int

const (
	apart relation = iota // neither contains the other
	same
	below // the candidate is inside the tree
	above // the candidate contains the tree
)

// explain returns the reason of a refusal. how is an addition to the name of the tree.
func explain(rel relation, t tree, how string) string {
	switch rel {
	case same:
		return fmt.Sprintf("it is %s%s, which holds %s", t.rule, how, t.reason)
	case below:
		return fmt.Sprintf("it is below %s%s, which holds %s", t.rule, how, t.reason)
	default:
		return fmt.Sprintf("it contains %s%s, which holds %s", t.rule, how, t.reason)
	}
}

// relate compares two clean absolute paths by name.
func relate(candidate, refused string) relation {
	switch {
	case candidate == refused:
		return same
	case within(candidate, refused):
		return below
	case within(refused, candidate):
		return above
	}
	return apart
}

// relate compares a candidate with a name of the tree. If only the node is refused, a candidate below it is apart.
func (t tree) relate(candidate, name string) relation {
	rel := relate(candidate, name)
	if t.node && rel == below {
		return apart
	}
	return rel
}

// within reports whether path is strictly below dir.
func within(path, dir string) bool {
	if !strings.HasSuffix(dir, string(filepath.Separator)) {
		dir += string(filepath.Separator)
	}
	return len(path) > len(dir) && strings.HasPrefix(path, dir)
}

// expand returns every refused tree that may concern candidate, by the name in the policy and by its resolved name. On
// most hosts /var/run is /run, and a key folder may be a symlink to another disk.
func (p *Policy) expand(candidate string) []tree {
	var trees []tree
	seen := map[string]bool{}
	add := func(path string, t tree) {
		if seen[path] || !filepath.IsAbs(path) || filepath.Dir(path) == path {
			return // a tree "/" would refuse everything; judge already refuses "/" itself
		}
		seen[path] = true
		t.path = path
		trees = append(trees, t)
	}
	for _, r := range p.Trees {
		t := tree{rule: r.Path, reason: r.Reason, firm: slices.Contains(p.firm, r.Path)}
		add(filepath.Clean(r.Path), t)
		add(resolveExisting(r.Path), t)
	}
	homes := slices.Clone(p.Homes)
	for _, base := range p.HomeBases {
		real := resolveExisting(base)
		t := tree{rule: base, reason: "home directories", node: true}
		add(filepath.Clean(base), t)
		add(real, t)
		if within(candidate, real) {
			first, _, _ := strings.Cut(candidate[len(real)+1:], string(filepath.Separator))
			homes = append(homes, filepath.Join(real, first))
		}
		// All entries are listed, because candidate may be another name of one of them. An error is ignored: this user
		// cannot mount directories that it cannot list.
		entries, _ := os.ReadDir(real)
		for _, e := range entries {
			homes = append(homes, filepath.Join(real, e.Name()))
		}
	}
	slices.Sort(homes)
	for _, home := range slices.Compact(homes) {
		if !filepath.IsAbs(home) {
			continue
		}
		real := resolveExisting(home)
		_, err := os.Lstat(real)
		exists := err == nil
		for _, key := range keyFolders {
			t := tree{rule: filepath.Join(home, key), reason: "credentials"}
			add(t.rule, t)
			path := filepath.Join(real, key)
			add(path, t)
			if !exists {
				continue
			}
			if _, err := os.Lstat(path); err == nil {
				add(resolveExisting(path), t)
			}
		}
		t := tree{rule: home, reason: "a home directory's keys", node: true}
		add(filepath.Clean(home), t)
		add(real, t)
	}
	return slices.DeleteFunc(trees, func(t tree) bool { return !t.firm && p.allowed(candidate, t.path) })
}

// allowed reports whether candidate is in an allowed path that is itself in the refused tree.
func (p *Policy) allowed(candidate, refused string) bool {
	for _, a := range p.Allow {
		if !filepath.IsAbs(a) {
			continue
		}
		a = resolveExisting(a)
		if (candidate == a || within(candidate, a)) && (a == refused || within(a, refused)) {
			return true
		}
	}
	return false
}

// The bounds of the search of keysBelow. A whole disk cannot be searched before each start.
const (
	keyDepth   = 4
	keyEntries = 20_000
)

// keysBelow returns a key folder or key file below an allowed candidate, or "". It searches keyDepth levels, breadth
// first, and at most keyEntries entries.
func (p *Policy) keysBelow(candidate string) string {
	if !slices.ContainsFunc(p.Allow, func(a string) bool {
		a = resolveExisting(a)
		return candidate == a || within(candidate, a)
	}) {
		return ""
	}
	level, seen := []string{candidate}, 0
	for range keyDepth {
		var next []string
		for _, dir := range level {
			entries, _ := os.ReadDir(dir) // an error is ignored: the sandbox cannot list the directory either
			for _, e := range entries {
				if seen++; seen > keyEntries {
					return ""
				}
				path := filepath.Join(dir, e.Name())
				if keyNames[e.Name()] || isKeyFile(path, e.Type()) {
					return path
				}
				if e.IsDir() {
					next = append(next, path)
				}
			}
		}
		level = next
	}
	return ""
}

// resolveExisting resolves the part of path that exists and keeps the rest.
func resolveExisting(path string) string {
	path = filepath.Clean(path)
	rest := ""
	for dir := path; ; {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return path
		}
		rest = filepath.Join(filepath.Base(dir), rest)
		dir = parent
	}
}

// sameFile compares by device and inode. It compares the candidate and its parents with each tree (same, below), and
// the candidate with the parents of each tree (above). It returns the first match.
func sameFile(resolved string, info fs.FileInfo, trees []tree) (relation, tree) {
	stats := map[string]fs.FileInfo{}
	stat := func(path string) fs.FileInfo {
		st, ok := stats[path]
		if !ok {
			st, _ = os.Stat(path)
			stats[path] = st
		}
		return st
	}
	var parents []fs.FileInfo
	for dir := filepath.Dir(resolved); ; dir = filepath.Dir(dir) {
		if st := stat(dir); st != nil {
			parents = append(parents, st)
		}
		if filepath.Dir(dir) == dir {
			break
		}
	}
	for _, t := range trees {
		if st := stat(t.path); st != nil {
			if os.SameFile(info, st) {
				return same, t
			}
			for _, parent := range parents {
				if !t.node && os.SameFile(parent, st) {
					return below, t
				}
			}
		}
		for dir := filepath.Dir(t.path); ; dir = filepath.Dir(dir) {
			if st := stat(dir); st != nil && os.SameFile(info, st) {
				return above, t
			}
			if filepath.Dir(dir) == dir {
				break
			}
		}
	}
	return apart, tree{}
}
