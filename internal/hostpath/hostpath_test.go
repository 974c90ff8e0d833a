package hostpath

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a small host in a temporary directory. All paths of its policy are in this directory.
type host struct {
	dir    string
	policy *Policy
}

func newHost(t testing.TB) host {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("symlinks need a privilege on Windows, and nothing is mounted there")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{
		"etc/ssl", "root/deep", "proc", "run/user/1000", "var/lib/docker/volumes", "var/lib/app", "var/tmp", "boot",
		"home/alice/.ssh", "home/alice/project/src", "home/alice/.config/gcloud", "home/bob/project", "home/ldapuser/work",
		"srv/data", "srv/backup/.gnupg/private", "tmp/x", "opt/app", "keys/alice", "srv/with space",
	} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"var/run":              filepath.Join(dir, "run"), // as on every merged host
		"srv/etc-link":         filepath.Join(dir, "etc"),
		"srv/etc-rel":          "../etc",
		"srv/two":              "etc-rel/ssl",
		"srv/root-link":        "/",
		"srv/data-link":        "data",
		"srv/up":               "..",
		"srv/dangling":         "nowhere",
		"srv/loop":             "loop",
		"home/bob/.aws":        filepath.Join(dir, "keys/alice"), // a key folder in another directory
		"home/alice/ssh-alias": ".ssh",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"etc/shadow", "srv/data/file", "home/alice/.netrc", "srv/a:b", "srv/a,b", "srv/a\nb", "srv/\xff"} {
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &Policy{Homes: []string{filepath.Join(dir, "home/alice"), filepath.Join(dir, "home/bob"), "/", "/bin", "relative"}, HomeBases: []string{filepath.Join(dir, "home")}}
	for _, tree := range []string{"etc", "root", "proc", "sys", "dev", "boot", "run", "var/run", "var/lib/docker", "var/lib/kubelet"} {
		p.Refuse(filepath.Join(dir, tree), "a secret")
	}
	return host{dir, p}
}

func (h host) path(rest string) string { return h.dir + "/" + rest }

func TestJudge(t *testing.T) {
	h := newHost(t)
	for _, tc := range []struct {
		name, path string
		want       string // resolved below the host's directory; empty means refused
	}{
		{"data", "srv/data", "srv/data"},
		{"data by symlink", "srv/data-link", "srv/data"},
		{"data by detour", "srv/./up//srv/data-link/", "srv/data"},
		{"data through a refused place and back", "etc/../srv/data", "srv/data"},
		{"a file", "srv/data/file", "srv/data/file"},
		{"a name with a space", "srv/with space", "srv/with space"},
		{"a temporary directory", "tmp/x", "tmp/x"},
		{"temporary directories", "tmp", "tmp"},
		{"a project in a home", "home/alice/project", "home/alice/project"},
		{"a project below a home that only the base knows", "home/ldapuser/work", "home/ldapuser/work"},
		{"optional software", "opt/app", "opt/app"},
		{"other state in var", "var/lib/app", "var/lib/app"},
		{"var/tmp", "var/tmp", "var/tmp"},
		{"harmless symlink twin of a refused one", "srv/up/opt", "opt"},

		{"etc", "etc", ""},
		{"etc with two slashes", "/etc", ""},
		{"etc with a dot", "./etc", ""},
		{"etc with a trailing slash", "etc/", ""},
		{"etc with a trailing dot", "etc/.", ""},
		{"etc by dots", "srv/../etc", ""},
		{"below etc", "etc/ssl", ""},
		{"a file below etc", "etc/shadow", ""},
		{"etc by absolute symlink", "srv/etc-link", ""},
		{"etc by relative symlink", "srv/etc-rel", ""},
		{"below etc by symlink", "srv/etc-link/ssl", ""},
		{"below etc by two symlinks", "srv/two", ""},
		{"parent of a refused place by symlink and dots", "srv/two/../..", ""},
		{"the real root by symlink", "srv/root-link", ""},
		{"the parent of all", "", ""},
		{"the parent of all by symlink", "srv/up", ""},
		{"var", "var", ""},
		{"var/lib", "var/lib", ""},
		{"docker's state", "var/lib/docker", ""},
		{"below docker's state", "var/lib/docker/volumes", ""},
		{"var/run, a symlink", "var/run", ""},
		{"below var/run", "var/run/user", ""},
		{"run", "run", ""},
		{"proc", "proc", ""},
		{"boot", "boot", ""},
		{"root's home", "root", ""},
		{"below root's home", "root/deep", ""},
		{"keys", "home/alice/.ssh", ""},
		{"keys by symlink", "home/alice/ssh-alias", ""},
		{"keys in a deeper folder", "home/alice/.config/gcloud", ""},
		{"parent of keys", "home/alice/.config", ""},
		{"a key file", "home/alice/.netrc", ""},
		{"a home with keys", "home/alice", ""},
		{"a home without keys", "home/ldapuser", ""},
		{"all homes", "home", ""},
		{"a key folder's real place", "keys/alice", ""},
		{"parent of a key folder's real place", "keys", ""},
		{"keys far from home", "srv/backup/.gnupg/private", ""},
		{"nothing there", "srv/none", ""},
		{"dangling symlink", "srv/dangling", ""},
		{"symlink loop", "srv/loop", ""},
		{"colon", "srv/a:b", ""},
		{"comma", "srv/a,b", ""},
		{"newline", "srv/a\nb", ""},
		{"NUL", "srv/data\x00/etc", ""},
		{"invalid UTF-8", "srv/\xff", ""},
		{"too long", strings.Repeat("srv/../", 1000) + "srv/data", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := h.policy.Judge(h.path(tc.path))
			if tc.want != "" {
				if err != nil || got != h.path(tc.want) {
					t.Fatalf("Judge = %q, %v; want %q", got, err, h.path(tc.want))
				}
				return
			}
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("Judge = %q, %v; want a RefusedError", got, err)
			}
			if refused.Rule == "" || refused.Reason == "" || got != "" {
				t.Errorf("incomplete refusal: %+v, path %q", refused, got)
			}
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("error text carries the caller's control characters: %q", err)
			}
		})
	}
}

