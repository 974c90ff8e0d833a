package main

import (
	"context"
	"runtime"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/docker"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/local"
)

// builtin are the backends that are linked in.
var builtin = []struct {
	name string
	make func(context.Context, *app) (sandbox.Backend, error)
}{
	{gvisor.Name, newGVisor},
	{docker.Name, newDocker},
	{local.Name, newLocal},
}

func newGVisor(_ context.Context, a *app) (sandbox.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	b, err := gvisor.New(gvisor.Options{Progress: a.progress(), AllowMounts: cfg.Backend.AllowMounts})
	if err != nil {
		return nil, err // not b: a nil *Backend in an interface is not nil
	}
	return b, nil
}

func newDocker(_ context.Context, a *app) (sandbox.Backend, error) {
	b, err := a.docker()
	if err != nil {
		return nil, err
	}
	return b, nil
}

// docker gives the backend as it is configured. It is closed when the program ends.
func (a *app) docker() (*docker.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	o, err := cfg.Docker.Options()
	if err != nil {
		return nil, err
	}
	o.Progress, o.AllowMounts = a.progress(), cfg.Backend.AllowMounts
	b, err := docker.New(o)
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, b.Close)
	return b, nil
}

func newLocal(ctx context.Context, _ *app) (sandbox.Backend, error) {
	if runtime.GOOS != "linux" {
		return local.New(local.Options{}), nil
	}
	guest, err := bundle.Guest(ctx)
	if err != nil {
		return nil, err
	}
	return local.New(local.Options{GuestPath: guest.Path}), nil
}
