package server_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestVolumesBelongToATenant(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	k := servertest.New(t, server.Options{})
	ctx := t.Context()
	mine, foreign := k.Client(k.Key("vol-a", "execute")), k.Client(k.Key("vol-b", "execute"))
	if _, err := mine.CreateVolume(ctx, v1.NewVolume{Name: "data", Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mine.DeleteVolume(ctx, "data") })
	with := func(name string, writable bool) v1.OpenOptions {
		return v1.OpenOptions{Settings: v1.Settings{Spec: &v1.Spec{Volumes: []v1.Volume{{Name: name, Path: "/data", Writable: writable}}}}}
	}
	work, _, err := mine.Open(ctx, "work", with("data", true))
	if err != nil {
		t.Fatal(err)
	}
	if err := work.Files().WriteAll(ctx, "/data/file", []byte("kept"), v1.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Another tenant finds nothing by any name.
	for _, name := range []string{"data", "vol-a/data", "../vol-a/data"} {
		if _, _, err := foreign.Open(ctx, "thief", with(name, false)); v1.CodeOf(err) != v1.CodeVolumeNotFound && v1.CodeOf(err) != v1.CodeInvalidSpec {
			t.Errorf("%s: opened by another tenant: %v", name, err)
		}
		if _, err := foreign.Volume(ctx, name); v1.CodeOf(err) != v1.CodeVolumeNotFound {
			t.Errorf("%s: shown to another tenant: %v", name, err)
		}
		if err := foreign.DeleteVolume(ctx, name); v1.CodeOf(err) != v1.CodeVolumeNotFound {
			t.Errorf("%s: deleted by another tenant: %v", name, err)
		}
	}
	if list, err := foreign.Volumes(ctx); err != nil || len(list) > 0 {
		t.Errorf("listed for another tenant: %v, %v", list, err)
	}
	// The owner sees who uses it.
	list, err := mine.Volumes(ctx)
	if err != nil || len(list) != 1 || len(list[0].Uses) != 1 || list[0].Uses[0].Session != "work" || !list[0].DiskLimit {
		t.Errorf("%+v, %v", list, err)
	}
	report, err := k.Trusted.DiskReport(ctx)
	taken := slices.IndexFunc(report.Uses, func(u v1.DiskUse) bool { return u.Kind == v1.DiskVolume && u.Name == "vol-a/data" })
	if err != nil || taken < 0 || report.Uses[taken].Bytes <= 0 || report.Uses[taken].Backend != k.Backend.Name() {
		t.Errorf("space: %+v, %v", report.Uses, err)
	}
	if _, _, err := mine.Open(ctx, "second", with("data", true)); v1.CodeOf(err) != v1.CodeVolumeBusy || !strings.Contains(err.Error(), "session work") {
		t.Errorf("a second writer: %v", err)
	}
	if err := mine.DeleteVolume(ctx, "data"); v1.CodeOf(err) != v1.CodeVolumeBusy || !strings.Contains(err.Error(), "session work") {
		t.Errorf("deleted while in use: %v", err)
	}
	// Hibernation returns the lease, and the session still counts as a user.
	if err := work.Hibernate(ctx); err != nil {
		t.Fatal(err)
	}
	if err := mine.DeleteVolume(ctx, "data"); v1.CodeOf(err) != v1.CodeVolumeBusy {
		t.Errorf("deleted while a hibernated session has it: %v", err)
	}
	second, _, err := mine.Open(ctx, "second", with("data", true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := work.Run(ctx, v1.Command{Shell: "true"}); v1.CodeOf(err) != v1.CodeVolumeBusy {
		t.Errorf("woken while another session writes: %v", err)
	}
	if err := second.End(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if v, err := work.Run(ctx, v1.Command{Shell: "cat /data/file"}); err != nil || v.Stdout.String() != "kept" {
		t.Errorf("%v, %v", v, err)
	}
	// A copy reads, and a restored session writes again.
	copies, err := work.Fork(ctx, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := copies[0].Run(ctx, v1.Command{Shell: "touch /data/x 2>/dev/null || cat /data/file"}); err != nil || v.Stdout.String() != "kept" {
		t.Errorf("%v, %v", v, err)
	}
	if i, err := copies[0].Info(ctx); err != nil || i.Spec.Volumes[0].Writable || i.Spec.Volumes[0].Name != "data" {
		t.Errorf("%+v, %v", i.Spec.Volumes, err)
	}
	if _, err := work.Save(ctx, "snap"); err != nil {
		t.Fatal(err)
	}
	if v, err := work.Run(ctx, v1.Command{Shell: "echo -n later > /data/file; echo x > ~/new"}); err != nil || !v.OK() {
		t.Errorf("%v, %v", v, err)
	}
	if err := work.Restore(ctx, "snap"); err != nil {
		t.Fatal(err)
	}
	if v, err := work.Run(ctx, v1.Command{Shell: "cat /data/file; touch /data/x; ls ~/new"}); err != nil || v.Stdout.String() != "later" {
		t.Errorf("%v, %v", v, err)
	}
	for _, s := range []*client.Session{work, copies[0]} {
		if err := s.End(ctx, ""); err != nil {
			t.Error(err)
		}
	}
	// Files without a session of one's own.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := mine.OpenVolume(ctx, "data", true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files.CopyIn(ctx, []string{filepath.Join(dir, "f")}, "", client.CopyOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := files.CopyOut(ctx, []string{"../../f"}, filepath.Join(dir, "g"), client.CopyOptions{}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "g")); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if err := files.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := mine.DeleteVolume(ctx, "data"); err != nil {
		t.Error(err)
	}
}

func TestVolumesCountInQuotas(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	k := servertest.New(t, server.Options{})
	ctx := t.Context()
	c := k.Client(k.Key("vol-q", "execute"))
	if _, err := k.Trusted.SetTenant(ctx, "vol-q", v1.TenantSettings{Quota: v1.Quota{Volumes: new(2), VolumeBytes: new(int64(20 << 20))}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateVolume(ctx, v1.NewVolume{Name: "a", Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.DeleteVolume(ctx, "a") })
	if _, err := c.CreateVolume(ctx, v1.NewVolume{Name: "b", Size: 16 << 20}); v1.CodeOf(err) != v1.CodeQuotaExceeded || !strings.Contains(err.Error(), "volume_bytes") {
		t.Errorf("%v", err)
	}
	if _, err := c.CreateVolume(ctx, v1.NewVolume{Name: "b", Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.DeleteVolume(ctx, "b") })
	if _, err := c.CreateVolume(ctx, v1.NewVolume{Name: "c", Size: 8 << 20}); v1.CodeOf(err) != v1.CodeQuotaExceeded {
		t.Errorf("%v", err)
	}
	u, err := c.Usage(ctx)
	if err != nil || *u.Tenant.Used.Volumes != 2 || *u.Tenant.Used.VolumeBytes != 16<<20 {
		t.Errorf("%+v, %v", u.Tenant.Used, err)
	}
	var none v1.VolumePage
	a := ask(t, k, k.Key("vol-q", "read"), http.MethodGet, "/v1/volumes?limit=1", "")
	a.decode(t, &none)
	if len(none.Volumes) != 1 || none.Next == "" {
		t.Errorf("%s", a.body)
	}
}
