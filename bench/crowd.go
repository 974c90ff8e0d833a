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
	"sync"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// crowd makes many sandboxes, asks all of them something, ends them, and counts what is left.
func crowd(ctx context.Context, b *bench) ([]row, error) {
	many, ends := b.times(200, 40), 10
	// The template must be there, and nothing of what stays for ever may count as left over.
	sb, err := sandbox.Open(ctx, b.backend, sandbox.Spec{})
	if err == nil {
		err = sb.Close()
	}
	if err != nil {
		return nil, err
	}
	before, err := b.leftovers(nil)
	if err != nil {
		return nil, err
	}
	boxes, ids := make([]*sandbox.Sandbox, many), []string{}
	var took samples
	for i := range boxes {
		began := time.Now()
		if boxes[i], err = sandbox.Open(ctx, b.backend, sandbox.Spec{}); err != nil {
			return nil, errors.Join(fmt.Errorf("sandbox %d: %w", i+1, err), closeAll(boxes))
		}
		took = append(took, time.Since(began))
		ids = append(ids, boxes[i].ID())
	}
	answered, errs := 0, make([]error, many)
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, sb := range boxes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			v, err := sb.Cell(ctx, sandbox.Cell{Code: fmt.Sprintf("%d*2", i)})
			if err == nil && v.Result.Text() != fmt.Sprint(2*i) {
				err = fmt.Errorf("sandbox %d: %v", i+1, v)
			}
			if errs[i] = err; err == nil {
				mu.Lock()
				defer mu.Unlock()
				answered++
			}
		})
	}
	wg.Wait()
	alive, err := b.leftovers(ids)
	errs = append(errs, err)
	began := time.Now()
	errs = append(errs, closeAll(boxes))
	ending := time.Since(began)
	after, err := b.leftovers(ids)
	errs = append(errs, err)
	first, last := took[:ends].median(), took[many-ends:].median()
	left := after.sum() - before.sum()
	return []row{
		{
			Name: "crowd_create", What: fmt.Sprintf("create of the last of %d alive, p50 of %d", many, ends), Measured: last, Unit: "ms", Baseline: first, Against: "the first",
			Target: "≤ 1.5 ×", Reached: reached(last <= 1.5*first),
		},
		{
			Name: "crowd_answers", What: "of these answered", Measured: float64(answered), Target: "all", Reached: reached(answered == many),
			Note: fmt.Sprintf("alive: %v; ending all took %.1f s", alive, ending.Seconds()),
		},
		{
			Name: "crowd_left", What: "left when they have ended", Measured: float64(left), Target: "nothing", Reached: reached(left == 0),
			Note: fmt.Sprintf("before: %v; after: %v", before, after),
		},
	}, errors.Join(errs...)
}

// leftovers counts what sandboxes may leave behind.
type leftovers struct{ processes, mounts, cgroups, files int }

func (l leftovers) sum() int { return l.processes + l.mounts + l.cgroups + l.files }

func (l leftovers) String() string {
	return fmt.Sprintf("%d processes, %d mounts, %d cgroups, %d files", l.processes, l.mounts, l.cgroups, l.files)
}

// leftovers counts processes, mounts and files that name our directory, and cgroups that are named by the ids.
func (b *bench) leftovers(ids []string) (leftovers, error) {
	var l leftovers
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return l, err
	}
	self := fmt.Sprintf("/proc/%d/", os.Getpid())
	for _, name := range names {
		line, _ := os.ReadFile(name)
		if strings.Contains(string(line), b.dir) && !strings.HasPrefix(name, self) {
			l.processes++
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return l, err
	}
	l.mounts = strings.Count(string(mounts), b.dir)
	for _, id := range ids {
		for _, pattern := range []string{"/sys/fs/cgroup/recluse/", "/sys/fs/cgroup/*/recluse/"} {
			dirs, _ := filepath.Glob(pattern + id)
			l.cgroups += len(dirs)
		}
	}
	for _, d := range []string{"sandboxes", "snapshots", "engine"} {
		err := filepath.WalkDir(filepath.Join(b.dir, "data/gvisor", d), func(_ string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				l.files++
			}
			return nil // what vanishes meanwhile is not left
		})
		if err != nil {
			return l, err
		}
	}
	return l, nil
}
