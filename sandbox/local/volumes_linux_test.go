package local_test

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
)

func TestVolumesAreLinks(t *testing.T) {
	o := local.Options{Dir: t.TempDir(), GuestPath: guestPath}
	if _, err := local.New(o).CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil); v1.CodeOf(err) != v1.CodeConsentMissing {
		t.Errorf("without consent: %v", err)
	}
	o.UnlimitedDisk = true
	b := local.New(o)
	if v, err := b.CreateVolume(t.Context(), sandbox.VolumeOwner{}, sandbox.NewVolume{Name: "data"}, nil); err != nil || v.DiskLimit {
		t.Fatalf("%+v, %v", v, err)
	}
	spec := sandbox.Spec{Volumes: []sandbox.Volume{{Name: "data", Path: "/data", Writable: true}}}
	for _, want := range []string{"1", "2"} {
		sb, err := sandbox.Open(t.Context(), b, spec)
		if err != nil {
			t.Fatal(err)
		}
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo line >> ~/data/file; wc -l < ~/data/file"})
		if err != nil || strings.TrimSpace(v.Stdout.String()) != want {
			t.Errorf("%v %v %s", v, err, v.Stderr)
		}
		if _, err := sandbox.Open(t.Context(), b, spec); v1.CodeOf(err) != v1.CodeVolumeBusy {
			t.Errorf("a second writer: %v", err)
		}
		if err := b.DeleteVolume(t.Context(), "data"); v1.CodeOf(err) != v1.CodeVolumeBusy {
			t.Errorf("deleted while in use: %v", err)
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
	}
	spec.Volumes[0].Writable = false
	if _, err := sandbox.Open(t.Context(), b, spec); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Errorf("read-only: %v", err)
	}
	if err := b.DeleteVolume(t.Context(), "data"); err != nil {
		t.Error(err)
	}
}
