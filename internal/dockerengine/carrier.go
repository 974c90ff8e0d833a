package dockerengine

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/ids"
)

// A carrier is a container that is never started. Through it files are brought to the engine, or read from an image,
// wherever the engine is. Its maker removes it; if that dies before, the next program does that finds it by its labels.
const (
	LabelCarrier = "dev.recluse.carrier" // a mark that no other carrier has
	LabelOwner   = "dev.recluse.owner"   // the program that has made it
)

const (
	holdWait  = 2 * time.Minute        // for another program that fills a volume; after it that one counts as dead
	holdPause = 100 * time.Millisecond // between two looks whether it has
)

// CarrierName returns a name for a carrier that no other has.
func CarrierName() string { return "recluse-carrier-" + ids.Hex(6) }

// CarrierOwner reads from a carrier's labels which program has made it. Without one none is known to be dead.
func CarrierOwner(labels map[string]string) (p backendkit.Process) {
	if json.Unmarshal([]byte(labels[LabelOwner]), &p) != nil {
		return backendkit.Process{}
	}
	return p
}

// Carrier makes a carrier, with labels on top of those of Options.
func (e *Engine) Carrier(
	ctx context.Context, name, image string, labels map[string]string, hc *container.HostConfig,
) (id string, remove func() error, err error) {
	own, err := json.Marshal(backendkit.Self())
	if err != nil {
		return "", nil, err
	}
	mark := ids.Hex(6)
	l := map[string]string{LabelCarrier: mark, LabelOwner: string(own)}
	maps.Copy(l, e.labels)
	maps.Copy(l, labels)
	// An entry point of our own: not every image has one, and the engine insists.
	config := &container.Config{Image: image, Entrypoint: []string{"/never-started"}, Labels: l}
	res, err := e.Create(ctx, client.ContainerCreateOptions{Name: name, Config: config, HostConfig: hc})
	clean := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanWait)
		defer cancel()
		return f(ctx)
	}
	if NameTaken(err) { // nothing was made
		return "", nil, err
	}
	if err != nil {
		return "", nil, errors.Join(err, clean(func(ctx context.Context) error { return e.removeMarked(ctx, mark) }))
	}
	return res.ID, func() error {
		return clean(func(ctx context.Context) error { return e.Remove(ctx, res.ID) })
	}, nil
}

// removeMarked removes the carrier with a mark, if it was made after all. Its name may be another's.
func (e *Engine) removeMarked(ctx context.Context, mark string) error {
	f := client.Filters{}.Add("label", LabelCarrier+"="+mark)
	res, err := e.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: f})
	for _, c := range res.Items {
		if c.Labels[LabelCarrier] == mark {
			err = errors.Join(err, e.Remove(ctx, c.ID))
		}
	}
	return err
}

// Volume is a named volume that is to hold files.
type Volume struct {
	Name   string
	Labels map[string]string
	Target string // where carriers mount it
	Last   string // name of the file that the archive has last: where it is, those before it are whole
	// Archive returns the files.
	Archive func() (io.Reader, error)
}

// Fill makes the volume, and puts the files into it unless they are there. Any image serves the carriers.
func (e *Engine) Fill(ctx context.Context, v Volume, image string) error {
	if _, err := e.VolumeCreate(ctx, client.VolumeCreateOptions{Name: v.Name, Labels: v.Labels}); err != nil && !VolumeExists(err) {
		return err
	}
	hc := &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
		{Type: mount.TypeVolume, Source: v.Name, Target: v.Target, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
	}}
	id, remove, err := e.Carrier(ctx, CarrierName(), image, nil, hc)
	if err != nil {
		return err
	}
	whole, err := e.isWhole(ctx, id, v)
	if err = errors.Join(err, remove()); err != nil || whole {
		return err
	}
	return e.write(ctx, v, image, hc)
}

// write writes the files into the volume. One program at a time does: a file that another has seen to be whole, and uses,
// must not be written once more.
func (e *Engine) write(ctx context.Context, v Volume, image string, hc *container.HostConfig) (err error) {
	id, remove, err := e.Hold(ctx, v.Name, image, hc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if whole, err := e.isWhole(ctx, id, v); err != nil || whole {
		return err
	}
	r, err := v.Archive()
	if err != nil {
		return err
	}
	_, err = e.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: v.Target, Content: r})
	return err
}

func (e *Engine) isWhole(ctx context.Context, carrier string, v Volume) (bool, error) {
	_, err := e.ContainerStatPath(ctx, carrier, client.ContainerStatPathOptions{Path: v.Target + "/" + v.Last})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// HolderName is the name of the one carrier through which a volume is written.
func HolderName(volume string) string { return "recluse-carrier-" + volume }

// Hold makes the one carrier through which a volume is written. Its name is the lock: while another program has it, Hold
// waits.
func (e *Engine) Hold(ctx context.Context, volume, image string, hc *container.HostConfig) (id string, remove func() error, err error) {
	last, end := "", time.Now().Add(holdWait)
	for {
		id, remove, err = e.Carrier(ctx, HolderName(volume), image, nil, hc)
		if !NameTaken(err) {
			return id, remove, err
		}
		holder, dead := e.Holder(ctx, volume)
		if holder != last { // each has its own time
			last, end = holder, time.Now().Add(holdWait)
		}
		late := time.Now().After(end)
		if holder == "" && late {
			return "", nil, err // a name that nobody has, and nobody gets
		}
		if dead || late {
			// By its id: another program that waits may have been quicker, and the name be that one's by now.
			if err := e.Remove(ctx, holder); err != nil {
				return "", nil, err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return "", nil, ctx.Err()
		case <-time.After(holdPause):
		}
	}
}

// Holder returns the carrier through which a volume is being written, and whether its program has died. None: "".
func (e *Engine) Holder(ctx context.Context, volume string) (id string, dead bool) {
	res, err := e.ContainerInspect(ctx, HolderName(volume), client.ContainerInspectOptions{})
	if err != nil || res.Container.Config == nil {
		return "", false
	}
	return res.Container.ID, CarrierOwner(res.Container.Config.Labels).Dead()
}

// ReadFile reads at most limit bytes of a file of an image. Without the file the error is errdefs.ErrNotFound.
func (e *Engine) ReadFile(ctx context.Context, image, path string, limit int64) (text []byte, err error) {
	id, remove, err := e.Carrier(ctx, CarrierName(), image, nil, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	res, err := e.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: path})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Content.Close() }()
	archive := tar.NewReader(res.Content)
	if _, err := archive.Next(); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(archive, limit))
}
