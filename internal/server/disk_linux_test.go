package server_test

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
)

// TestLittleSpaceIsReported shows it before the disk is full.
func TestLittleSpaceIsReported(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name          string
		free          int64
		status        int
		answer, gauge string
	}{
		{"enough", 50 * gib, 200, `{"status":"ok"}`, "recluse_disk_low 0"},
		{"low", 3 * gib, 200, "has 3 GiB free", "recluse_disk_low 1"},
		{"almost full", gib / 4, 503, "almost full", "recluse_disk_low 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := servertest.NewLocal(t, server.Options{PublicMetrics: true, Space: func() (diskuse.Space, bool) {
				return diskuse.Space{Total: 100 * gib, Free: c.free}, true
			}})
			if a := ask(t, k, "", "GET", "/readyz", ""); a.status != c.status || !strings.Contains(a.body, c.answer) {
				t.Errorf("%d %s", a.status, a.body)
			}
			if a := ask(t, k, "", "GET", "/metrics", ""); !strings.Contains(a.body, c.gauge) {
				t.Errorf("no %q", c.gauge)
			}
		})
	}
}

// TestWhatTakesSpace lists the disk of a session and the files of the server, for operators only.
func TestWhatTakesSpace(t *testing.T) {
	k := servertest.New(t, server.Options{})
	if a := ask(t, k, "", "PUT", "/v1/sessions/large", "{}"); a.status != 201 {
		t.Fatal(a.body)
	}
	a := ask(t, k, "", "POST", "/v1/sessions/large/commands", `{"shell":"head -c 50000000 /dev/urandom > f; sync"}`)
	if a.status != 200 {
		t.Fatal(a.body)
	}
	r, err := k.Trusted.DiskReport(t.Context()) // its user is an operator
	if err != nil {
		t.Fatal(err)
	}
	of := func(kind v1.DiskKind, session string) int64 {
		i := slices.IndexFunc(r.Uses, func(u v1.DiskUse) bool { return u.Kind == kind && u.Session == session })
		if i < 0 {
			return -1
		}
		return r.Uses[i].Bytes
	}
	if n := of(v1.DiskSandbox, "default/large"); n < 50_000_000 || n > 120_000_000 {
		t.Errorf("the session takes %d bytes: %+v", n, r)
	}
	if r.Total <= 0 || r.Free <= 0 || of(v1.DiskLog, "") <= 0 || of(v1.DiskTemplate, "") <= 0 {
		t.Errorf("%+v", r)
	}
	if a := ask(t, k, k.Key("one", "admin"), "GET", "/v1/server/disk", ""); a.status != 403 {
		t.Errorf("a tenant: %d %s", a.status, a.body)
	}
}
