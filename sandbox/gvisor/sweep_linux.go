//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// A program that is killed leaves files that nothing uses any more, and some contain the memory of sandboxes:
// incomplete snapshots, half deleted snapshots, sandboxes that never got a record, templates of earlier versions, roots
// of earlier states of the host. The first sandbox of every backend starts their removal in the background. Files in
// use are recognized by a lock, a record or their age.

const (
	// sweepWait is how long one sweep may take. The next sweep removes the rest.
	sweepWait = 30 * time.Second
	// sweepAge is the minimum age of files without an owner that a sweep removes: a program may have made them and not
	// locked them yet.
	sweepAge = time.Minute
	// idleAge is how long roots and the templates of other versions stay after their last use: another program may be
	// about to use them.
	idleAge = time.Hour
	// templateAge is how long a template stays after its last use.
	templateAge = 7 * 24 * time.Hour
)

// sweep ends the sandboxes of dead programs, and starts the removal of their files in the background.
func (b *Backend) sweep(ctx context.Context) error {
	err := b.sandboxes.Sweep(ctx, b.Stop)
	b.sweeping.Go(b.sweepFiles)
	return err
}

// sweepFiles removes the files that killed programs left. Errors are ignored, because the next program tries again.
func (b *Backend) sweepFiles() {
	ctx, cancel := context.WithTimeout(context.Background(), sweepWait)
	defer cancel()
	for _, d := range []string{"snapshots", "templates"} {
		sweepTemps(ctx, filepath.Join(b.dir, d))
	}
	b.sweepSandboxes(ctx)
	b.sweepTemplates(ctx)
	used, err := b.usedRoots()
	if err != nil {
		return // a sandbox whose root is unknown may use any of them
	}
	_ = pruneHostRoots(ctx, b.roots, func(dir string) bool { return used[dir] || !idle(dir, idleAge) })
}

// idle reports whether a directory was last made, filled or used longer ago than age.
func idle(dir string, age time.Duration) bool {
	info, err := os.Lstat(dir)
	return err == nil && time.Since(info.ModTime()) > age
}

// touch records the use of a directory for idle.
func touch(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // at worst, the directory is removed too early and made again
}

// sweepTemps removes directories below top that dead programs were writing or removing.
func sweepTemps(ctx context.Context, top string) {
	for _, e := range entriesOf(top) {
		if ctx.Err() != nil {
			return
		}
		dir := filepath.Join(top, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), backendkit.OldPrefix):
			_ = os.RemoveAll(dir) // another program may be doing the same
		case strings.HasPrefix(e.Name(), backendkit.NewPrefix) && idle(dir, sweepAge):
			if lock, err := filelock.TryDir(dir); err == nil {
				_ = os.RemoveAll(dir)
				lock.Release()
			}
		}
	}
}

// sweepSandboxes removes sandboxes without a readable record, because no program can attach to them.
func (b *Backend) sweepSandboxes(ctx context.Context) {
	for _, id := range b.sandboxes.IDs() {
		if ctx.Err() != nil || !idle(b.sandboxes.Path(id), sweepAge) || !b.recordless(id) {
			continue
		}
		b.sandboxes.IfUnattached(id, func() {
			if b.recordless(id) {
				_ = b.remove(ctx, id, true, b.driver(b.engine.Path, true))
			}
		})
	}
}

// recordless reports whether a sandbox has no record, or one that was truncated by a crash of the machine.
func (b *Backend) recordless(id string) bool {
	_, err := b.load(id)
	return v1.CodeOf(err) == v1.CodeNotFound || unreadable(err)
}

func unreadable(err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax)
}

// sweepTemplates removes templates that are no longer used.
func (b *Backend) sweepTemplates(ctx context.Context) {
	top := filepath.Join(b.dir, "templates")
	lock, err := filelock.Acquire(ctx, filepath.Join(top, ".lock"))
	if err != nil {
		return
	}
	defer lock.Release()
	for _, e := range entriesOf(top) {
		dir := filepath.Join(top, e.Name())
		if ctx.Err() != nil || !e.IsDir() || strings.HasPrefix(e.Name(), ".") || !idle(dir, idleAge) {
			continue
		}
		m := &manifest{}
		err := atomicfile.ReadJSON(filepath.Join(dir, backendkit.ManifestFile), m)
		current := err == nil && m.Format == snapshotFormat && m.Record.Engine == b.engine.Hash &&
			m.Record.Guest == b.guest.Hash
		if current && !idle(dir, templateAge) {
			continue
		}
		_ = backendkit.Discard(dir)
	}
}

// usedRoots returns the roots that sandboxes, snapshots and templates use.
func (b *Backend) usedRoots() (map[string]bool, error) {
	used := map[string]bool{}
	for _, id := range b.sandboxes.IDs() {
		r, err := b.load(id)
		if err != nil && v1.CodeOf(err) != v1.CodeNotFound {
			return nil, err
		}
		if err == nil {
			used[r.Root] = true
		}
	}
	for _, d := range []string{"snapshots", "templates"} {
		top := filepath.Join(b.dir, d)
		for _, e := range entriesOf(top) {
			m := &manifest{}
			err := atomicfile.ReadJSON(filepath.Join(top, e.Name(), backendkit.ManifestFile), m)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				return nil, err
			}
			used[m.Record.Root] = true
		}
	}
	return used, nil
}

func entriesOf(dir string) []fs.DirEntry {
	entries, _ := os.ReadDir(dir) // an unreadable directory is not swept
	return entries
}
