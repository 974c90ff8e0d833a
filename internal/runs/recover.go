package runs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

const (
	// maxTries is how often servers go on with a run that none of them has come to an orderly end with: one that kills its server must not kill them all.
	maxTries  = 3
	triesFile = "tries"
	// firstPause and maxPause are between two tries of one server, with a run that cannot go on just now.
	firstPause = time.Second
	maxPause   = 5 * time.Minute
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
		if err != nil || info.Result != nil {
			continue // it cannot be read, or has ended
		}
		ctx, done := k.expect(key{tenant, info.ID})
		if !k.goOn(ctx, tenant, info.ID) {
			done()
			continue
		}
		k.wg.Go(func() {
			defer done()
			k.goOnLater(ctx, tenant, info.ID)
		})
	}
}

// late is a run that is still to go on.
type late struct {
	stop context.CancelFunc // it is not any more
	over chan struct{}      // closed when nobody tries it any more
}

// expect says that somebody tries to go on with a run, until ctx ends or done is called.
func (k *Keeper) expect(at key) (ctx context.Context, done func()) {
	ctx, stop := context.WithCancel(k.ctx)
	l := &late{stop, make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.late[at] = l
	return ctx, func() {
		stop()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.late, at)
		close(l.over)
	}
}

// goOnLater tries again until it is of no use any more.
func (k *Keeper) goOnLater(ctx context.Context, tenant, id string) {
	for pause := k.pause; ; pause = min(2*pause, maxPause) {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if !k.goOn(ctx, tenant, id) {
			return
		}
	}
}

// goOn resumes a run that was interrupted, and tells whether it is worth another try. Once it works it does not end with ctx.
func (k *Keeper) goOn(ctx context.Context, tenant, id string) (again bool) {
	log := k.o.Logger.With("run", id, "tenant", tenant)
	no := func(err error) bool {
		log.Warn("a run that was interrupted is not resumed; it can be by hand", "error", err)
		return false
	}
	info, err := k.Show(tenant, id)
	if err != nil || info.Result != nil || k.under(tenant, id) {
		return false // somebody has seen to it
	}
	dir := filepath.Join(k.dir(tenant), id)
	who, err := askedFor(dir, info.Labels)
	if err != nil {
		return no(err)
	}
	if who == nil {
		return false // it is the business of whoever began it, or was cancelled
	}
	tries, err := triesOf(dir)
	if err != nil {
		return no(err)
	}
	if tries >= maxTries {
		log.Warn("a run that was interrupted is not resumed: its servers have died too often; it can be resumed by hand", "tries", tries)
		return false
	}
	if err := atomicfile.WriteJSON(filepath.Join(dir, triesFile), tries+1); err != nil { // before anything is done
		return no(err)
	}
	ctx = session.WithActor(ctx, session.Actor{Tenant: tenant, Key: who.Key, Remote: who.Away})
	if _, err = k.Resume(ctx, tenant, id, Again{Away: who.Away, Model: who.Model, Sub: who.Sub, Host: who.Host}); err == nil {
		log.Info("a run that was interrupted goes on", "try", tries+1)
		return false
	}
	if back := setTries(dir, tries); back != nil { // the server did not die of it
		return no(errors.Join(err, back))
	}
	if ctx.Err() != nil {
		return false // it is left to the next server, or not wanted any more
	}
	if !passing(err) {
		return no(err)
	}
	log.Info("a run that was interrupted cannot go on yet", "error", err)
	return true
}

// passing says that what failed may work later: somebody is in the way, or what is needed is not there yet.
func passing(err error) bool {
	switch v1.CodeOf(err) {
	case v1.CodeBusy, v1.CodeNoBackend:
		return true
	}
	for {
		e, ok := errors.AsType[*v1.Error](err)
		if !ok || e.Retry {
			return ok
		}
		err = e.Err
	}
}

// under says that a run is under way here.
func (k *Keeper) under(tenant, id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.live[key{tenant, id}] != nil
}

// triesOf counts the servers that have begun to go on with a run and have not come back from it.
func triesOf(dir string) (n int, err error) {
	err = atomicfile.ReadJSON(filepath.Join(dir, triesFile), &n)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n, err
}

// setTries writes down how many there were; none need no file.
func setTries(dir string, n int) error {
	file := filepath.Join(dir, triesFile)
	if n > 0 {
		return atomicfile.WriteJSON(file, n)
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forget forgets the tries of a run from which the server came back.
func (k *Keeper) forget(dir string) {
	if err := setTries(dir, 0); err != nil {
		k.o.Logger.Warn("the tries of a run are still counted", "dir", dir, "error", err)
	}
}

// expected says that a run is still to go on, whosever it is.
func (k *Keeper) expected(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := range k.late {
		if at.id == id {
			return true
		}
	}
	return false
}

// sweep ends sandboxes of runs that nobody came back for.
func (k *Keeper) sweep(tenants []string) {
	var kept []*rlm.Engine
	for _, tenant := range tenants {
		if e, err := k.reader(tenant); err == nil { // else it has no runs that could be read
			kept = append(kept, e)
		}
	}
	for _, b := range k.o.Known {
		rlm.Sweep(k.ctx, b, k.expected, kept...)
	}
}
