package dockerengine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/atomicfile"
)

const (
	holdWait  = 2 * time.Minute        // for another program that fills a volume; after it that one counts as dead
	holdPause = 100 * time.Millisecond // between two looks whether it has
)

// whole is an empty file that is the last in a volume: where it is, the program before it is whole.
const whole = "whole"

// Volume is a named volume that is to hold a program.
type Volume struct {
	Name    string
	Labels  map[string]string
	Target  string // where carriers mount it
	Program string // name of the program in the volume
	Source  string // path of the program on this machine
}

// Fill makes the volume, and puts the program into it unless it is there. Any image serves the carriers.
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
	filled, err := e.isWhole(ctx, id, v)
	if err = errors.Join(err, remove()); err != nil || filled {
		return err
	}
	return e.write(ctx, v, image, hc)
}

// write writes the program into the volume. One of our programs at a time does: a file that another has seen to be whole,
// and uses, must not be written once more.
func (e *Engine) write(ctx context.Context, v Volume, image string, hc *container.HostConfig) (err error) {
	id, remove, err := e.Hold(ctx, v.Name, image, hc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if filled, err := e.isWhole(ctx, id, v); err != nil || filled {
		return err
	}
	r, err := v.archive()
	if err != nil {
		return err
	}
	_, err = e.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: v.Target, Content: r})
	return err
}

func (e *Engine) isWhole(ctx context.Context, carrier string, v Volume) (bool, error) {
	_, err := e.ContainerStatPath(ctx, carrier, client.ContainerStatPathOptions{Path: v.Target + "/" + whole})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// archive returns the program, and behind it the sign that it is whole.
func (v Volume) archive() (io.Reader, error) {
	text, err := os.ReadFile(v.Source)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		text []byte
		mode int64
	}{{v.Program, text, 0o755}, {whole, nil, 0o644}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)), Mode: f.mode}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return &buf, w.Close()
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

// volumeNote is a volume that was seen to be prepared.
type volumeNote struct {
	Engine  string `json:"engine"`
	Created string `json:"created"` // the volume; one of the same name that was made since is another
}

// PrepareOnce calls prepare for a volume unless the note, a file of this machine, says that this was done: with this
// very volume of this engine, and by any program. A volume that lacks one of the labels is prepared again.
func (e *Engine) PrepareOnce(ctx context.Context, note, volume string, labels map[string]string, prepare func() error) error {
	var then volumeNote
	if now, ok := e.noteOf(ctx, volume, labels); ok && atomicfile.ReadJSON(note, &then) == nil && then == now {
		return nil
	}
	if err := prepare(); err != nil {
		return err
	}
	// Without the note the next program looks again.
	if now, ok := e.noteOf(ctx, volume, labels); ok && os.MkdirAll(filepath.Dir(note), 0o700) == nil {
		_ = atomicfile.WriteJSON(note, now)
	}
	return nil
}

// noteOf returns what would be noted of a volume; ok is false if the engine does not have it, or has another one.
func (e *Engine) noteOf(ctx context.Context, volume string, labels map[string]string) (now volumeNote, ok bool) {
	f, err := e.Facts(ctx)
	if err != nil {
		return now, false
	}
	res, err := e.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if err != nil || res.Volume.CreatedAt == "" {
		return now, false
	}
	for name, value := range labels {
		if res.Volume.Labels[name] != value {
			return now, false
		}
	}
	return volumeNote{Engine: f.ID, Created: res.Volume.CreatedAt}, true
}

// GiveVolume gives a named volume to a user if it is new: the engine makes volumes that belong to root, and nobody else can write to them. A volume
// that has files, of its own or of the image at the same place, or another owner, stays as it is. The volume is made if it is missing.
func (e *Engine) GiveVolume(ctx context.Context, volume, target, image string, uid, gid int) (err error) {
	hc := &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: target}}}
	id, remove, err := e.Carrier(ctx, CarrierName(), image, nil, hc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	root, err := e.emptyDir(ctx, id, target)
	if err != nil || root == nil || root.Uid != 0 {
		return err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	// Unpacked beside itself, because the engine leaves the directory alone into which it unpacks.
	h := &tar.Header{Typeflag: tar.TypeDir, Name: path.Base(target) + "/", Mode: root.Mode, Uid: uid, Gid: gid, ModTime: root.ModTime}
	if err := errors.Join(w.WriteHeader(h), w.Close()); err != nil {
		return err
	}
	_, err = e.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: path.Dir(target), Content: &buf})
	return err
}

// emptyDir returns what is known of a directory in a container, or nil if there is something in it.
func (e *Engine) emptyDir(ctx context.Context, id, dir string) (*tar.Header, error) {
	res, err := e.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: dir})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Content.Close() }()
	archive := tar.NewReader(res.Content)
	root, err := archive.Next()
	if err != nil {
		return nil, err
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		return nil, err
	}
	return root, nil
}