func TestJudgeSyntax(t *testing.T) {
	for _, path := range []string{"", ".", "..", "etc", "./etc", "../etc", "~", "~/.ssh", "$HOME", "\x00", "\n"} {
		_, err := new(Policy).Judge(path)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Rule != RuleSyntax {
			t.Errorf("Judge(%q) = %v, want a refusal by syntax", path, err)
		}
	}
}

func TestMountErrorSaysEachThingOnce(t *testing.T) {
	h := newHost(t)
	const refused = ": mounting this path is not allowed: "
	for path, want := range map[string]string{
		h.path("srv/none"):     ": it does not exist (create it first)",
		"srv":                  refused + "it is relative, and its meaning depends on the working directory (use an absolute path)",
		h.path("srv/etc-link"): refused + "it is " + h.path("etc") + ", which holds a secret (" + remedyShare + ")",
		h.path("srv/two"):      refused + "it is below " + h.path("etc") + ", which holds a secret; it resolves to \"" + h.path("etc/ssl") + "\" (" + remedyShare + ")",
	} {
		_, err := h.policy.Judge(path)
		err = MountError(path, err)
		if v1.CodeOf(err) != v1.CodeMountRefused || err.Error() != "mount "+path+want {
			t.Errorf("%v\nwant mount %s%s", err, path, want)
		}
	}
	if err := MountError("/x", fs.ErrNotExist); err.Error() != "mount /x: it does not exist (create it first)" {
		t.Errorf("what is gone since: %v", err)
	}
	var e *v1.Error
	if err := MountError("/x", fs.ErrInvalid); !errors.As(err, &e) || e.Message == "" || e.Remedy == "" || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("what was not judged: %v", err)
	}
}

func TestMissingIsNotExist(t *testing.T) {
	h := newHost(t)
	if _, err := h.policy.Judge(h.path("srv/none")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("error %v, want one that is fs.ErrNotExist", err)
	}
}

func TestSockets(t *testing.T) {
	h := newHost(t)
	dir, err := os.MkdirTemp("", "s") // socket names are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"docker.sock", "any"} {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := h.policy.Judge(filepath.Join(dir, name)); err == nil {
			t.Errorf("the socket %s was accepted", name)
		}
	}
	if _, err := h.policy.Judge(dir); err == nil || !strings.Contains(err.Error(), "docker.sock") {
		t.Errorf("a directory with docker.sock: %v", err)
	}
}

