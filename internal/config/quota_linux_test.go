package config

import (
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
)

func TestVolumesHaveADefaultQuota(t *testing.T) {
	dir := t.TempDir()
	s, ok := diskuse.Of(dir)
	if !ok {
		t.Fatal("the space of the file system is unknown")
	}
	all, one := MachineQuota(dir).VolumeBytes, TenantQuota(dir).VolumeBytes
	if all == nil || one == nil || *all > s.Total/2 || *one < v1.DefaultVolumeSize {
		t.Errorf("of %d bytes, all tenants may have %v and one %v", s.Total, all, one)
	}
	if q := TenantQuota(dir + "/missing"); !q.IsZero() {
		t.Errorf("without a file system: %+v", q)
	}
}
