//go:build unix

package xdg

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place sets up an environment in which only directories of the test are found.
func place(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, d := range []string{"home", "tmp", "xdg"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("HOME", filepath.Join(root, "home"))
	t.Setenv("TMPDIR", filepath.Join(root, "tmp"))
	return root
}

func TestWhere(t *testing.T) {
	uid := strconv.Itoa(os.Getuid())
	for _, tt := range []struct {
		name        string
		env         map[string]string // "ROOT" stands for the test's directory
		cache, data string
	}{
		{"home", nil, "home/.cache/recluse", "home/.local/share/recluse"},
		{"xdg comes first", map[string]string{"XDG_CACHE_HOME": "ROOT/xdg/c", "XDG_DATA_HOME": "ROOT/xdg/d"}, "xdg/c/recluse", "xdg/d/recluse"},
		{"relative xdg is ignored", map[string]string{"XDG_CACHE_HOME": "c"}, "home/.cache/recluse", "home/.local/share/recluse"},
		{"no home", map[string]string{"HOME": ""}, "tmp/recluse-" + uid + "/cache", "tmp/recluse-" + uid + "/data"},
		{"home is not there", map[string]string{"HOME": "ROOT/nonexistent"}, "tmp/recluse-" + uid + "/cache", "tmp/recluse-" + uid + "/data"},
		{"home cannot be written", map[string]string{"HOME": "/proc"}, "tmp/recluse-" + uid + "/cache", "tmp/recluse-" + uid + "/data"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := place(t)
			for k, v := range tt.env {
				if len(v) > 4 && v[:4] == "ROOT" {
					v = root + v[4:]
				}
				t.Setenv(k, v)
			}
			for _, c := range []struct {
				find func() (string, error)
				want string
			}{{Cache, tt.cache}, {Data, tt.data}} {
				got, err := c.find()
				if err != nil {
					t.Fatal(err)
				}
				if want := filepath.Join(root, c.want); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				fi, err := os.Stat(got)
				if err != nil || fi.Mode().Perm() != 0o700 {
					t.Errorf("%s: mode %v, error %v, want 0700", got, fi.Mode(), err)
				}
			}
		})
	}
}

func TestUnusableOrderIsAnError(t *testing.T) {
	place(t)
	t.Setenv("XDG_CACHE_HOME", "/proc/nowhere")
	_, err := Cache()
	if v1.CodeOf(err) == "" {
		t.Fatalf("got %v, want a typed error", err)
	}
}

func TestPrivateClosesTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Private(dir); err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(dir); fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", fi.Mode())
	}
}

func TestPrivateRefusesWhatIsNotOurs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a directory of another user's")
	}
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if err := Private(dir); err == nil {
		t.Error("a directory of another user was taken")
	}
	link := dir + "-link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := Private(link); err == nil {
		t.Error("a link to a directory of another user was taken")
	}
}

func TestPrivateRefusesAFile(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(f, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Private(f); err == nil {
		t.Error("a file was taken for a directory")
	}
}