// TestRealHost tests the default policy on the host that runs the test.
func TestRealHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the list is Linux's")
	}
	home := filepath.Join(t.TempDir(), "home")
	for _, d := range []string{".ssh", "project"} {
		if err := os.MkdirAll(filepath.Join(home, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(home, "agent/sock"))
	refused := []string{
		"/", "//", "/.", "/..", "/etc", "//etc", "/./etc", "/etc/", "/etc/../etc", "/etc/passwd", "/proc", "/proc/1", "/proc/self/root", "/proc/self/root/etc",
		"/sys", "/sys/fs", "/dev", "/dev/null", "/dev/shm", "/root", "/boot", "/run", "/var/run", "/var", "/var/lib", "/home",
		"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/var/lib/docker", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/containerd",
		"~/.ssh", "etc", "/srv/a:b", home, home + "/.ssh", filepath.Dir(home),
	}
	for _, path := range refused {
		if got, err := Default().Judge(path); err == nil {
			t.Errorf("Judge(%q) = %q, want a refusal", path, got)
		}
	}
	for _, path := range []string{home + "/project", t.TempDir()} {
		if _, err := Default().Judge(path); err != nil {
			t.Errorf("Judge(%q): %v", path, err)
		}
	}
}

func TestPasswdHomesAndSocketVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(file, []byte("a:x:1:1::/home/a:/bin/sh\nbroken\nb:x:1:1::relative:/bin/sh\n# c\nd:x:0:0::/srv/d/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(passwdHomes(file), " "); got != "/home/a /srv/d" {
		t.Errorf("homes %q", got)
	}
	for address, want := range map[string]string{
		"unix:///run/docker.sock": "/run/docker.sock", "unix:path=/run/bus,guid=1": "/run/bus", "/tmp/ssh/agent": "/tmp/ssh/agent",
		"tcp://host:1": "", "": "", "unix:abstract=/x": "",
	} {
		if got := socketPath(address); got != want {
			t.Errorf("socketPath(%q) = %q, want %q", address, got, want)
		}
	}
}

// FuzzJudge searches for a path that is accepted although it is in, or contains, a refused tree.
func FuzzJudge(f *testing.F) {
	h := newHost(f)
	for _, seed := range []string{
		"", "etc", "/etc", "./etc", "srv/../etc/", "srv/two/..", "srv/up/home/alice/.ssh", "srv/data", "var/run/../lib/docker",
		"home/bob/.aws", "srv/up/up/", "home/alice/ssh-alias/.", "srv/data\x00", "srv/root-link/etc",
	} {
		f.Add(seed)
	}
	var refused []string
	for _, r := range h.policy.Trees {
		refused = append(refused, resolveExisting(r.Path))
	}
	for _, r := range []string{"home/alice/.ssh", "home/alice/.config/gcloud", "home/alice/.netrc", "keys/alice", "home/bob/.gnupg"} {
		refused = append(refused, h.path(r))
	}
	refused = append(refused, "/etc", "/proc") // the real ones, reachable through srv/root-link
	h.policy.Trees = append(h.policy.Trees, systemTrees...)
	f.Fuzz(func(t *testing.T, rest string) {
		for _, path := range []string{h.path(rest), rest} {
			got, err := h.policy.Judge(path)
			if err != nil {
				var re *RefusedError
				if !errors.As(err, &re) {
					t.Fatalf("Judge(%q): %v is no RefusedError", path, err)
				}
				continue
			}
			if !filepath.IsAbs(path) {
				t.Fatalf("Judge(%q) accepted a relative path", path)
			}
			real, err := filepath.EvalSymlinks(path)
			if err != nil || real != got {
				t.Fatalf("Judge(%q) = %q, but it is %q (%v)", path, got, real, err)
			}
			for _, r := range refused {
				if rel := relate(got, r); rel != apart {
					t.Fatalf("Judge(%q) = %q accepted, related to %q (%d)", path, got, r, rel)
				}
			}
		}
	})
}
