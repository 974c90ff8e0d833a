package runs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// askedLabel marks the runs that a server goes on with by itself, with where they were asked from. Callers cannot set labels of this kind.
const (
	askedLabel = "recluse.asked"
	askedHere  = "here"
	askedAway  = "away"
)

const (
	// maxTries is how often servers go on with a run that none of them has come to an orderly end with: one that kills its server must not kill them all.
	maxTries  = 3
	triesFile = "tries"
	// busyWait and busyTries are for somebody who just looks at the run.
	busyWait  = 200 * time.Millisecond
	busyTries = 10
	// orphanKept is how long the sandbox of a run that nobody goes on with is kept.
	orphanKept = 24 * time.Hour
)

// Recover goes on with the runs that were under way when the server before ended, however it did. It returns at once.
func (k *Keeper) Recover() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.wg.Go(func() {
		tenants, err := k.tenants()
		if err != nil {
			k.o.Logger.Warn("runs of earlier servers are not looked for", "error", err)
			return
		}
		if k.o.Resume {
			for _, tenant := range tenants {
				k.recover(tenant)
			}
		}
		k.sweep(tenants)
	})
}

// tenants gives those that have runs.
func (k *Keeper) tenants() ([]string, error) {
	out := []string{session.DefaultTenant}
	entries, err := os.ReadDir(filepath.Join(k.o.DataDir, "tenants"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), "t-"); ok {
			out = append(out, name)
		}
	}
	return out, nil
}

func (k *Keeper) recover(tenant string) {
	for info, err := range k.List(tenant) {
		if k.ctx.Err() != nil {
			return
		}
		if err != nil || info.Running || info.Result != nil || info.Labels[askedLabel] == "" {
			continue // it cannot be read, has ended, or is the business of whoever began it
		}
		log := k.o.Logger.With("run", info.ID, "tenant", tenant)
		dir := filepath.Join(k.dir(tenant), info.ID)
		switch tries, err := k.try(dir); {
		case err != nil:
			log.Warn("a run that was interrupted is not resumed", "error", err)
		case tries > maxTries:
			log.Warn("a run that was interrupted is not resumed: its servers have died too often; it can be resumed by hand", "tries", maxTries)
		default:
			if err := k.goOn(tenant, info); err != nil {
				k.forget(dir) // the server did not die of it
				log.Warn("a run that was interrupted is not resumed; it can be by hand", "error", err)
				continue
			}
			log.Info("a run that was interrupted goes on", "try", tries)
		}
	}
}

// goOn resumes a run. Somebody who looks at it just now holds it for a moment.
func (k *Keeper) goOn(tenant string, info *rlm.Info) error {
	for i := 1; ; i++ {
		_, err := k.Resume(k.ctx, tenant, info.ID, nil, info.Labels[askedLabel] == askedAway)
		if sandbox.CodeOf(err) != sandbox.CodeBusy || i == busyTries {
			return err
		}
		t := time.NewTimer(busyWait)
		select {
		case <-t.C:
		case <-k.ctx.Done():
			t.Stop()
			return context.Cause(k.ctx)
		}
	}
}

// try counts one more try, before anything is done, and gives its number.
func (k *Keeper) try(dir string) (int, error) {
	file := filepath.Join(dir, triesFile)
	n := 0
	b, err := os.ReadFile(file)
	if err == nil {
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if n >= maxTries {
		return n + 1, nil
	}
	return n + 1, os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// forget forgets the tries of a run from which the server came back.
func (k *Keeper) forget(dir string) {
	if err := os.Remove(filepath.Join(dir, triesFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.o.Logger.Warn("the tries of a run are still counted", "dir", dir, "error", err)
	}
}

// sweep ends sandboxes of runs that nobody came back for. It only looks at what there is: no backend is tried out for it.
func (k *Keeper) sweep(tenants []string) {
	for _, b := range k.o.Known {
		list, err := b.List(k.ctx)
		if err != nil {
			continue // it is away; whoever needs it will tell
		}
		for _, i := range list {
			id := i.Labels["recluse.run"]
			if id == "" || time.Since(i.Created) < orphanKept {
				continue
			}
			for _, tenant := range tenants {
				if info, err := k.Show(tenant, id); err == nil && !info.Running {
					_ = b.Stop(k.ctx, i.ID) // the next server tries again
				}
			}
		}
	}
}
