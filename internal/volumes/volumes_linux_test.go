package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func always(Lease) bool { return true }

// left returns the entries of the store beside volumes.
func left(t *testing.T, s *Store) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Dir, "*", ".*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestADirectoryFromBeginToEnd(t *testing.T) {
	s := In(t.TempDir(), "local")
	c := Creation{Volume: v1.NewVolume{Name: "data", Size: 1 << 30}, Kind: KindDirectory}
	v, err := s.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), c); v1.CodeOf(err) != v1.CodeVolumeExists {
		t.Errorf("created twice: %v", err)
	}
	c.Owner.Tenant = "team-a"
	if _, err := s.Create(t.Context(), c); err != nil {
		t.Errorf("the same name in another tenant: %v", err)
	}
	if got, err := s.Get("data"); err != nil || got.ID != v.ID || got.Files != 1<<16 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", ".", "..", "../data", "default/../x", "default/.lock", "a/b/c", "/data", "../team-a/data"} {
		if _, err := s.Get(bad); err == nil {
			t.Errorf("found %q", bad)
		}
	}
	for _, dir := range []string{s.Dir, filepath.Dir(v.dir), v.dir} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	lease := Lease{Sandbox: "s1", Session: "default/work", Group: "n1"}
	if _, err := s.Take(t.Context(), "data", lease, always); err != nil {
		t.Fatal(err)
	}
	err = s.Delete(t.Context(), "data", always, nil)
	if v1.CodeOf(err) != v1.CodeVolumeBusy || !strings.Contains(err.Error(), "session work") {
		t.Errorf("deleted while in use: %v", err)
	}
	if err := s.Release("s1", "data", "gone"); err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), "data", always, nil); err != nil {
		t.Error(err)
	}
	if all, _, err := s.List(""); err != nil || len(all) != 1 || all[0].Tenant != "team-a" {
		t.Errorf("%v, %v", all, err)
	}
	if names := left(t, s); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func TestOneWriterAtATime(t *testing.T) {
	s := In(t.TempDir(), "local")
	for _, n := range []v1.NewVolume{{Name: "one"}, {Name: "many", Shared: true}} {
		if _, err := s.Create(t.Context(), Creation{Volume: n, Kind: KindDirectory}); err != nil {
			t.Fatal(err)
		}
	}
	dead := map[string]bool{}
	lives := func(l Lease) bool { return !dead[l.Sandbox] }
	take := func(ref, id, group string, writable bool) error {
		_, err := s.Take(t.Context(), ref, Lease{Sandbox: id, Group: group, Writable: writable}, lives)
		return err
	}
	for _, step := range []struct {
		ref, id, group string
		writable, busy bool
	}{
		{"one", "s1", "a", true, false},
		{"one", "s2", "b", false, false}, // a reader beside the writer
		{"one", "s3", "c", true, true},
		{"one", "s4", "a", true, false}, // replaces the sandbox of its session
		{"many", "s5", "a", true, false},
		{"many", "s6", "b", true, false},
	} {
		if err := take(step.ref, step.id, step.group, step.writable); (v1.CodeOf(err) == v1.CodeVolumeBusy) != step.busy || !step.busy && err != nil {
			t.Errorf("%+v: %v", step, err)
		}
	}
	dead["s1"], dead["s4"] = true, true
	if err := take("one", "s3", "c", true); err != nil {
		t.Errorf("after the crash of the writer: %v", err)
	}
	other := &Store{Dir: s.Dir, Backend: "gvisor"}
	if _, err := other.Take(t.Context(), "one", Lease{Sandbox: "s9"}, lives); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Errorf("used by another backend: %v", err)
	}
}

func TestAVolumeLargerThanTheDiskIsRefused(t *testing.T) {
	testneed.Root(t, "a loop device")
	s := In(t.TempDir(), "gvisor")
	_, err := s.Create(t.Context(), Creation{Volume: v1.NewVolume{Name: "data", Size: 15 << 40}, Kind: KindImage})
	if v1.CodeOf(err) != v1.CodeDiskFull {
		t.Errorf("%v", err)
	}
	if names := left(t, s); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func TestImagesHaveTheirSize(t *testing.T) {
	testneed.Root(t, "a loop device")
	testneed.Sandboxes(t)
	s := In(t.TempDir(), "gvisor")
	for _, size := range []int64{8 << 20, 100 << 20, 5 << 30} {
		name := "v" + strings.ReplaceAll(v1.SizeText(size), " ", "")
		v, err := s.Create(t.Context(), Creation{Volume: v1.NewVolume{Name: name, Size: size}, Kind: KindImage})
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Device(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		again, err := s.Device(t.Context(), v)
		if err != nil || again.Name() != d.Name() {
			t.Errorf("two devices of one image: %v, %v", again, err)
		}
		root, err := mountDetached(d.Name())
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		got := int64(st.Bavail) * st.Bsize
		if got < size || got > size+size/50+2<<20 {
			t.Errorf("%s: %d bytes are free, want %d", name, got, size)
		}
		if n := int64(st.Ffree); n < v.Files || n > v.Files+v.Files/10+4096 {
			t.Errorf("%s: %d files, want %d", name, n, v.Files)
		}
		if used := *v.Usage(); used > 18<<20+size/1000 {
			t.Errorf("%s takes %s on the host", name, v1.SizeText(used))
		}
		if entries, err := root.Readdirnames(-1); err != nil || len(entries) > 0 {
			t.Errorf("%s contains %v, %v", name, entries, err)
		}
		for _, f := range []*os.File{root, d, again} {
			_ = f.Close()
		}
		var inode unix.Stat_t
		if err := unix.Stat(v.Image(), &inode); err != nil {
			t.Fatal(err)
		}
		testneed.Await(t, "the end of the loop device", func() bool {
			d := attached(&inode)
			if d != nil {
				_ = d.Close()
			}
			return d == nil
		})
		if err := s.Delete(t.Context(), name, always, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestAVolumeWithoutItsRecordCanBeDeleted damages the record, as a torn write does, or removes it.
func TestAVolumeWithoutItsRecordCanBeDeleted(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"torn":    func(path string) error { return os.Truncate(path, 10) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mine, other := Keeper{Store: In(dir, "local"), Lives: always}, Keeper{Store: In(dir, "gvisor")}
			other.Lives = func(Lease) bool { return false } // it does not know the sandboxes of mine
			v, err := mine.Create(t.Context(), Creation{Volume: v1.NewVolume{Name: "data"}, Kind: KindDirectory})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := mine.Take(t.Context(), "data", LeaseOf("s1", "local", dir, nil, true), always); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(v.dir, recordFile)); err != nil {
				t.Fatal(err)
			}
			for _, k := range []Keeper{other, mine} {
				all, err := k.Volumes(t.Context(), "default")
				if err != nil || len(all) != 1 || all[0].Name != "data" || !all[0].Unreadable || all[0].Disk == nil {
					t.Errorf("%s: %+v, %v", k.Backend, all, err)
				}
				if err := k.DeleteVolume(t.Context(), "data"); v1.CodeOf(err) != v1.CodeVolumeBusy {
					t.Errorf("%s: deleted while in use: %v", k.Backend, err)
				}
			}
			mine.Lives = other.Lives // the sandbox has ended
			if err := mine.DeleteVolume(t.Context(), "data"); err != nil {
				t.Error(err)
			}
			if all, err := mine.Volumes(t.Context(), ""); err != nil || len(all) > 0 {
				t.Errorf("%+v, %v", all, err)
			}
		})
	}
}
