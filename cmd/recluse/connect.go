package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/daemon"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/session"
)

// stamp returns a value that identifies this build and its configuration.
func stamp(cfg *config.Config) daemon.Stamp {
	b := thisBuild()
	s := daemon.Stamp{Version: b.Version, Commit: b.Commit, Built: daemon.ProgramTime(), Config: cfg.Fingerprint()}
	if b.Modified {
		s.Commit = "" // builds of modified files differ although their commit is the same
	}
	return s
}

// place returns the place of this user's own server.
func (a *app) place() (*daemon.Place, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	data, err := xdg.Data()
	if err != nil {
		return nil, err
	}
	return daemon.NewPlace(data, cfg.Server.Socket)
}

// connect returns a client of the configured server, or of the user's own server, which it starts if necessary. The
// server stays at least until the caller calls done.
func (a *app) connect(ctx context.Context) (c *client.Client, done func(), err error) {
	cfg, err := a.config()
	if err != nil {
		return nil, nil, err
	}
	if cfg.Client.URL != "" {
		c, err := client.New(client.Options{URL: cfg.Client.URL, Key: string(cfg.Client.Key), OnRateWait: a.noticeRateWait})
		if err != nil {
			return nil, nil, err
		}
		return c, c.Close, nil
	}
	me := stamp(cfg)
	held, err := a.ensure(ctx, cfg, me)
	if err != nil {
		return nil, nil, err
	}
	a.otherConfig = held.Status.Stamp.Config != me.Config
	var starting atomic.Bool
	c, err = client.New(client.Options{Socket: held.Status.Socket, Starting: starting.Load, OnRateWait: a.noticeRateWait})
	if err != nil {
		held.Close()
		return nil, nil, err
	}
	release := a.hold(ctx, cfg, me, held, &starting)
	return c, func() { c.Close(); release() }, nil
}

// longRateWait is the shortest wait for the server's rate limit that is reported to the user.
const longRateWait = 2 * time.Second

// noticeRateWait prints that the client waits, because the server has limited the rate of requests.
func (a *app) noticeRateWait(d time.Duration) {
	if d >= longRateWait {
		a.notice("rate limited by the server; next attempt in %s", d)
	}
}

// hold makes sure that a server runs until release is called: if it dies, or another server replaces it, hold finds or
// starts the next one. Operations in sessions continue meanwhile, and the client finds them again. The client waits as
// long as starting is set, because a server with many sessions takes long to start.
func (a *app) hold(
	ctx context.Context,
	cfg *config.Config,
	me daemon.Stamp,
	held *daemon.Conn,
	starting *atomic.Bool,
) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			stop := context.AfterFunc(ctx, func() { held.Close() })
			held.Wait()
			if !stop() {
				return
			}
			held.Close()
			starting.Store(true)
			next, err := a.ensure(ctx, cfg, me)
			starting.Store(false)
			if err != nil {
				return // the call that needs the server reports it
			}
			held = next
		}
	}()
	return func() { cancel(); <-ended }
}

// ensure returns a connection to the user's own server, which it starts if necessary.
func (a *app) ensure(ctx context.Context, cfg *config.Config, me daemon.Stamp) (*daemon.Conn, error) {
	p, err := a.place()
	if err != nil {
		return nil, err
	}
	args := []string{"serve", "--background"}
	if a.configFile != "" {
		file, err := filepath.Abs(a.configFile) // the server has another working directory
		if err != nil {
			return nil, err
		}
		args = append(args, "--config", file)
	}
	p.Env = cfg.Environ()
	return p.Ensure(ctx, me, p.Background(args...))
}

// openOptions adds the flags about the sandbox of a session to the options with which the session is opened.
func (a *app) openOptions(f *sandboxFlags, o session.OpenOptions) (session.OpenOptions, error) {
	if name := f.given("server"); name != "" {
		return o, usage("--%s: sessions use the configuration of their server; see recluse config show", name)
	}
	o.Backend = strings.Join(f.Host.Backends, ",")
	if f.given("") == "" {
		return o, nil
	}
	spec, err := f.spec(a)
	spec.Env, spec.Dir = nil, "" // these are for the command only
	o.Spec = &spec
	return o, err
}

// withLimits adds the configured limits, for the case that the session is new. A session made from a snapshot has the
// limits of the snapshot.
func (a *app) withLimits(o session.OpenOptions) session.OpenOptions {
	if o.From == "" {
		o.IfNew.Spec = configuredSpec(a.cfg)
	}
	return o
}

// gone reports whether err means that the session does not exist any more, or never did.
func gone(err error) bool {
	return slices.Contains([]v1.Code{v1.CodeSessionNotFound, v1.CodeSessionExpired, v1.CodeSessionEnded}, v1.CodeOf(err))
}
