package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/dockersetup"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	if spec.RootFS != "" {
		return nil, backend.NotSupported(
			Name,
			"use a directory as root file system",
			"import it as an image: tar -C DIR -c . | docker import - NAME",
		)
	}
	if image.IsPath(spec.Image) {
		return nil, backend.NotSupported(
			Name,
			"use an image from a file",
			"load it with docker load, and use the name that docker prints",
		)
	}
	return b.start(ctx, spec, spec.Image, "", false)
}

// start makes a sandbox from an image. snapshot is the ID of the snapshot that the image belongs to, or empty; writable
// means that it is a snapshot of a writable root.
func (b *Backend) start(
	ctx context.Context, spec sandbox.Spec, image, snapshot string, writable bool,
) (sandbox.Machine, error) {
	p, err := b.prepare(ctx, spec, cmp.Or(image, b.opts.Image))
	if err != nil {
		return nil, err
	}
	p.Restored, p.fromWritable = snapshot, writable
	if err := checkRoot(p, b.storage(ctx, p.facts)); err != nil {
		return nil, err
	}
	b.sweeper.Once(ctx)
	if err := b.own.MarkUsed(); err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "start sandbox",
			Message: "cannot use the directory " + b.dir,
			Err:     err,
		}
	}
	if err := b.takeVolumes(ctx, p); err != nil {
		return nil, err
	}
	m, err := b.launch(ctx, p)
	if err != nil {
		b.releaseVolumes(p.record)
		if ctx.Err() == nil {
			b.dropCached(p.volume)
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), dockerengine.CleanWait)
		defer cancel()
		return nil, errors.Join(failed(ctx, "start sandbox", "the container could not be started", err),
			b.cli.Remove(clean, cmp.Or(p.Container, containerName(p.ID))))
	}
	b.proofs.Renew()
	return m.withNetwork(), nil
}

// prepare checks a spec, and makes sure that the Docker engine has everything that its sandbox needs.
func (b *Backend) prepare(ctx context.Context, spec sandbox.Spec, image string) (*plan, error) {
	if err := b.judgeMounts(&spec); err != nil {
		return nil, err
	}
	opts, err := specOptions(spec)
	if err != nil {
		return nil, err
	}
	if err := b.judgeHostConfig(opts); err != nil {
		return nil, err
	}
	f, err := b.facts(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.consent(f); err != nil {
		return nil, err
	}
	p := &plan{facts: f, options: opts, filtered: b.opts.filtered()}
	if p.image, err = b.image(ctx, image); err != nil {
		return nil, err
	}
	if a := p.image.Architecture; a != "" && a != f.Arch {
		return nil, &v1.Error{
			Code:    v1.CodeImageArch,
			Op:      "start sandbox",
			Remedy:  "use an image for " + f.Arch,
			Message: fmt.Sprintf("the image %s is for %s, but the Docker engine's machine is %s", image, a, f.Arch),
		}
	}
	onDisk := b.onDisk(ctx, f, spec)
	if onDisk && spec.User == "" {
		p.User = b.imageUser(ctx, p.image)
	} else if p.User, err = b.user(ctx, f, spec, p.image.ID); err != nil {
		return nil, err
	}
	if p.oomScore, err = b.oomScore(f, opts); err != nil {
		return nil, err
	}
	guest, err := b.guestProgram(ctx, f.Arch)
	if err != nil {
		return nil, err
	}
	if p.volumes, err = b.engineVolumes(ctx, spec.Volumes); err != nil {
		return nil, err
	}
	for _, v := range p.volumes {
		if err := b.chownVolume(ctx, v, p); err != nil {
			return nil, err
		}
	}
	p.Record = backendkit.NewRecord("d-", spec, guest.Hash)
	p.Writable, p.limited = onDisk, onDisk && b.storage(ctx, f).limited
	p.volume, err = b.guestVolume(ctx, guest, f, p.image.ID)
	return p, err
}

// chownVolume makes the user the owner of a new writable volume. A note on this machine records that a volume was
// checked, so each volume is checked only once.
func (b *Backend) chownVolume(ctx context.Context, v Volume, p *plan) error {
	if !v.Writable {
		return nil
	}
	err := b.cli.PrepareOnce(ctx, b.ownerNote(v.Name), v.Name, nil, func() error {
		return b.cli.GiveVolume(ctx, v.Name, v.Path, p.image.ID, p.User.UID, p.User.GID)
	})
	return failed(ctx, "prepare volume "+v.Name, "cannot set the owner", err)
}

// ownerNote returns the path of the file that records that the owner of a volume was checked.
func (b *Backend) ownerNote(volume string) string {
	return filepath.Join(b.dir, "volumes", volume+".json")
}

// launch creates and starts the container of a plan. If it fails, the caller removes the container.
func (b *Backend) launch(ctx context.Context, p *plan) (*machine, error) {
	if err := b.create(ctx, p); err != nil {
		return nil, err
	}
	if err := b.reserve(p.ID); err != nil {
		return nil, err
	}
	l := b.beginWatch(p.Container)
	cu := cleanup.Make(func() {
		l.forget()
		b.release(p.ID, nil)
	})
	defer cu.Clean()
	if _, err := b.cli.ContainerStart(ctx, p.Container, client.ContainerStartOptions{}); err != nil {
		return nil, startError(err)
	}
	if err := b.verifyMounts(ctx, p.record); err != nil {
		return nil, err
	}
	m, err := b.attach(ctx, p.record, containerName(p.ID), l)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return m, nil
}

// create creates the container of a plan. If its root is read-only, a working directory that the image lacks must be a
// tmpfs. Only an existing container shows whether the image has the directory. If it does not, the container is
// removed and created again.
func (b *Backend) create(ctx context.Context, p *plan) error {
	labels, err := p.labels(b.instance, b.dir)
	if err != nil {
		return err
	}
	hc, err := b.profile(p)
	if err != nil {
		return err
	}
	config, err := p.containerConfig(labels)
	if err != nil {
		return err
	}
	res, err := b.cli.Create(ctx, client.ContainerCreateOptions{
		Config:     config,
		HostConfig: hc,
		Name:       containerName(p.ID),
	})
	if err != nil {
		return err
	}
	p.Container = res.ID
	if p.Writable {
		return b.prepareRoot(ctx, p, hc)
	}
	dir := path.Clean(p.Spec.Dir)
	if p.Spec.Dir == "" || p.WorkDir != "" || !hc.ReadonlyRootfs || backendkit.InMemory(dir) ||
		backendkit.Below(dir, targets(*hc)...) {
		return nil
	}
	_, err = b.cli.ContainerStatPath(ctx, p.Container, client.ContainerStatPathOptions{Path: dir})
	if !errdefs.IsNotFound(err) {
		return nil // a command that starts there reports the error
	}
	if err := b.cli.Remove(ctx, p.Container); err != nil {
		return err
	}
	p.WorkDir = dir
	return b.create(ctx, p)
}

// startError adds codes to errors that the caller can correct.
func startError(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "exec format error"):
		return &v1.Error{
			Code:    v1.CodeImageArch,
			Op:      "start sandbox",
			Message: "the guest's binary is for another architecture than the Docker engine's machine",
			Err:     err,
		}
	case strings.Contains(text, "no space left on device"):
		return &v1.Error{
			Code:    v1.CodeDiskFull,
			Op:      "start sandbox",
			Message: "the disk of the Docker engine is full",
			Err:     err,
			Retry:   true,
		}
	}
	return err
}

