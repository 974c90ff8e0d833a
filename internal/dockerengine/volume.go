package dockerengine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

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
