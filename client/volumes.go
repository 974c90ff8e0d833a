package client

import (
	"context"
	"crypto/rand"
	"net/url"
	"path"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// CreateVolume creates a volume, whose files outlive sessions. A session uses it by its spec.
func (c *Client) CreateVolume(ctx context.Context, v v1.NewVolume) (v1.VolumeInfo, error) {
	return callJSON[v1.VolumeInfo](ctx, c, post("create volume", "/v1/volumes", v).repeatable())
}

// Volumes lists the volumes of the tenant.
func (c *Client) Volumes(ctx context.Context) ([]v1.VolumeInfo, error) {
	r := get("list volumes", "/v1/volumes", nil)
	return collect(list(ctx, c, r, 0, func(p v1.VolumePage) ([]v1.VolumeInfo, string) { return p.Volumes, p.Next }))
}

// Volume describes a volume, and the sessions that use it.
func (c *Client) Volume(ctx context.Context, name string) (v1.VolumeInfo, error) {
	return callJSON[v1.VolumeInfo](ctx, c, get("show volume", "/v1/volumes/"+url.PathEscape(name), nil))
}

// DeleteVolume deletes a volume with its files. If a session uses it, the error has the code volume_busy.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	return c.call(ctx, remove("delete volume", "/v1/volumes/"+url.PathEscape(name)), nil)
}

// VolumeFiles is access to the files of a volume without a session of the caller's own: a temporary session has the
// volume. A writer that is not closed keeps other writers out for volumeIdle.
type VolumeFiles struct{ session *Session }

const (
	volumeDir  = "/volume"
	volumeIdle = time.Minute
)

// OpenVolume opens the files of a volume. The caller must call Close.
func (c *Client) OpenVolume(ctx context.Context, name string, writable bool) (*VolumeFiles, error) {
	v, err := c.Volume(ctx, name)
	if err != nil {
		return nil, err
	}
	s, _, err := c.Open(ctx, "volume-"+name+"-"+strings.ToLower(rand.Text()[:8]), v1.OpenOptions{
		New: true,
		Settings: v1.Settings{
			Backend: v.Backend,
			Spec:    &v1.Spec{Volumes: []v1.Volume{{Name: name, Path: volumeDir, Writable: writable}}},
			Policy:  v1.Policy{Idle: v1.Duration(volumeIdle), OnIdle: v1.IdleEnd},
		},
	})
	if err != nil {
		return nil, err
	}
	return &VolumeFiles{s}, nil
}

// Close ends the access.
func (f *VolumeFiles) Close(ctx context.Context) error {
	return f.session.End(context.WithoutCancel(ctx), "the copy has ended")
}

// Files returns the files of the volume. Paths start at its root and cannot leave it.
func (f *VolumeFiles) Files() v1.FileSystem { return f.session.Files().Below(volumeDir) }

// CopyIn is Session.CopyIn for the volume. dst starts at its root.
func (f *VolumeFiles) CopyIn(ctx context.Context, sources []string, dst string, o CopyOptions) (*Copied, error) {
	return f.session.CopyIn(ctx, sources, inVolume(dst), o)
}

// CopyOut is Session.CopyOut for the volume. The sources start at its root.
func (f *VolumeFiles) CopyOut(ctx context.Context, sources []string, dst string, o CopyOptions) (*Copied, error) {
	inside := make([]string, len(sources))
	for i, s := range sources {
		inside[i] = inVolume(s)
	}
	return f.session.CopyOut(ctx, inside, dst, o)
}

// inVolume returns the path inside of a path of a volume. A final slash or "/." keeps its meaning for copies.
func inVolume(name string) string {
	clean := path.Join(volumeDir, path.Clean("/"+name))
	switch {
	case strings.HasSuffix(name, "/."):
		clean += "/."
	case strings.HasSuffix(name, "/") || clean == volumeDir:
		clean += "/"
	}
	return clean
}
