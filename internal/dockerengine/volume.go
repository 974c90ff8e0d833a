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
	holdWait  = 2 * time.Minute        // how long to wait for another program that fills a volume; then it counts as dead
	holdPause = 100 * time.Millisecond // pause between checks whether it has finished
)

// whole is the name of an empty file, which is written last to a volume. If it exists, the program in the volume is
// complete.
const whole = "whole"

// Volume is a named volume that holds a program.
type Volume struct {
	Name    string
	Labels  map[string]string
	Target  string // where carriers mount it
	Program string // name of the program in the volume
	Source  string // path of the program on this machine
}

// Fill creates the volume, and copies the program into it unless it is already there. Any image can be used for the
// carriers.
func (e *Engine) Fill(ctx context.Context, v Volume, image string) error {
	_, err := e.VolumeCreate(ctx, client.VolumeCreateOptions{Name: v.Name, Labels: v.Labels})
	if err != nil && !VolumeExists(err) {
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

// write writes the program into the volume. Only one of our programs may do so at a time: a file that another program
// has found to be complete, and uses, must not be written again.
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

// archive returns a tar archive of the program, followed by the file that marks it as complete.
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
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)), Mode: f.mode}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return &buf, w.Close()
}

// HolderName returns the name of the only carrier through which a volume may be written.
func HolderName(volume string) string { return "recluse-carrier-" + volume }

// Hold creates the only carrier through which a volume may be written. Its name is the lock: while another program
// has a carrier of this name, Hold waits.
func (e *Engine) Hold(
	ctx context.Context,
	volume, image string,
	hc *container.HostConfig,
) (id string, remove func() error, err error) {
	last, end := "", time.Now().Add(holdWait)
	for {
		id, remove, err = e.Carrier(ctx, HolderName(volume), image, nil, hc)
		if !NameTaken(err) {
			return id, remove, err
		}
		holder, dead := e.Holder(ctx, volume)
		if holder != last { // the time limit is for each holder
			last, end = holder, time.Now().Add(holdWait)
		}
		late := time.Now().After(end)
		if holder == "" && late {
			return "", nil, err // the name is taken, but no container has it
		}
		if dead || late {
			// Remove it by its ID: another waiting program may have been faster, and the name may now belong to its
			// carrier.
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

// Holder returns the ID of the carrier through which a volume is being written, and whether the program that created
// it is dead. It returns "" if there is no such carrier.
func (e *Engine) Holder(ctx context.Context, volume string) (id string, dead bool) {
	res, err := e.ContainerInspect(ctx, HolderName(volume), client.ContainerInspectOptions{})
	if err != nil || res.Container.Config == nil {
		return "", false
	}
	return res.Container.ID, CarrierOwner(res.Container.Config.Labels).Dead()
}

// volumeNote identifies a volume that was prepared.
type volumeNote struct {
	Engine  string `json:"engine"`
	Created string `json:"created"` // creation time, which distinguishes volumes of the same name
}

// PrepareOnce calls prepare for a volume, unless the file note on this machine records that any program has prepared
// this volume of this engine. A volume that lacks one of the labels is prepared again.
func (e *Engine) PrepareOnce(
	ctx context.Context,
	note, volume string,
	labels map[string]string,
	prepare func() error,
) error {
	var then volumeNote
	if now, ok := e.noteOf(ctx, volume, labels); ok && atomicfile.ReadJSON(note, &then) == nil && then == now {
		return nil
	}
	if err := prepare(); err != nil {
		return err
	}
	// Without the note, the next program prepares the volume again.
	if now, ok := e.noteOf(ctx, volume, labels); ok && os.MkdirAll(filepath.Dir(note), 0o700) == nil {
		_ = atomicfile.WriteJSON(note, now)
	}
	return nil
}

// noteOf returns the note for a volume; ok is false if the volume is missing or has other labels.
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

// GiveVolume makes a user the owner of a named volume if the volume is new: the engine creates volumes that belong to
// root, and other users cannot write to them. A volume that contains files, its own or those of the image at the same
// path, or has another owner, stays unchanged. A missing volume is created.
func (e *Engine) GiveVolume(ctx context.Context, volume, target, image string, uid, gid int) (err error) {
	hc := &container.HostConfig{
		NetworkMode: "none",
		Mounts:      []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: target}},
	}
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
	// Extract it from the parent directory, because the engine does not change the directory into which it extracts.
	h := &tar.Header{
		Typeflag: tar.TypeDir,
		Name:     path.Base(target) + "/",
		Mode:     root.Mode,
		Uid:      uid,
		Gid:      gid,
		ModTime:  root.ModTime,
	}
	if err := errors.Join(w.WriteHeader(h), w.Close()); err != nil {
		return err
	}
	_, err = e.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: path.Dir(target), Content: &buf})
	return err
}

// emptyDir returns the tar header of a directory in a container, or nil if the directory is not empty.
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
