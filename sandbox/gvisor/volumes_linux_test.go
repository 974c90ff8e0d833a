//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/internal/volumes"
	"github.com/recluse-dev/recluse/sandbox"
)

// shell runs a script and returns what it prints.
func shellIn(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: script})
	if err != nil {
		t.Fatal(err)
	}
	return v.Stdout.String() + v.Stderr.String()
}

func makeVolume(t *testing.T, b *Backend, v sandbox.NewVolume) {
	t.Helper()
	if _, err := b.CreateVolume(t.Context(), sandbox.VolumeOwner{}, v, nil); err != nil {
		t.Fatal(err)
	}
}

func at(name string, writable bool) sandbox.Spec {
	return sandbox.Spec{Volumes: []sandbox.Volume{{Name: name, Path: "/data", Writable: writable}}}
}

func TestVolumes(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	b := backendIn(t, t.TempDir())
	makeVolume(t, b, sandbox.NewVolume{Name: "data", Size: 32 << 20, Files: 100})
	writer := open(t, b, at("data", true))
	if got := shellIn(t, writer, "echo kept > /data/file; ls -A /data; stat -c '%u %a' /data/file"); got != "file\n1000 644\n" {
		t.Errorf("%q", got)
	}
	// A reader sees what the writer writes, and cannot change it.
	reader := open(t, b, at("data", false))
	if got := shellIn(t, reader, "cat /data/file; touch /data/x 2>/dev/null || echo read-only; rm -f /data/file 2>/dev/null || echo kept"); got != "kept\nread-only\nkept\n" {
		t.Errorf("%q", got)
	}
	if got := shellIn(t, writer, "echo second >> /data/file; mkdir /data/dir"); got != "" {
		t.Errorf("%q", got)
	}
	if got := shellIn(t, reader, "cat /data/file; ls /data"); got != "kept\nsecond\ndir\nfile\n" {
		t.Errorf("%q", got)
	}
	_, err := sandbox.Open(t.Context(), b, at("data", true))
	wantError(t, err, v1.CodeVolumeBusy, "is written to by sandbox "+writer.ID(), "read-only")
	if err := b.DeleteVolume(t.Context(), "default/data"); v1.CodeOf(err) != v1.CodeVolumeBusy {
		t.Errorf("deleted while in use: %v", err)
	}
	// Limits cost the writer.
	if got := shellIn(t, writer, "dd if=/dev/zero of=/data/big bs=1M count=64 2>&1 | grep -o 'No space left'; wc -c < /data/big"); !strings.HasPrefix(got, "No space left\n3") {
		t.Errorf("%q", got)
	}
	if got := shellIn(t, writer, "rm /data/big; cd /data/dir; for i in $(seq 5000); do : > f$i || break; done 2>&1 | grep -o 'No space left'; ls | wc -l"); !strings.HasPrefix(got, "No space left\n") {
		t.Errorf("%q", got)
	}
	// The mounts are not those of the host.
	if data, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(data), b.volumes.Store.Dir) {
		t.Errorf("mounted on the host: %v", err)
	}
	// It outlives the sandbox.
	if err := errors.Join(writer.Close(), reader.Close()); err != nil {
		t.Fatal(err)
	}
	if got := shellIn(t, open(t, b, at("data", true)), "head -1 /data/file; ls /data/dir | wc -l"); !strings.HasPrefix(got, "kept\n") {
		t.Errorf("%q", got)
	}
}

// TestSetuidBitsAndDevicesInAVolume are made by root inside. They have no effect, inside and on the host.
func TestSetuidBitsAndDevicesInAVolume(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	b := backendIn(t, t.TempDir())
	makeVolume(t, b, sandbox.NewVolume{Name: "data", Size: 32 << 20})
	spec := at("data", true)
	spec.Sudo = true
	sb := open(t, b, spec)
	const script = "sudo cp /usr/bin/id /data/id; sudo chmod 4755 /data/id; /data/id -u; " +
		"sudo mknod /data/disk b 7 0 2> /dev/null || echo refused"
	if got := shellIn(t, sb, script); got != "1000\nrefused\n" {
		t.Errorf("%q", got)
	}
	st, err := b.driver(b.engine.Path, false).state(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", st.GoferPid))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " - ext4 /dev/loop") {
			found = true
			if options := strings.Fields(line)[5]; !strings.Contains(options, "nosuid") || !strings.Contains(options, "nodev") {
				t.Errorf("mounted with %s", options)
			}
		}
	}
	if !found {
		t.Errorf("the volume is not mounted in\n%s", mounts)
	}
}

