// Package hostpath judges host paths that a caller wants to see inside a sandbox.
//
// The sandbox is only as strong as what is mounted into it: /var/run/docker.sock alone is root on the host. So a path is first
// resolved until nothing in it can still mean something else (symlinks, "//", ".", "..", trailing slashes), and then compared
// with a list of trees that must stay outside: the system's own directories, container engines' state and sockets, and the
// key folders of every home directory. Key files such as .netrc and id_rsa are refused wherever they lie. A path is refused when it is one of these trees, lies below one, or contains one;
// the last is why "/", "/var/lib", "/home" and a home directory itself are refused without being named.
//
// Names are not enough, because the same directory can have several: a bind mount of /etc under /mnt/x has another name and
// the same device and inode; a bind mount of /etc/ssh has not even the inode of a listed directory. Paths are therefore
// compared three ways: by resolved name, by device and inode (of the path and of its parents), and on Linux by where the
// mount table says that the path lives on its file system. Mounts below the path are judged like the path itself.
//
// Between the judgement and the mount, somebody may swap a directory for a symlink. On Linux, [Open] therefore judges an open
// O_PATH handle and returns it; mount /proc/self/fd/<n> (or give the descriptor to the engine), not the name.
//
// What this package cannot see: hard links to a secret file inside an otherwise harmless directory, and secrets that lie in
// places nobody has named. Callers add their own places with [Policy.Refuse].
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

// maxPath is Linux's PATH_MAX; a longer path cannot be mounted anyway.
const maxPath = 4096

// Rules that are not a place. [RefusedError.Rule] is one of these or the refused place itself.
const (
	RuleSyntax   = "syntax"   // empty, relative, or with characters that mount options cannot carry
	RuleMissing  = "missing"  // nothing is there, or it cannot be read
	RuleType     = "type"     // a socket, device or pipe
	RulePseudo   = "pseudo"   // proc, sysfs and their like, wherever they are mounted
	RuleUnstable = "unstable" // the path changed while it was judged
)

// RefusedError says which path was refused, by which rule and why.
type RefusedError struct {
	Path     string // as the caller gave it
	Resolved string // what it really is, or empty when that was not reached
	Rule     string // the refused place, or one of the Rule constants
	Reason   string // lower-case sentence without a full stop
	Remedy   string // what to do instead; may be empty
	Err      error  // the cause, which Reason tells, when there is one: errors.Is(err, fs.ErrNotExist) works
}

// Error tells neither the path nor the remedy: whoever asked does.
func (e *RefusedError) Error() string {
	if e.Resolved != "" && e.Resolved != e.Path && !strings.Contains(e.Reason, e.Resolved) {
		return fmt.Sprintf("%s; its real name is %q", e.Reason, e.Resolved)
	}
	return e.Reason
}

// Unwrap returns the cause, if any.
func (e *RefusedError) Unwrap() error { return e.Err }

// MountError is what every backend answers when it does not mount path.
func MountError(path string, err error) error {
	out := &v1.Error{
		Code: v1.CodeMountRefused, Op: "mount " + path, Message: "this path is not shown to a sandbox", Err: err,
		Remedy: "mount a directory that holds only what the code needs",
	}
	e, ok := errors.AsType[*RefusedError](err)
	if !ok && errors.Is(err, fs.ErrNotExist) { // gone since it was judged
		e, ok = missing(path, err), true
	}
	if ok {
		out.Remedy = cmp.Or(e.Remedy, out.Remedy)
		if e.Rule == RuleMissing { // nothing was judged, and the reason says it all
			out.Message, out.Err = e.Reason, nil
		}
	}
	return out
}

// Resolve judges the host's directories that are to be mounted, and returns the mounts with the directories that
// they really are.
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

// Rule is a tree that must stay outside of every sandbox.
type Rule struct {
	Path   string // absolute
	Reason string // completes "it holds …"
}

// Policy is a set of places that are refused. The zero Policy refuses only what is wrong by itself (relative paths, sockets,
// pseudo file systems, "/"); [Default] returns the one for this host.
type Policy struct {
	// Trees are refused, with everything below and above them.
	Trees []Rule
	// Homes are home directories: their key folders are refused, and so the homes themselves.
	Homes []string
	// HomeBases are directories, such as /home, in which every entry counts as a home directory, also of users that
	// /etc/passwd does not know.
	HomeBases []string

	// Allow are places that an operator opens although they lie in a refused one, such as a project below /root. What is refused further
	// down, like a folder or file of keys, stays refused, and so do places of the caller's own.
	Allow []string

	firm      []string // of Trees, those that nothing opens
	mountinfo string   // replaced in tests; empty means the kernel's
}

// Refuse adds a place of the caller's own, for instance the directory in which it keeps its state. The reason completes the
// words "it holds …".
func (p *Policy) Refuse(path, reason string) {
	p.Trees, p.firm = append(p.Trees, Rule{Path: path, Reason: reason}), append(p.firm, path)
}

