//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
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
		return nil, fmt.Errorf("%s holds no directory", source)
	}
	return buildRoot(ctx, cache, copies, binds)
}

// policy says what of this host may be seen inside: besides the usual, not our own directories. Sandboxes' tokens and memory lie
// in one, and the engine is executed from the other.
func (b *Backend) policy() *hostpath.Policy {
	p := hostpath.Default()
	p.Refuse(filepath.Dir(b.dir), "recluse's sandboxes and snapshots")
	p.Refuse(b.cache, "recluse's programs and images")
	return p
}

func mountRefused(path string, err error) error {
	e := &sandbox.Error{Code: sandbox.CodeMountRefused, Op: "mount " + path, Message: "this path is not shown to a sandbox", Err: err, Remedy: "mount a directory that holds only what the code needs"}
	if errors.Is(err, fs.ErrNotExist) {
		e.Message, e.Remedy = "no such directory", ""
	}
	return e
}

// judgeAgain refuses a record whose places on the host no longer are what was judged when its first sandbox was made.
func (b *Backend) judgeAgain(r *record) error {
	if len(r.Spec.Mounts) == 0 && r.Spec.RootFS == "" {
		return nil // nothing of the caller's choice
	}
	policy := b.policy()
	same := func(path string) error {
		resolved, err := policy.Judge(path)
		if err == nil && resolved != path {
			err = fmt.Errorf("%s has become %s", path, resolved)
		}
		if err != nil {
			return mountRefused(path, err)
		}
		return nil
	}
	for _, m := range r.Spec.Mounts {
		if err := same(m.Host); err != nil {
			return err
		}
	}
	if r.Spec.RootFS == "" {
		return nil
	}
	judged := ""
	for _, bound := range r.Binds { // the entries of the caller's root
		if dir := filepath.Dir(bound.Source); dir != judged {
			if err := same(dir); err != nil {
				return err
			}
			judged = dir
		}
		info, err := os.Lstat(bound.Source)
		if err == nil && !info.IsDir() {
			err = errors.New("it is no directory any more")
		}
		if err != nil {
			return mountRefused(bound.Source, err)
		}
	}
	return nil
}

// judgeMounts resolves the host's directories that the caller wants inside, and refuses those that must not be seen there.
func (b *Backend) judgeMounts(ctx context.Context, p *plan) error {
	if len(p.spec.Mounts) == 0 {
		return nil
	}
	policy := b.policy()
	p.spec.Mounts = slices.Clone(p.spec.Mounts)
	for i, m := range p.spec.Mounts {
		resolved, err := policy.Judge(m.Host)
		if err != nil {
			return mountRefused(m.Host, err)
		}
		p.spec.Mounts[i].Host = resolved
	}
	// The root is read-only, so the places to mount at must be in it from the start.
	places := slices.Clone(p.binds)
	for _, m := range p.spec.Mounts {
		places = append(places, bind{Target: m.Path})
	}
	r, err := buildRoot(ctx, filepath.Join(b.dir, "roots"), p.entries, places)
	if err != nil {
		return rootError("the root with its mounts", err)
	}
	p.root = r.dir
	return nil
}

// imageCodes maps the kinds of image failures to ours.
var imageCodes = map[image.Kind]sandbox.Code{
	image.NotFound: sandbox.CodeImageNotFound, image.Corrupt: sandbox.CodeImageCorrupt, image.Arch: sandbox.CodeImageArch,
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
	out := &sandbox.Error{Code: sandbox.CodeInternal, Op: "get image " + ref, Err: err}
	if e, ok := errors.AsType[*image.Error](err); ok {
		if c, known := imageCodes[e.Kind]; known {
			out.Code = c
		}
		out.Retry = e.Kind == image.Unreachable
	}
	return nil, out
}
