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

// guestProgram finds the guest for the engine's machine.
func (b *Backend) guestProgram(ctx context.Context, arch string) (bundle.Program, error) {
	if b.opts.GuestPath != "" {
		return b.namedGuest()
	}
	return bundle.GuestFor(ctx, arch)
}

// readGuest reads the guest that the options name.
func readGuest(path string) (bundle.Program, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return bundle.Program{}, &v1.Error{Code: v1.CodeEngineMissing, Op: "find the guest", Message: "it cannot be read", Err: err}
	}
	return bundle.Program{Path: path, Hash: hash(text)}, nil
}

// guestVolume returns the name of the volume that holds the guest. It is checked once in a program's life, and filled
// if it is not whole. Any image serves the container through which that is done: it is never started.
func (b *Backend) guestVolume(ctx context.Context, guest bundle.Program, f *dockerengine.Facts, image string) (string, error) {
	name := fmt.Sprintf("recluse-guest-%.16s-%s", guest.Hash, f.Arch)
	const op = "bring the guest to the engine"
	select { // not a mutex, so that a caller can give up waiting
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
		Name: name, Labels: map[string]string{labelGuest: guest.Hash}, Target: guestDir, Program: bundle.GuestName, Source: guest.Path,
	}
	err := b.cli.PrepareOnce(ctx, b.guestNote(name), name, v.Labels, func() error { return b.cli.Fill(ctx, v, image) })
	if err != nil {
		return "", failed(ctx, op, "its volume could not be filled", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filled[name] = true
	return name, nil
}

// guestNote is the file that notes that a guest's volume is filled.
func (b *Backend) guestNote(volume string) string {
	return filepath.Join(b.dir, "guests", volume+".json")
}

// doubt forgets what is kept: a sandbox could not be started.
func (b *Backend) doubt(volume string) {
	b.proofs.Forget()
	_ = os.Remove(b.guestNote(volume)) // mostly there is none
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.filled, volume)
}
