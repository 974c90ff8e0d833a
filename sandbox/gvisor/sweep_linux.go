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
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/ids"
)

// A program that is killed leaves files that nobody asks for again, and some hold the memory of sandboxes: half written and half deleted
// snapshots, sandboxes that never came to have a record, templates of earlier programs, roots of earlier states of the host. The first
// sandbox of every backend has them removed, beside its own start. What is in use is known by a lock, a record or its age.

const (
	// sweepWait bounds one sweep; what it does not come to is left to the next.
	sweepWait = 30 * time.Second
	// sweepAge is how old a file without an owner must be: its maker may be between making and locking it.
	sweepAge = time.Minute
	// idleAge is how long roots and other programs' templates stay after their last use: another program may be about to use them.
	idleAge = time.Hour
	// templateAge is how long a template stays after its last use.
	templateAge = 7 * 24 * time.Hour
)

const (
	newPrefix = ".new-" // being written
	oldPrefix = ".old-" // being removed
)

// sweep ends the sandboxes of dead programs, and begins to remove their files.
func (b *Backend) sweep(ctx context.Context) error {
	err := b.sandboxes.Sweep(ctx, b.Stop)
	b.sweeping.Go(b.sweepFiles)
	return err
}

// sweepFiles removes what killed programs left. Best effort: it is tried again by the next program.
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
		return // whose root we do not know may be any
	}
	_ = pruneHostRoots(ctx, b.roots, func(dir string) bool { return used[dir] || !idle(dir, idleAge) })
}

// idle reports whether a directory was made, filled or used last longer ago than age.
func idle(dir string, age time.Duration) bool {
	info, err := os.Lstat(dir)
	return err == nil && time.Since(info.ModTime()) > age
}

// touch notes the use of a directory; see idle.
func touch(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // at worst it is made again one day
}

// sweepTemps removes what was being written or removed below top by programs that are no more.
func sweepTemps(ctx context.Context, top string) {
	for _, e := range entriesOf(top) {
		if ctx.Err() != nil {
			return
		}
		dir := filepath.Join(top, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), oldPrefix):
			_ = os.RemoveAll(dir) // somebody may be doing the same
		case strings.HasPrefix(e.Name(), newPrefix) && idle(dir, sweepAge):
			if lock, err := filelock.TryDir(dir); err == nil {
				_ = os.RemoveAll(dir)
				lock.Release()
			}
		}
	}
}

// sweepSandboxes ends and removes sandboxes without a readable record: nobody can attach to them.
func (b *Backend) sweepSandboxes(ctx context.Context) {
	for _, id := range b.sandboxes.IDs() {
		if ctx.Err() != nil || !idle(b.sandboxes.Path(id), sweepAge) || !b.recordless(id) {
			continue
		}
		b.sandboxes.Unattached(id, func() {
			if b.recordless(id) {
				_ = b.remove(ctx, id, true, b.driver(b.engine.Path, true))
			}
		})
	}
}

// recordless reports whether a sandbox has no record, or one that was cut off when the machine went down.
func (b *Backend) recordless(id string) bool {
	_, err := b.load(id)
	return v1.CodeOf(err) == v1.CodeNotFound || unreadable(err)
}

func unreadable(err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax)
}

// sweepTemplates removes templates that nobody uses.
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
		err := atomicfile.ReadJSON(filepath.Join(dir, manifestFile), m)
		current := err == nil && m.Format == snapshotFormat && m.Record.Engine == b.engine.Hash && m.Record.Guest == b.guest.Hash
		if current && !idle(dir, templateAge) {
			continue
		}
		_ = discard(dir)
	}
}

// usedRoots gives the roots that sandboxes, snapshots and templates are made on.
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
			err := atomicfile.ReadJSON(filepath.Join(top, e.Name(), manifestFile), m)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				return nil, err
			}
			used[m.Record.Root] = true
		}
	}
	return used, nil
}

// discard removes a snapshot or template. It is renamed first, so that a half removed one is never taken for whole.
func discard(dir string) error {
	doomed := filepath.Join(filepath.Dir(dir), oldPrefix+ids.Hex(4))
	if err := os.Rename(dir, doomed); err != nil {
		return err
	}
	return os.RemoveAll(doomed)
}

func entriesOf(dir string) []fs.DirEntry {
	entries, _ := os.ReadDir(dir) // what cannot be listed is not swept
	return entries
}
