//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// ownTops are the top-level names that every sandbox has as its own, whatever its root file system holds there.
var ownTops = []string{"proc", "sys", "dev", "tmp", "run", "home", ".recluse"}

// buildTreeRoot gives the root file system made of a directory of the host, e.g. an unpacked image: our skeleton, with the directory's
// top-level entries bound read-only onto it. The directory itself is never written to, also not for mount points.
func buildTreeRoot(ctx context.Context, cache, source string) (*hostRoot, error) {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil, err
	}
	var copies []hostEntry
	var binds []bind
	for _, e := range entries {
		name := e.Name()
		if slices.Contains(ownTops, name) {
			continue
		}
		path := filepath.Join(source, name)
		switch {
		case e.IsDir():
			binds = append(binds, bind{Source: path, Target: "/" + name})
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return nil, err
			}
			copies = append(copies, hostEntry{path: path, target: name, mode: fs.ModeSymlink, link: link})
		}
	}
	if len(binds) == 0 {
		return nil, errors.New("it holds no directory")
	}
	return buildRoot(ctx, cache, copies, binds)
}

// policy says what of this host may be seen inside: besides the usual, not our own directories. Sandboxes' tokens and memory lie
// in one, and the engine is executed from the other.
func (b *Backend) policy() *hostpath.Policy {
	p := hostpath.Default()
	p.Allow = b.opts.AllowMounts
	p.Refuse(filepath.Dir(b.dir), "recluse's sandboxes and snapshots")
	p.Refuse(b.cache, "recluse's programs and images")
	return p
}

// judged is what of the host a sandbox is to show by the caller's choice: a handle on each place, by where it appears inside.
type judged map[string]*os.File

func (j judged) close() {
	for _, f := range j {
		_ = f.Close() // only a handle
	}
}

// judgeAgain refuses a record whose places on the host no longer are what was judged when its first sandbox was made.
func (b *Backend) judgeAgain(r *record) (_ judged, err error) {
	if len(r.Spec.Mounts) == 0 && r.Spec.RootFS == "" {
		return nil, nil // nothing of the caller's choice
	}
	j := judged{}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	policy := b.policy()
	same := func(path string) (*os.File, error) {
		f, resolved, err := policy.Open(path)
		if err != nil {
			return nil, hostpath.MountError(path, err)
		}
		if resolved != path {
			_ = f.Close()
			return nil, hostpath.MountError(path, fmt.Errorf("%s has become %s", path, resolved))
		}
		return f, nil
	}
	if r.Spec.RootFS != "" {
		top := ""
		for _, bound := range r.Binds { // the entries of the caller's root
			if dir := filepath.Dir(bound.Source); dir != top {
				f, err := same(dir)
				if err != nil {
					return nil, err
				}
				_ = f.Close()
				top = dir
			}
			fd, err := unix.Open(bound.Source, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, hostpath.MountError(bound.Source, err)
			}
			j[bound.Target] = os.NewFile(uintptr(fd), bound.Source)
		}
	}
	for _, m := range r.Spec.Mounts {
		f, err := same(m.Host)
		if err != nil {
			return nil, err
		}
		if hidden := j[m.Path]; hidden != nil {
			_ = hidden.Close()
		}
		j[m.Path] = f
	}
	return j, nil
}

// shown makes sure that the engine has mounted what was judged: it takes names, and somebody may have been quicker. The gofer's root is
// what the sandbox sees.
func (j judged) shown(e *engine, id string) error {
	if len(j) == 0 {
		return nil
	}
	st, err := e.state(id)
	if err != nil {
		return startError(err)
	}
	for target, f := range j {
		want, err := f.Stat()
		if err != nil {
			return hostpath.MountError(f.Name(), err)
		}
		got, err := os.Stat(filepath.Join("/proc", strconv.Itoa(st.GoferPid), "root", target))
		if err == nil && !os.SameFile(want, got) {
			err = errors.New("something else was put in its place while the sandbox started")
		}
		if err != nil {
			return hostpath.MountError(f.Name(), err)
		}
	}
	return nil
}

// judgeMounts resolves the host's directories that the caller wants inside, and refuses those that must not be seen there.
func (b *Backend) judgeMounts(ctx context.Context, p *plan) error {
	if len(p.spec.Mounts) == 0 {
		return nil
	}
	for _, m := range p.spec.Mounts {
		if m.Writable && b.asUser() {
			// A new file would have to belong to the user inside, and an ordinary user's namespace knows only one.
			return backend.NotSupported(Name, "mount "+m.Host+" writable",
				"without root mounts are read-only: copy files out instead, or run as root")
		}
	}
	var err error
	if p.spec.Mounts, err = b.policy().Resolve(p.spec.Mounts); err != nil {
		return err
	}
	// The root is read-only, so the places to mount at must be in it from the start.
	places := slices.Clone(p.binds)
	for _, m := range p.spec.Mounts {
		places = append(places, bind{Target: m.Path})
	}
	r, err := buildRoot(ctx, b.roots(), p.entries, places)
	if err != nil {
		return rootError("the root with its mounts", "", err)
	}
	p.dir = r.dir
	return nil
}

// imageCodes maps the kinds of image failures to ours.
var imageCodes = map[image.Kind]sandbox.Code{
	image.NotFound: sandbox.CodeImageNotFound, image.Denied: sandbox.CodeImageDenied, image.Corrupt: sandbox.CodeImageCorrupt, image.Arch: sandbox.CodeImageArch,
	image.Unreachable: sandbox.CodeImageUnreachable, image.TooLarge: sandbox.CodeTooLarge, image.Invalid: sandbox.CodeInvalidSpec,
	image.NoSpace: sandbox.CodeDiskFull,
}

// image gets and unpacks an image, once.
func (b *Backend) image(ctx context.Context, ref string) (*image.Image, error) {
	opts := image.Options{}
	if b.opts.Progress != nil {
		opts.Progress = func(p image.Progress) { b.opts.Progress("image "+ref+": "+string(p.Phase), p.Bytes, p.Total) }
	}
	img, err := b.images.Get(ctx, ref, opts)
	if err == nil {
		return img, nil
	}
	if ctx.Err() != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeCancelled, Op: "get image", Message: "given up", Err: err}
	}
	return nil, imageError(ref, err)
}

// imageError says what the image's own error says, under a code of ours.
func imageError(ref string, err error) error {
	e, ok := errors.AsType[*image.Error](err)
	if !ok {
		e = &image.Error{Message: "it could not be unpacked", Err: err}
	}
	return &sandbox.Error{
		Code: cmp.Or(imageCodes[e.Kind], sandbox.CodeInternal), Op: "get image " + ref,
		Message: e.Message, Remedy: e.Remedy, Retry: e.Kind == image.Unreachable, Err: e.Err,
	}
}
