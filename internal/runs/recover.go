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
	// maxTries is how many servers resume a run without an orderly end. A run that kills its server must not kill every
	// next server, too.
	maxTries  = 3
	triesFile = "tries"
	// firstPause and maxPause bound the pause between two attempts of one server to resume a run that cannot be resumed
	// yet. The pause doubles with each attempt.
	firstPause = time.Second
	maxPause   = 5 * time.Minute
)

// Recover resumes the runs that were live when the previous server stopped or was killed. It works in the background
// and returns at once.
func (k *Keeper) Recover() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.wg.Go(func() {
		tenants, err := k.tenants()
		if err != nil {
			k.o.Logger.Warn("runs of earlier servers are not resumed", "error", err)
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

// tenants returns the tenants that have runs on disk.
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

// recover resumes the interrupted runs of a tenant.
func (k *Keeper) recover(tenant string) {
	for info, err := range k.List(tenant) {
		if k.ctx.Err() != nil {
			return
		}
		if err != nil || info.Result != nil {
			continue // the run cannot be read, or has ended
		}
		ctx, done := k.addPending(key{tenant, info.ID})
		if !k.tryResume(ctx, tenant, info.ID) {
			done()
			continue
		}
		k.wg.Go(func() {
			defer done()
			k.retryResume(ctx, tenant, info.ID)
		})
	}
}

// pendingRun is an interrupted run that the keeper tries to resume.
type pendingRun struct {
	stop    context.CancelFunc // ends the attempts
	stopped chan struct{}      // closed when the attempts have ended
}

// addPending adds a run to k.pending. The attempts to resume the run must end when ctx ends. The caller must call done
// after the last attempt.
func (k *Keeper) addPending(at key) (ctx context.Context, done func()) {
	ctx, stop := context.WithCancel(k.ctx)
	p := &pendingRun{stop, make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending[at] = p
	return ctx, func() {
		stop()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.pending, at)
		close(p.stopped)
	}
}

// retryResume calls tryResume with growing pauses until it returns false or ctx ends.
func (k *Keeper) retryResume(ctx context.Context, tenant, id string) {
	for pause := k.pause; ; pause = min(2*pause, maxPause) {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if !k.tryResume(ctx, tenant, id) {
			return
		}
	}
}

// tryResume resumes an interrupted run. It reports whether the caller should try again later. A resumed run does not
// end with ctx.
func (k *Keeper) tryResume(ctx context.Context, tenant, id string) (again bool) {
	log := k.o.Logger.With("run", id, "tenant", tenant)
	refuse := func(err error) bool {
		log.Warn("an interrupted run is not resumed automatically; resume it with recluse runs resume", "error", err)
		return false
	}
	info, err := k.Show(tenant, id)
	if err != nil || info.Result != nil || k.isLive(tenant, id) {
		return false // the run was removed, has ended or was resumed by a caller
	}
	dir := filepath.Join(k.dir(tenant), id)
	ord, err := openOrder(dir, info.Labels)
	if err != nil {
		return refuse(err)
	}
	if ord == nil {
		return false // the run was cancelled, or was not started by a server
	}
	tries, err := readTries(dir)
	if err != nil {
		return refuse(err)
	}
	if tries >= maxTries {
		log.Warn("an interrupted run is not resumed automatically, because too many servers died while it ran; "+
			"resume it with recluse runs resume", "tries", tries)
		return false
	}
	// The number is written before the run can do anything.
	if err := atomicfile.WriteJSON(filepath.Join(dir, triesFile), tries+1); err != nil {
		return refuse(err)
	}
	ctx = session.WithActor(ctx, session.Actor{Tenant: tenant, Key: ord.Key, Remote: ord.Remote})
	settings := Again{Remote: ord.Remote, Model: ord.Model, Sub: ord.Sub, Host: ord.Host}
	if _, err = k.Resume(ctx, tenant, id, settings); err == nil {
		log.Info("an interrupted run was resumed", "try", tries+1)
		return false
	}
	if terr := writeTries(dir, tries); terr != nil { // the server survived the attempt
		return refuse(errors.Join(err, terr))
	}
	if ctx.Err() != nil {
		return false // the next server resumes it, or it was cancelled
	}
	if !isTemporary(err) {
		return refuse(err)
	}
	log.Info("an interrupted run cannot be resumed yet", "error", err)
	return true
}

// isTemporary reports whether an operation that failed with err may succeed later: something is busy, or a backend does
// not work yet.
func isTemporary(err error) bool {
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

// isLive reports whether a run is live in this keeper.
func (k *Keeper) isLive(tenant, id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.live[key{tenant, id}] != nil
}

// readTries returns the number of servers that resumed a run and died while it ran.
func readTries(dir string) (n int, err error) {
	err = atomicfile.ReadJSON(filepath.Join(dir, triesFile), &n)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n, err
}

// writeTries writes the number that readTries returns. For 0 it removes the file.
func writeTries(dir string, n int) error {
	file := filepath.Join(dir, triesFile)
	if n > 0 {
		return atomicfile.WriteJSON(file, n)
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// clearTries resets the tries of a run that ended while the server lived.
func (k *Keeper) clearTries(dir string) {
	if err := writeTries(dir, 0); err != nil {
		k.o.Logger.Warn("the number of tries of a run could not be reset", "dir", dir, "error", err)
	}
}

// isPending reports whether the keeper still tries to resume a run, of any tenant.
func (k *Keeper) isPending(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := range k.pending {
		if at.id == id {
			return true
		}
	}
	return false
}

// sweep ends the sandboxes of runs that are neither live nor pending.
func (k *Keeper) sweep(tenants []string) {
	var engines []*rlm.Engine
	for _, tenant := range tenants {
		if e, err := k.reader(tenant); err == nil { // otherwise the runs of the tenant cannot be read
			engines = append(engines, e)
		}
	}
	for _, b := range k.o.Known {
		rlm.Sweep(k.ctx, b, k.isPending, engines...)
	}
}
