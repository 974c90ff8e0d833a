//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// crowd makes many sandboxes, runs a cell in each, ends them, and counts what is left.
func crowd(ctx context.Context, b *bench) {
	many, ends := b.times(200, 40), 10
	// The template must exist, and what it leaves permanently must not count as left over.
	check(b.open(ctx).Close())
	before := b.leftovers(nil)
	boxes, ids := make([]*sandbox.Sandbox, many), []string{}
	defer closing(func() error { return closeAll(boxes) }) // closing twice is not an error
	var took samples
	for i := range boxes {
		began := time.Now()
		boxes[i] = b.open(ctx)
		took = append(took, time.Since(began))
		ids = append(ids, boxes[i].ID())
	}
	var answered atomic.Int64
	errs := make([]error, many)
	each(many, 8, func(i int) {
		if errs[i] = attempt(func() { want(ctx, boxes[i], fmt.Sprintf("%d*2", i), fmt.Sprint(2*i)) }); errs[i] == nil {
			answered.Add(1)
		}
	})
	alive := b.leftovers(ids)
	began := time.Now()
	errs = append(errs, closeAll(boxes))
	ending := time.Since(began)
	after := b.leftovers(ids)
	first, last := took[:ends].median(), took[many-ends:].median()
	left := after.sum() - before.sum()
	b.report([]row{
		{
			Name:     "crowd_create",
			What:     fmt.Sprintf("create of the last of %d alive, p50 of %d", many, ends),
			Measured: last,
			Unit:     "ms",
			Baseline: first,
			Against:  "the first",
			Target:   "≤ 1.5 ×",
			Reached:  reached(last <= 1.5*first),
		},
		{
			Name:     "crowd_answers",
			What:     "answers of these sandboxes",
			Measured: float64(answered.Load()),
			Target:   "all",
			Reached:  reached(answered.Load() == int64(many)),
			Note:     fmt.Sprintf("alive: %v; ending all took %.1f s", alive, ending.Seconds()),
		},
		{
			Name:     "crowd_left",
			What:     "left after their end",
			Measured: float64(left),
			Target:   "nothing",
			Reached:  reached(left == 0),
			Note:     fmt.Sprintf("before: %v; after: %v", before, after),
		},
	})
	check(errors.Join(errs...))
}

// leftovers counts what sandboxes may leave behind.
type leftovers struct{ processes, mounts, cgroups, files int }

func (l leftovers) sum() int { return l.processes + l.mounts + l.cgroups + l.files }

func (l leftovers) String() string {
	return fmt.Sprintf("%d processes, %d mounts, %d cgroups, %d files", l.processes, l.mounts, l.cgroups, l.files)
}

// leftovers counts the processes, mounts and files whose command line or path contains our directory, and the cgroups
// of the IDs.
func (b *bench) leftovers(ids []string) (l leftovers) {
	names := must(filepath.Glob("/proc/[0-9]*/cmdline"))
	self := fmt.Sprintf("/proc/%d/", os.Getpid())
	for _, name := range names {
		line, _ := os.ReadFile(name)
		if strings.Contains(string(line), b.dir) && !strings.HasPrefix(name, self) {
			l.processes++
		}
	}
	mounts := must(os.ReadFile("/proc/self/mountinfo"))
	l.mounts = strings.Count(string(mounts), b.dir)
	for _, id := range ids {
		for _, pattern := range []string{"/sys/fs/cgroup/recluse/", "/sys/fs/cgroup/*/recluse/"} {
			dirs, _ := filepath.Glob(pattern + id)
			l.cgroups += len(dirs)
		}
	}
	for _, d := range []string{"sandboxes", "snapshots", "engine"} {
		check(filepath.WalkDir(filepath.Join(b.dir, "data/gvisor", d), func(_ string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				l.files++
			}
			return nil // a file that is removed meanwhile is not left over
		}))
	}
	return l
}
