package volumes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// The variables of a test program that is killed.
const (
	killDir   = "RECLUSE_TEST_VOLUMES"
	killPoint = "RECLUSE_TEST_VOLUMES_POINT"
	killKind  = "RECLUSE_TEST_VOLUMES_KIND"
)

// TestMain runs the changes of killedMain in a program that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(killDir); dir != "" {
		killedMain(dir, os.Getenv(killPoint), Kind(os.Getenv(killKind)))
		os.Exit(3) // the point was not reached
	}
	os.Exit(verify(m))
}

func killedMain(dir, point string, kind Kind) {
	failpoint = func(step string) {
		if step == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	s := In(dir, "test")
	ctx := context.Background()
	if _, err := s.Create(ctx, Creation{Volume: v1.NewVolume{Name: "new", Size: 8 << 20}, Kind: kind}); err != nil {
		panic(err)
	}
	if err := s.Delete(ctx, "old", func(Lease) bool { return false }, nil); err != nil {
		panic(err)
	}
}

func TestAKillAtEachStepLeavesNothing(t *testing.T) {
	kinds := []Kind{KindDirectory}
	if os.Geteuid() == 0 && !testing.Short() {
		kinds = append(kinds, KindImage)
	}
	for _, kind := range kinds {
		for _, step := range []struct {
			point         string
			created, gone bool
		}{
			{"create.begun", false, false},
			{"create.formatted", false, false},
			{"create.filled", false, false},
			{"create.written", false, false},
			{"create.named", true, false},
			{"delete.begun", true, false},
			{"delete.renamed", true, true},
		} {
			if step.point == "create.formatted" && kind != KindImage {
				continue
			}
			t.Run(string(kind)+" "+step.point, func(t *testing.T) {
				dir := t.TempDir()
				s := In(dir, "test")
				v, err := s.Create(t.Context(), Creation{Volume: v1.NewVolume{Name: "old", Size: 8 << 20}, Kind: kind})
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(v.Mount(), "file"), []byte("kept"), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), killDir+"="+dir, killPoint+"="+step.point, killKind+"="+string(kind))
				out, err := cmd.CombinedOutput()
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
					t.Fatalf("the program was not killed: %v: %s", err, out)
				}
				if _, err := s.Collect(t.Context()); err != nil {
					t.Fatal(err)
				}
				if names := left(t, s); len(names) > 0 {
					t.Errorf("left: %v", names)
				}
				made, err := s.Get("new")
				if (err == nil) != step.created {
					t.Errorf("created: %v", err)
				}
				if made != nil {
					if err := s.Delete(t.Context(), "new", always, nil); err != nil {
						t.Error(err)
					}
				}
				text, err := os.ReadFile(filepath.Join(v.Mount(), "file"))
				if os.IsNotExist(err) != step.gone || !step.gone && string(text) != "kept" {
					t.Errorf("%q, %v", text, err)
				}
				if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
					t.Errorf("left mounted: %v", err)
				}
				if kind == KindImage {
					testneed.Await(t, "the end of the loop devices", func() bool { return !loops(t, dir) })
				}
			})
		}
	}
}

// loops reports whether a loop device has a file in dir.
func loops(t *testing.T, dir string) bool {
	t.Helper()
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.HasPrefix(string(text), dir) {
			return true
		}
	}
	return false
}

// TestATornRecordIsNoVolume replays a power loss that tore the record of a volume: the volume is named, not used.
func TestATornRecordIsNoVolume(t *testing.T) {
	s := In(t.TempDir(), "test")
	v, err := s.Create(t.Context(), Creation{Volume: v1.NewVolume{Name: "data"}, Kind: KindDirectory})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(v.dir, recordFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get("data"); v1.CodeOf(err) != v1.CodeInternal {
			t.Fatalf("with %d bytes: %v", n, err)
		}
	}
	if _, torn, err := s.List(""); err != nil || len(torn) != 1 {
		t.Errorf("%v, %v", torn, err)
	}
	if _, err := s.Create(t.Context(), Creation{Volume: v1.NewVolume{Name: "data"}, Kind: KindDirectory}); v1.CodeOf(err) != v1.CodeVolumeExists {
		t.Errorf("its files could be replaced: %v", err)
	}
}
