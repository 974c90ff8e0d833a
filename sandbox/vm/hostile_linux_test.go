package vm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// TestAHostileGuest has root inside the machine in the place of our guest.
func TestAHostileGuest(t *testing.T) {
	testneed.Slow(t, "boots a machine for each attack")
	path := sandboxtest.HostileGuest(t)
	b := testBackend(t, func(o *Options) { o.Guest, o.NoTemplates = path, true })
	sandboxtest.Attacks(t, b, "the console")
	images, _ := filepath.Glob(filepath.Join(b.dir, "images", "initramfs-*"+b.guest.Hash[:16]+"*"))
	for _, i := range images {
		_ = os.Remove(i) // only this test uses it
	}
}
