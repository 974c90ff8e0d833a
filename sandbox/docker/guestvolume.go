package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
)

// guestProgram returns the guest's program for the architecture of the Docker engine.
func (b *Backend) guestProgram(ctx context.Context, arch string) (bundle.Program, error) {
	if b.opts.GuestPath != "" {
		return b.namedGuest()
	}
	return bundle.GuestFor(ctx, arch)
}

// readGuest reads the guest's program at Options.GuestPath.
func readGuest(path string) (bundle.Program, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return bundle.Program{}, &v1.Error{
			Code:    v1.CodeEngineMissing,
			Op:      "find the guest",
			Message: "cannot read the guest's binary",
			Err:     err,
		}
	}
	return bundle.Program{Path: path, Hash: hash(text)}, nil
}

// guestVolume returns the name of the volume that holds the guest. Each program checks it once, and fills it if it is
// incomplete. Any image can be used for the carrier, because it is never started.
func (b *Backend) guestVolume(
	ctx context.Context,
	guest bundle.Program,
	f *dockerengine.Facts,
	image string,
) (string, error) {
	name := fmt.Sprintf("recluse-guest-%.16s-%s", guest.Hash, f.Arch)
	const op = "copy the guest to the Docker engine"
	select { // not a mutex, so that the caller can cancel the wait
	case b.filling <- struct{}{}:
		defer func() { <-b.filling }()
	case <-ctx.Done():
		return "", failed(ctx, op, "", ctx.Err())
	}
	b.mu.Lock()
	filled := b.filled[name]
	b.mu.Unlock()
	if filled {
		return name, nil
	}
	v := dockerengine.Volume{
		Name:    name,
		Labels:  map[string]string{labelGuest: guest.Hash},
		Target:  guestDir,
		Program: bundle.GuestName,
		Source:  guest.Path,
	}
	err := b.cli.PrepareOnce(ctx, b.guestNote(name), name, v.Labels, func() error { return b.cli.Fill(ctx, v, image) })
	if err != nil {
		return "", failed(ctx, op, "cannot fill the volume", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filled[name] = true
	return name, nil
}

// guestNote returns the path of the file that records that a guest's volume is filled.
func (b *Backend) guestNote(volume string) string {
	return filepath.Join(b.dir, "guests", volume+".json")
}

// dropCached drops all cached knowledge after a sandbox failed to start.
func (b *Backend) dropCached(volume string) {
	b.proofs.Forget()
	_ = os.Remove(b.guestNote(volume)) // usually it does not exist
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.filled, volume)
}
