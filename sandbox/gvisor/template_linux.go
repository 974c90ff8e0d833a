//go:build linux

package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/sandbox"
)

// A template is a snapshot of a sandbox that has done nothing but start its guest and an interpreter. Restoring it takes
// about as long as booting an empty sandbox, and everything in it is warm. There is one for each combination of what a restored sandbox
// cannot change: root file system, limits, engine, guest. It is made by the first sandbox that needs it, and made again when a file of the host
// that it holds has changed.

// codeNoTemplate says that there is no template and why; the sandbox is booted then.
const codeNoTemplate sandbox.Code = "no_template"

// templateWait bounds the making of one.
const templateWait = 60 * time.Second

// startFromTemplate makes a sandbox from its template, and the template if there is none.
func (b *Backend) startFromTemplate(ctx context.Context, p *plan) (*machine, error) {
	dir := filepath.Join(b.dir, "templates", b.templateKey(p))
	touch(dir) // before it is read, so that no sweep takes it away meanwhile
	m, err := b.readManifest(dir, "template")
	if err != nil {
		if m, err = b.makeTemplate(ctx, p, dir); err != nil {
			return nil, err
		}
	}
	return b.restore(ctx, m, dir, p.spec)
}

// templateKey names the template of a plan.
func (b *Backend) templateKey(p *plan) string {
	_, limitErr := b.limits()
	config := guestConfig(backendkit.Record{Spec: p.spec}, p) // without a token: that is the template's own
	key, err := json.Marshal([]any{snapshotFormat, b.engine.Hash, b.guest.Hash, p.dir, p.binds, p.spec.Limits, limitErr == nil, b.asUser(), config})
	if err != nil {
		panic(err) // plain data
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:16])
}

// makeTemplate boots a sandbox, warms it and keeps its snapshot. One process makes it, others wait.
func (b *Backend) makeTemplate(ctx context.Context, p *plan, dir string) (*manifest, error) {
	refused := func(err error) error {
		return &sandbox.Error{Code: codeNoTemplate, Op: "make template", Err: err}
	}
	lock, err := filelock.Acquire(ctx, filepath.Join(b.dir, "templates", ".lock"))
	if err != nil {
		return nil, refused(err)
	}
	defer lock.Release()
	if m, err := b.readManifest(dir, "template"); err == nil {
		return m, nil // somebody else has made it while we waited
	}
	if b.opts.Progress != nil {
		const what = "preparing a warm template, once"
		b.opts.Progress(what, 0, 0)
		defer b.opts.Progress(what, 1, 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, refused(err)
	}
	ctx, cancel := context.WithTimeout(ctx, templateWait)
	defer cancel()
	neutral := *p
	neutral.spec.Env, neutral.spec.Labels, neutral.spec.Hostname, neutral.spec.Shell, neutral.spec.Persist = nil, nil, "", "", false
	mach, err := b.boot(ctx, &neutral)
	if err != nil {
		return nil, err
	}
	defer func() { _ = b.Stop(context.WithoutCancel(ctx), mach.ID()) }() // nothing is lost with it
	c, err := host.Attach(ctx, mach.Stream(), host.Options{Token: mach.Token(), Identity: &wire.Identity{Generation: mach.Generation()}})
	if err != nil {
		if cause := mach.Cause(); cause != nil {
			return nil, cause
		}
		return nil, &sandbox.Error{Code: sandbox.CodeGuestLost, Op: "start sandbox", Message: "the guest does not answer", Err: err}
	}
	defer c.Close()
	// A root without Python is fine: then there is only less to warm. What a command needs is not warmed: each process costs a restore about as
	// much as starting it (12 ms were seen).
	if err := c.Warm(ctx, true, false); err != nil {
		if e, ok := errors.AsType[*host.Error](err); !ok || e.Code != "no_python" {
			return nil, refused(err)
		}
	}
	held, err := c.Quiesce(ctx)
	if err != nil {
		return nil, refused(err)
	}
	m := &manifest{
		Format: snapshotFormat, Record: *mach.record, Held: b.fingerprint(mach.record, held),
		Snapshot: sandbox.Snapshot{ID: "template", Backend: Name, Created: time.Now().UTC(), Spec: neutral.spec, Engine: b.engine.Hash, Guest: b.guest.Hash},
	}
	if err := b.save(ctx, m, dir); err != nil {
		return nil, refused(fmt.Errorf("save: %w", err))
	}
	return m, nil
}