// guestExec returns the options of an exec of the guest's program beside the guest. Its environment lacks the guest's
// configuration, because code in the sandbox may be able to read it, and it contains the token.
func guestExec(user v1.User, args ...string) client.ExecCreateOptions {
	return client.ExecCreateOptions{
		User:         userArg(user),
		AttachStdout: true,
		AttachStderr: true,
		WorkingDir:   "/",
		Env:          []string{launch.ConfigEnv + "="},
		Cmd:          append([]string{guestDir + "/" + bundle.GuestName}, args...),
	}
}

// image makes sure that the Docker engine has an image, and returns its description.
func (b *Backend) image(ctx context.Context, ref string) (img client.ImageInspectResult, err error) {
	op := "get image " + ref
	if err := dockerengine.CheckReference(op, ref); err != nil {
		return img, err
	}
	if b.opts.Pull != PullAlways {
		img, err := b.cli.ImageInspect(ctx, ref)
		if err == nil {
			return img, nil
		}
		if !errdefs.IsNotFound(err) {
			return img, failed(ctx, op, "the Docker engine cannot inspect the image", err)
		}
	}
	if b.opts.Pull == PullNever {
		return img, &v1.Error{
			Code:    v1.CodeImageNotFound,
			Op:      op,
			Message: "the Docker engine does not have the image, and the pull policy is never",
			Remedy:  "docker pull " + ref + ", or build an image with recluse image from-host",
		}
	}
	if err := b.cli.Pull(ctx, ref, b.opts.Progress); err != nil {
		return img, err
	}
	img, err = b.cli.ImageInspect(ctx, ref)
	return img, failed(ctx, op, "the image is missing although it was pulled", err)
}

// ImportHost builds a small image from the shell, tools and Python of this machine, and imports it into the Docker
// engine under a name. It is for machines that cannot reach a registry.
func (b *Backend) ImportHost(ctx context.Context, name string) error {
	f, err := b.facts(ctx)
	if err != nil {
		return err
	}
	return failed(
		ctx,
		"build image "+name,
		"the Docker engine cannot import the image",
		dockersetup.ImportHost(ctx, b.cli.Client, f.Arch, name),
	)
}
