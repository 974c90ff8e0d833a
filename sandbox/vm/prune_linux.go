package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// keptIdle is how long templates, images and kernels stay after their last use.
const keptIdle = 7 * 24 * time.Hour

// touch records the use of a file or directory for idle.
func touch(path string) {
	now := time.Now()
	_ = os.Chtimes(path, now, now) // at worst, it is removed too early and made again
}

func idle(path string) bool {
	info, err := os.Stat(path)
	return err == nil && time.Since(info.ModTime()) > keptIdle
}

// sweep ends the sandboxes of dead programs, and removes the files that they were writing and what nothing has used for
// long.
func (b *Backend) sweep(ctx context.Context) error {
	errs := []error{b.store.Sweep(ctx, b.Stop)}
	for _, d := range []string{"", "snapshots", "templates"} {
		temps, _ := filepath.Glob(filepath.Join(b.dir, d, backendkit.NewPrefix+"*"))
		doomed, _ := filepath.Glob(filepath.Join(b.dir, d, backendkit.OldPrefix+"*"))
		for _, dir := range append(temps, doomed...) {
			lock, err := filelock.TryDir(dir)
			if err != nil {
				continue // its maker lives
			}
			errs = append(errs, os.RemoveAll(dir))
			lock.Release()
		}
	}
	return errors.Join(append(errs, b.prune())...)
}

// prune removes templates, images and kernels that have been idle for long and that nothing refers to.
func (b *Backend) prune() error {
	var errs []error
	templates, _ := filepath.Glob(filepath.Join(b.dir, "templates", "*", backendkit.ManifestFile))
	for _, m := range templates {
		if dir := filepath.Dir(m); idle(dir) {
			errs = append(errs, os.Remove(m), os.RemoveAll(dir))
		}
	}
	used := map[string]bool{}
	if p := (Prepared{}); atomicfile.ReadJSON(filepath.Join(b.dir, setupFile), &p) == nil {
		used[p.KernelID], used[p.Root] = true, true
	}
	note := func(r *record) { used[r.Kernel], used[r.Initramfs], used[r.Root] = true, true, true }
	for _, id := range b.store.IDs() {
		if r, err := b.load(id); err == nil {
			note(r)
		}
	}
	for _, pattern := range []string{"snapshots/*", "templates/*"} {
		manifests, _ := filepath.Glob(filepath.Join(b.dir, pattern, backendkit.ManifestFile))
		for _, path := range manifests {
			m := &manifest{}
			if err := atomicfile.ReadJSON(path, m); err != nil {
				return errors.Join(append(errs, err)...) // it may refer to anything
			}
			note(&m.Record)
		}
	}
	for _, d := range []string{"images", "kernels"} {
		files, _ := filepath.Glob(filepath.Join(b.dir, d, "*"))
		for _, f := range files {
			name := filepath.Base(f)
			if !used[name] && !strings.HasPrefix(name, backendkit.NewPrefix) && idle(f) {
				errs = append(errs, os.RemoveAll(f))
			}
		}
	}
	return errors.Join(errs...)
}