func TestACrashFreesAVolume(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	b := backendIn(t, t.TempDir())
	makeVolume(t, b, sandbox.NewVolume{Name: "data", Size: 32 << 20})
	writer := open(t, b, at("data", true))
	if got := shellIn(t, writer, "echo kept > /data/file; sync"); got != "" {
		t.Errorf("%q", got)
	}
	st, err := b.driver(b.engine.Path, false).state(writer.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(killEngineProcess(t.Context(), st.GoferPid), killEngineProcess(t.Context(), st.Sandbox.Pid)); err != nil {
		t.Fatal(err)
	}
	if got := shellIn(t, open(t, b, at("data", true)), "cat /data/file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
}

func TestSnapshotsWithVolumes(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	b := backendIn(t, t.TempDir())
	makeVolume(t, b, sandbox.NewVolume{Name: "data", Size: 32 << 20})
	original := open(t, b, at("data", true))
	if got := shellIn(t, original, "echo one > /data/file"); got != "" {
		t.Errorf("%q", got)
	}
	if v, err := original.Cell(t.Context(), sandbox.Cell{Code: "f = open('/data/file'); f.readline()"}); err != nil || !v.OK() {
		t.Fatalf("%v %v", v, err)
	}
	_, err := original.Fork(t.Context(), 1)
	wantError(t, err, v1.CodeVolumeBusy, "has a file of a volume open", "--shared")
	if v, err := original.Cell(t.Context(), sandbox.Cell{Code: "f.close()"}); err != nil || !v.OK() {
		t.Fatalf("%v %v", v, err)
	}
	// A copy reads the volume, and the original goes on writing.
	copies, err := original.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	fork := copies[0]
	t.Cleanup(func() { _ = fork.Close() })
	if got := shellIn(t, fork, "cat /data/file; touch /data/file 2>/dev/null || echo read-only"); got != "one\nread-only\n" {
		t.Errorf("%q", got)
	}
	if s := fork.Spec(); len(s.Volumes) != 1 || s.Volumes[0].Writable {
		t.Errorf("%+v", s.Volumes)
	}
	if got := shellIn(t, original, "echo two >> /data/file"); got != "" {
		t.Errorf("%q", got)
	}
	if got := shellIn(t, fork, "cat /data/file"); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	// A snapshot does not contain the volume: a restored sandbox has the volume as it is now.
	snap, err := original.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	other := open(t, b, at("data", true))
	_, err = sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	wantError(t, err, v1.CodeVolumeBusy, "is written to by sandbox "+other.ID(), "end sandbox "+other.ID())
	if got := shellIn(t, other, "echo three >> /data/file"); got != "" {
		t.Errorf("%q", got)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := shellIn(t, restored, "echo four >> /data/file; cat /data/file"); got != "one\ntwo\nthree\nfour\n" {
		t.Errorf("%q", got)
	}
	if err := errors.Join(restored.Close(), fork.Close()); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteVolume(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	_, err = sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	wantCode(t, err, v1.CodeVolumeNotFound)
}

func TestAnOrdinaryUsersVolumes(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.AsUser = true
	_, err := b.CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil)
	wantError(t, err, v1.CodeConsentMissing, "cannot be limited", "unlimited_disk")
	b.volumes.Unlimited = true
	v, err := b.CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil)
	if err != nil || v.DiskLimit {
		t.Fatalf("%+v, %v", v, err)
	}
	found, err := b.volumes.Get("data")
	if err != nil || found.Kind != volumes.KindDirectory {
		t.Fatalf("%+v, %v", found, err)
	}
	if err := os.WriteFile(filepath.Join(found.Mount(), "file"), []byte("kept\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = sandbox.Open(t.Context(), b, at("data", true))
	wantError(t, err, v1.CodeNotSupported, "does not run as root", "read-only")
	if got := shellIn(t, open(t, b, at("data", false)), "cat /data/file; touch /data/x 2>/dev/null || echo read-only"); got != "kept\nread-only\n" {
		t.Errorf("%q", got)
	}
}
