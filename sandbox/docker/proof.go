package docker

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
)

// proof is a sandbox that could be made, with all that this depended on.
type proof struct {
	Engine  string `json:"engine"` // its id
	Version string `json:"version"`
	Runtime string `json:"runtime"`
	Guest   string `json:"guest"`
	Image   string `json:"image"` // its id
	Profile string `json:"profile"`
}

// proofNow describes a sandbox that is made now, from the image that the options name.
func (b *Backend) proofNow(f *dockerengine.Facts, guest, image string) proof {
	profile, _ := json.Marshal([]any{b.opts.Network, b.opts.Volumes, b.opts.HostConfig}) // judged by check
	return proof{Engine: f.ID, Version: f.Version, Runtime: f.Runtime, Guest: guest, Image: image, Profile: hash(profile)}
}

// brought is a volume that was seen to hold a whole guest.
type brought struct {
	Engine  string `json:"engine"`
	Created string `json:"created"` // the volume; one of the same name that was made since is another
}

func (b *Backend) broughtPath(volume string) string {
	return filepath.Join(b.dir, "guests", volume+".json")
}

// volumeNow returns what would be kept of a volume; ok is false if the engine does not have it, or it is not known to
// be ours.
func (b *Backend) volumeNow(ctx context.Context, volume string, guest bundle.Program, engine string) (now brought, ok bool) {
	res, err := b.cli.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if err != nil || res.Volume.CreatedAt == "" || res.Volume.Labels[labelGuest] != guest.Hash {
		return brought{}, false
	}
	return brought{Engine: engine, Created: res.Volume.CreatedAt}, true
}

// broughtBefore reports whether some program has seen the guest whole in its volume.
func (b *Backend) broughtBefore(ctx context.Context, volume string, guest bundle.Program, engine string) bool {
	var then brought
	if atomicfile.ReadJSON(b.broughtPath(volume), &then) != nil {
		return false
	}
	now, ok := b.volumeNow(ctx, volume, guest, engine)
	return ok && now == then
}

// keepBrought notes that it is whole. Without the note the next program looks again.
func (b *Backend) keepBrought(ctx context.Context, volume string, guest bundle.Program, engine string) {
	path := b.broughtPath(volume)
	if now, ok := b.volumeNow(ctx, volume, guest, engine); ok && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = atomicfile.WriteJSON(path, now)
	}
}

// doubt forgets what is kept: a sandbox could not be started.
func (b *Backend) doubt(volume string) {
	b.proofs.Forget()
	_ = os.Remove(b.broughtPath(volume)) // mostly there is none
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.filled, volume)
}
