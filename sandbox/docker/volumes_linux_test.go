package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestVolumesOfTheDataDirectory(t *testing.T) {
	strict := newBackend(t, nil)
	_, err := strict.CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil)
	if v1.CodeOf(err) != v1.CodeConsentMissing || !strings.Contains(err.Error(), "unlimited_disk") {
		t.Errorf("%v", err)
	}
	b := newBackend(t, func(o *Options) { o.UnlimitedDisk = true })
	v, err := b.CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil)
	if err != nil || v.DiskLimit {
		t.Fatalf("%+v, %v", v, err)
	}
	spec := sandbox.Spec{Volumes: []sandbox.Volume{{Name: "default/data", Path: "/data", Writable: true}}}
	sb := open(t, b, spec)
	if got := shell(t, sb, "echo kept > /data/file"); got != "" {
		t.Errorf("%q", got)
	}
	if _, err := sandbox.Open(t.Context(), b, spec); v1.CodeOf(err) != v1.CodeVolumeBusy {
		t.Errorf("a second writer: %v", err)
	}
	if err := b.DeleteVolume(t.Context(), "default/data"); v1.CodeOf(err) != v1.CodeVolumeBusy {
		t.Errorf("deleted while in use: %v", err)
	}
	docker(t, "kill", containerName(sb.ID())) // a crash frees the lease
	if got := shell(t, open(t, b, spec), "cat /data/file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if err := b.Stop(t.Context(), i.ID); err != nil {
			t.Error(err)
		}
	}
	found, err := b.volumes.Get("data")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteVolume(t.Context(), "default/data"); err != nil {
		t.Error(err)
	}
	if out := docker(t, "volume", "ls", "-q"); strings.Contains(out, found.EngineName()) {
		t.Errorf("the engine still has the volume: %s", out)
	}

	// Without its record, the label identifies the volume of the engine.
	if _, err := b.CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil); err != nil {
		t.Fatal(err)
	}
	id := open(t, b, spec).ID()
	if found, err = b.volumes.Get("data"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(filepath.Dir(found.Mount()), "volume.json"), 10); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteVolume(t.Context(), "default/data"); v1.CodeOf(err) != v1.CodeVolumeBusy {
		t.Errorf("deleted while in use: %v", err)
	}
	if err := b.Stop(t.Context(), id); err != nil {
		t.Error(err)
	}
	if err := b.DeleteVolume(t.Context(), "default/data"); err != nil {
		t.Error(err)
	}
	if out := docker(t, "volume", "ls", "-q"); strings.Contains(out, found.EngineName()) {
		t.Errorf("the engine still has the volume: %s", out)
	}
}
