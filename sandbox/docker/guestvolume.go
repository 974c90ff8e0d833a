package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox"
)

// whole is the name of an empty file that is the last to come into a guest's volume: where it is, the guest before it is whole.
const whole = "whole"

// guestProgram finds the guest for the engine's machine, and what names its version.
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
		return bundle.Program{}, &sandbox.Error{Code: sandbox.CodeEngineMissing, Op: "find the guest", Message: "it cannot be read", Err: err}
	}
	return bundle.Program{Path: path, Hash: hash(text)}, nil
}

// guestVolume gives the name of the volume that holds the guest. It is looked at once in a program's life, and filled if it is not whole.
// Any image serves the container through which that is done: it is never started.
func (b *Backend) guestVolume(ctx context.Context, guest bundle.Program, f *facts, image string) (string, error) {
	name := fmt.Sprintf("recluse-guest-%.16s-%s", guest.Hash, f.arch)
	const op = "bring the guest to the engine"
	select { // not a mutex: whoever gives up need not wait for the one who is at it
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
	if !b.broughtBefore(ctx, name, guest, f.id) {
		if err := b.fill(ctx, name, guest, image); err != nil {
			return "", failed(ctx, op, "its volume could not be filled", err)
		}
		b.keepBrought(ctx, name, guest, f.id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filled[name] = true
	return name, nil
}

func (b *Backend) fill(ctx context.Context, name string, guest bundle.Program, image string) error {
	if _, err := b.cli.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: map[string]string{labelGuest: guest.Hash}}); err != nil && !madeByAnother(err) {
		return err
	}
	hc := &container.HostConfig{
		NetworkMode: "none",
		Mounts:      []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: guestDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}},
	}
	id, remove, err := b.carrier(ctx, carrierName(), image, nil, hc)
	if err != nil {
		return err
	}
	there, err := b.isWhole(ctx, id)
	if err = errors.Join(err, remove()); err != nil || there {
		return err
	}
	return b.bring(ctx, name, guest, image, hc)
}

// bring writes the guest into its volume. One program at a time does: a guest that another has seen to be whole, and runs, must not be written
// once more.
func (b *Backend) bring(ctx context.Context, volume string, guest bundle.Program, image string, hc *container.HostConfig) (err error) {
	id, remove, err := b.hold(ctx, volume, image, hc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if there, err := b.isWhole(ctx, id); err != nil || there {
		return err
	}
	r, err := guestArchive(guest.Path)
	if err != nil {
		return err
	}
	_, err = b.cli.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: guestDir, Content: r})
	return err
}

func (b *Backend) isWhole(ctx context.Context, carrier string) (bool, error) {
	_, err := b.cli.ContainerStatPath(ctx, carrier, client.ContainerStatPathOptions{Path: guestDir + "/" + whole})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// hold makes the one carrier of a volume through which it is written. Its name is the lock: while another program has it, we wait.
func (b *Backend) hold(ctx context.Context, volume, image string, hc *container.HostConfig) (id string, remove func() error, err error) {
	name := "recluse-carrier-" + volume
	last, end := "", time.Now().Add(fillWait)
	for {
		id, remove, err = b.carrier(ctx, name, image, nil, hc)
		if !taken(err) {
			return id, remove, err
		}
		holder, dead := b.holder(ctx, name)
		if holder != last { // each has its own time
			last, end = holder, time.Now().Add(fillWait)
		}
		late := time.Now().After(end)
		if holder == "" && late {
			return "", nil, err // a name that nobody has, and nobody gets
		}
		if dead || late {
			// What we have seen, and not what is called so by now: another who waits may have been quicker, and the name be his.
			if err := b.remove(ctx, holder); err != nil {
				return "", nil, err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return "", nil, ctx.Err()
		case <-time.After(fillPause):
		}
	}
}

// holder gives the container that has a carrier's name, and whether its program has died. None: "".
func (b *Backend) holder(ctx context.Context, carrier string) (id string, dead bool) {
	res, err := b.cli.ContainerInspect(ctx, carrier, client.ContainerInspectOptions{})
	if err != nil || res.Container.Config == nil {
		return "", false
	}
	return res.Container.ID, ownerOf(res.Container.Config.Labels).dead()
}

func carrierName() string { return "recluse-carrier-" + randomHex(6) }

// carrier makes a container that is never started, through which files are brought to the engine. The caller removes it; should it die before,
// the next program's sweep does.
func (b *Backend) carrier(ctx context.Context, name, image string, labels map[string]string, hc *container.HostConfig) (id string, remove func() error, err error) {
	own, err := json.Marshal(self())
	if err != nil {
		return "", nil, err
	}
	mark := randomHex(6)
	// The image may be a sandbox's, with its labels.
	l := map[string]string{labelInstance: b.instance, labelCarrier: mark, labelOwner: string(own), labelSandbox: ""}
	maps.Copy(l, labels)
	// An entry point of our own: not every image has one, and the engine insists.
	res, err := b.create(ctx, client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: image, Entrypoint: []string{guestDir + "/" + bundle.GuestName}, Labels: l}, HostConfig: hc,
	})
	clean := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
		defer cancel()
		return f(ctx)
	}
	if taken(err) { // nothing was made
		return "", nil, err
	}
	if err != nil {
		return "", nil, errors.Join(err, clean(func(ctx context.Context) error { return b.removeMarked(ctx, mark) }))
	}
	return res.ID, func() error {
		return clean(func(ctx context.Context) error { return b.remove(ctx, res.ID) })
	}, nil
}

// removeMarked removes the carrier with a mark, if it was made after all. Its name may be another's.
func (b *Backend) removeMarked(ctx context.Context, mark string) error {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter(labelCarrier + "=" + mark)})
	for _, c := range res.Items {
		if c.Labels[labelCarrier] == mark {
			err = errors.Join(err, b.remove(ctx, c.ID))
		}
	}
	return err
}

// guestArchive is the guest, and behind it the sign that it is whole.
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
