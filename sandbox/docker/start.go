package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
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
		return nil, backend.NotSupported(Name, "use a directory as root file system", "make an image of it: tar -C DIR -c . | docker import - NAME")
	}
	if image.IsPath(spec.Image) {
		return nil, backend.NotSupported(Name, "use an image from a file", "docker load it, and name it as the engine does")
	}
	return b.start(ctx, spec, spec.Image, "")
}

// start makes a sandbox from an image, which begins with the files of a snapshot if the image is one's.
func (b *Backend) start(ctx context.Context, spec sandbox.Spec, image, snapshot string) (sandbox.Machine, error) {
	p, err := b.prepare(ctx, spec, cmp.Or(image, b.opts.Image))
	if err != nil {
		return nil, err
	}
	p.Restored = snapshot
	b.sweeper.Once(ctx)
	if err := b.own.MarkUsed(); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "start sandbox", Message: b.dir + " cannot be used", Err: err}
	}
	m, err := b.launch(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			b.doubt(p.volume)
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), dockerengine.CleanWait)
		defer cancel()
		return nil, errors.Join(failed(ctx, "start sandbox", "the container could not be started", err),
			b.cli.Remove(clean, cmp.Or(p.Container, containerName(p.ID))))
	}
	b.proofs.Renew()
	return m, nil
}

// prepare judges a spec and brings to the engine what its sandbox needs.
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
	p := &plan{facts: f, options: opts}
	if p.image, err = b.image(ctx, image); err != nil {
		return nil, err
	}
	if a := p.image.Architecture; a != "" && a != f.Arch {
		return nil, &v1.Error{
			Code: v1.CodeImageArch, Op: "start sandbox", Remedy: "use an image for " + f.Arch,
			Message: fmt.Sprintf("the image %s is for %s, and the engine's machine is %s", image, a, f.Arch),
		}
	}
	if p.User, err = b.user(ctx, f, spec, p.image.ID); err != nil {
		return nil, err
	}
	if p.oomScore, err = b.oomScore(f, opts); err != nil {
		return nil, err
	}
	guest, err := b.guestProgram(ctx, f.Arch)
	if err != nil {
		return nil, err
	}
	for _, v := range slices.Concat(b.opts.Volumes, spec.Volumes) {
		if err := b.giveVolume(ctx, v, p); err != nil {
			return nil, err
		}
	}
	p.Record = backendkit.NewRecord("d-", spec, guest.Hash)
	p.volume, err = b.guestVolume(ctx, guest, f, p.image.ID)
	return p, err
}

// giveVolume makes a new writable volume the user's own. Each volume is looked at once: a note says which was.
func (b *Backend) giveVolume(ctx context.Context, v Volume, p *plan) error {
	if !v.Writable {
		return nil
	}
	note := filepath.Join(b.dir, "volumes", v.Name+".json")
	err := b.cli.PrepareOnce(ctx, note, v.Name, nil, func() error {
		return b.cli.GiveVolume(ctx, v.Name, v.Path, p.image.ID, p.User.UID, p.User.GID)
	})
	return failed(ctx, "prepare volume "+v.Name, "its owner cannot be set", err)
}

// launch makes and starts the container of a plan. When it fails, the caller removes what there is.
func (b *Backend) launch(ctx context.Context, p *plan) (*machine, error) {
	if err := b.create(ctx, p); err != nil {
		return nil, err
	}
	if err := b.reserve(p.ID); err != nil {
		return nil, err
	}
	l := b.lookout(p.Container)
	cu := cleanup.Make(func() {
		l.forget()
		b.release(p.ID, nil)
	})
	defer cu.Clean()
	if _, err := b.cli.ContainerStart(ctx, p.Container, client.ContainerStartOptions{}); err != nil {
		return nil, startError(err)
	}
	if err := b.shown(ctx, p.record); err != nil {
		return nil, err
	}
	m, err := b.attach(ctx, p.record, containerName(p.ID), l)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return m, nil
}

// create makes the container of a plan. Its root is read-only, so a working directory that the image lacks is a file system in memory; whether it
// does can be seen only of a container, which is then made again.
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
	res, err := b.cli.Create(ctx, client.ContainerCreateOptions{Config: config, HostConfig: hc, Name: containerName(p.ID)})
	if err != nil {
		return err
	}
	p.Container = res.ID
	dir := path.Clean(p.Spec.Dir)
	if p.Spec.Dir == "" || p.WorkDir != "" || !hc.ReadonlyRootfs || backendkit.InMemory(dir) || backendkit.Below(dir, targets(*hc)...) {
		return nil
	}
	if _, err := b.cli.ContainerStatPath(ctx, p.Container, client.ContainerStatPathOptions{Path: dir}); !errdefs.IsNotFound(err) {
		return nil // a command that starts there reports what is wrong
	}
	if err := b.cli.Remove(ctx, p.Container); err != nil {
		return err
	}
	p.WorkDir = dir
	return b.create(ctx, p)
}

// startError names the reasons that the caller can change.
func startError(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "exec format error"):
		return &v1.Error{Code: v1.CodeImageArch, Op: "start sandbox", Message: "the guest is not for the engine's machine", Err: err}
	case strings.Contains(text, "no space left on device"):
		return &v1.Error{Code: v1.CodeDiskFull, Op: "start sandbox", Message: "the engine's disk is full", Err: err, Retry: true}
	}
	return err
}

// guestExec runs the guest's program beside the guest. Its environment lacks the configuration, which holds the token: code
// inside may be able to read it.
func guestExec(user v1.User, args ...string) client.ExecCreateOptions {
	return client.ExecCreateOptions{
		User: userArg(user), AttachStdout: true, AttachStderr: true, WorkingDir: "/",
		Env: []string{launch.ConfigEnv + "="}, Cmd: append([]string{guestDir + "/" + bundle.GuestName}, args...),
	}
}

// image makes sure that the engine has an image, and returns what is known of it.
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
			return img, failed(ctx, op, "the engine reports nothing about it", err)
		}
	}
	if b.opts.Pull == PullNever {
		return img, &v1.Error{
			Code: v1.CodeImageNotFound, Op: op, Message: "the engine does not have it, and nothing is to be pulled",
			Remedy: "docker pull " + ref + ", or build one from this machine with recluse image from-host",
		}
	}
	if err := b.cli.Pull(ctx, ref, b.opts.Progress); err != nil {
		return img, err
	}
	img, err = b.cli.ImageInspect(ctx, ref)
	return img, failed(ctx, op, "it was pulled, and is missing", err)
}

// ImportHost builds a small image out of this machine's own shell, tools and Python, where no registry can be
// reached, and hands it to the engine under a name.
func (b *Backend) ImportHost(ctx context.Context, name string) error {
	f, err := b.facts(ctx)
	if err != nil {
		return err
	}
	return failed(ctx, "build image "+name, "the engine does not take it", dockersetup.ImportHost(ctx, b.cli.Client, f.Arch, name))
}