// checkSyntax refuses names that could be read as something else on their way to the mount call: a colon or comma ends a
// field in mount options, a newline ends a line in mount tables, and invalid UTF-8 is silently replaced in JSON, which
// would mount a different path.
func checkSyntax(path string) error {
	refuse := func(remedy, format string, args ...any) error {
		return &RefusedError{Path: path, Rule: RuleSyntax, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	if path == "" {
		return refuse(remedyAbsolute, "it is empty")
	}
	if len(path) >= maxPath {
		return &RefusedError{Path: path[:32] + "…", Rule: RuleSyntax, Reason: fmt.Sprintf("it is %d bytes long, the limit is %d", len(path), maxPath-1)}
	}
	if !utf8.ValidString(path) {
		return refuse(remedyRename, "it is not valid UTF-8")
	}
	for _, r := range path[len(filepath.VolumeName(path)):] {
		if r == ':' || r == ',' {
			return refuse(remedyRename, "it contains %q, which mount options cannot carry", r)
		}
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return refuse(remedyRename, "it contains the control character %q", r)
		}
	}
	if !filepath.IsAbs(path) {
		return refuse(remedyAbsolute, "it is relative, and what it means depends on the working directory")
	}
	return nil
}

// missing turns an error of the file system into a refusal.
func missing(path string, err error) *RefusedError {
	e := &RefusedError{Path: path, Rule: RuleMissing, Reason: "it cannot be resolved: " + err.Error(), Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Reason, e.Remedy = "it does not exist", "create it first"
	case errors.Is(err, fs.ErrPermission):
		e.Reason, e.Remedy = "permission to look at it is missing", "give this user access, or take another directory"
	}
	return e
}

// judge decides about a path that has been resolved already.
//
// Preconditions: resolved is absolute, clean and free of symlinks; info describes what it names.
func (p *Policy) judge(path, resolved string, info fs.FileInfo) error {
	if err := checkSyntax(resolved); err != nil {
		var re *RefusedError
		errors.As(err, &re)
		re.Path, re.Resolved = path, resolved
		return err
	}
	refuse := func(rule, format string, args ...any) error {
		return &RefusedError{Path: path, Resolved: resolved, Rule: rule, Reason: fmt.Sprintf(format, args...), Remedy: remedyShare}
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSocket != 0:
		return refuse(RuleType, "it is a socket, and whoever answers on it would answer to the sandbox")
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
			return refuse(name, "it is or lies in a %s folder, which holds credentials", name)
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
			Path: path, Resolved: resolved, Rule: name, Remedy: "move the credentials out of it, or mount a directory without them",
			Reason: fmt.Sprintf("it contains %s, which holds credentials", name),
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

// What to do instead.
const (
	remedyShare    = "take a directory made for sharing instead, for instance a project folder"
	remedyAbsolute = "give an absolute path"
	remedyRename   = "rename it, or take its parent directory"
)

// tree is a rule made concrete: a resolved place.
type tree struct {
	path   string // resolved as far as it exists
	rule   string // how the rule names it
	reason string
	node   bool // refused with everything above, but not below: a home directory has harmless folders
	firm   bool // stays refused whatever is allowed
}

// relation tells how a candidate lies to a refused tree.
type relation int

const (
	apart relation = iota
	same
	below
	above
)

func explain(rel relation, t tree, how string) string {
	switch rel {
	case same:
		return fmt.Sprintf("it is %s%s, which holds %s", t.rule, how, t.reason)
	case below:
		return fmt.Sprintf("it lies below %s%s, which holds %s", t.rule, how, t.reason)
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

// relate compares a candidate with a name of the tree.
func (t tree) relate(candidate, name string) relation {
	rel := relate(candidate, name)
	if t.node && rel == below {
		return apart
	}
	return rel
}

// within says whether path lies strictly below dir.
func within(path, dir string) bool {
	if !strings.HasSuffix(dir, string(filepath.Separator)) {
		dir += string(filepath.Separator)
	}
	return len(path) > len(dir) && strings.HasPrefix(path, dir)
}

// expand lists every refused place with a bearing on candidate, by its given and by its resolved name (on most hosts
// /var/run is /run; a key folder may be a symlink to a safer disk).
func (p *Policy) expand(candidate string) []tree {
	var trees []tree
	seen := map[string]bool{}
	add := func(path string, t tree) {
		if seen[path] || !filepath.IsAbs(path) || filepath.Dir(path) == path {
			return // a tree that is "/" would refuse everything; "/" itself is refused already
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
		entries, _ := os.ReadDir(real) // for those that are reached by another name; whom we may not list we cannot mount
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
	return slices.DeleteFunc(trees, func(t tree) bool { return !t.firm && p.opened(candidate, t.path) })
}

// opened reports whether an allowed place lies between a refused one and the candidate.
func (p *Policy) opened(candidate, refused string) bool {
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

// How far keysBelow looks: a whole disk cannot be searched before each start.
const (
	keyDepth   = 4
	keyEntries = 20_000
)

// keysBelow returns a folder or file of keys below a place that an operator has opened, or "". It looks keyDepth levels deep, breadth first, at
// keyEntries entries at most.
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
			entries, _ := os.ReadDir(dir) // what we may not list the sandbox may not either
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

// sameFile compares by device and inode: the candidate and its parents with each tree (same, below), and the candidate with
// the parents of each tree (above).
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
