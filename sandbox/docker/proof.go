package docker

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/statefile"
)

// A program that lives for one command would make a container to see whether that works, and another to bring the guest, before its own.
// What was seen to work is therefore kept on this machine for a while, with all that it depended on.

// proof is a sandbox that could be made.
type proof struct {
	Engine  string `json:"engine"` // its id
	Version string `json:"version"`
	Runtime string `json:"runtime"`
	Guest   string `json:"guest"`
	Image   string `json:"image"` // its id
	Profile string `json:"profile"`
}

func (b *Backend) proofPath() string { return filepath.Join(b.dir, "proof.json") }

// proofNow describes a sandbox that is made now, from the image that the options name.
func (b *Backend) proofNow(f *facts, guest, image string) proof {
	profile, _ := json.Marshal([]any{b.opts.Network, b.opts.Volumes, b.opts.HostConfig}) // judged by check
	return proof{Engine: f.id, Version: f.version, Runtime: f.runtime, Guest: guest, Image: image, Profile: hash(profile)}
}

// proves keeps that a sandbox could be made. Without it the next program tries as well.
func (b *Backend) proves(p proof) {
	if os.MkdirAll(b.dir, 0o700) == nil {
		_ = statefile.Prove(b.proofPath(), p)
	}
}

// provenBefore says whether some program could make such a sandbox not long ago.
func (b *Backend) provenBefore(now proof) bool {
	then, ok := statefile.Proven[proof](b.proofPath(), proofKept)
	return ok && then == now
}

// brought is a volume that was seen to hold a whole guest.
type brought struct {
	Engine  string `json:"engine"`
	Created string `json:"created"` // the volume; one of the same name that was made since is another
}

func (b *Backend) broughtPath(volume string) string {
	return filepath.Join(b.dir, "guests", volume+".json")
}

// volumeNow gives what would be kept of a volume; ok is false if the engine does not have it, or it is not known to be ours.
func (b *Backend) volumeNow(ctx context.Context, volume string, guest bundle.Program, engine string) (now brought, ok bool) {
	res, err := b.cli.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if err != nil || res.Volume.CreatedAt == "" || res.Volume.Labels[labelGuest] != guest.Hash {
		return brought{}, false
	}
	return brought{Engine: engine, Created: res.Volume.CreatedAt}, true
}

// broughtBefore says whether some program has seen the guest whole in its volume.
func (b *Backend) broughtBefore(ctx context.Context, volume string, guest bundle.Program, engine string) bool {
	var then brought
	if statefile.Read(b.broughtPath(volume), &then) != nil {
		return false
	}
	now, ok := b.volumeNow(ctx, volume, guest, engine)
	return ok && now == then
}

// keepBrought keeps that it is whole. Without it the next program looks again.
func (b *Backend) keepBrought(ctx context.Context, volume string, guest bundle.Program, engine string) {
	if now, ok := b.volumeNow(ctx, volume, guest, engine); ok {
		_ = writeJSON(b.broughtPath(volume), now)
	}
}

// doubt forgets what is kept: a sandbox could not be started.
func (b *Backend) doubt(volume string) {
	_ = os.Remove(b.proofPath()) // mostly there is none
	_ = os.Remove(b.broughtPath(volume))
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.filled, volume)
	b.proven = time.Time{}
}
