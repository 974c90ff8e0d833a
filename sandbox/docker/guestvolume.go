package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
)

// whole is an empty file that is the last in a guest's volume: where it is, the guest before it is whole.
const whole = "whole"

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
	var then brought
	now, ok := b.volumeNow(ctx, name, guest, f.ID)
	if !ok || atomicfile.ReadJSON(b.broughtPath(name), &then) != nil || then != now {
		v := dockerengine.Volume{
			Name: name, Labels: map[string]string{labelGuest: guest.Hash}, Target: guestDir, Last: whole,
			Archive: func() (io.Reader, error) { return guestArchive(guest.Path) },
		}
		if err := b.cli.Fill(ctx, v, image); err != nil {
			return "", failed(ctx, op, "its volume could not be filled", err)
		}
		// Without the note the next program looks again.
		if now, ok = b.volumeNow(ctx, name, guest, f.ID); ok && os.MkdirAll(filepath.Dir(b.broughtPath(name)), 0o700) == nil {
			_ = atomicfile.WriteJSON(b.broughtPath(name), now)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filled[name] = true
	return name, nil
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

// doubt forgets what is kept: a sandbox could not be started.
func (b *Backend) doubt(volume string) {
	b.proofs.Forget()
	_ = os.Remove(b.broughtPath(volume)) // mostly there is none
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.filled, volume)
}

// guestArchive returns the guest, and behind it the sign that it is whole.
func guestArchive(path string) (io.Reader, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		text []byte
		mode int64
	}{{bundle.GuestName, text, 0o755}, {whole, nil, 0o644}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)), Mode: f.mode}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return &buf, w.Close()
}
