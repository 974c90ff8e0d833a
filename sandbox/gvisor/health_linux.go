//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// healthKept is how long an answer of Health is believed.
	healthKept = time.Minute
	// trialReserve is how long before the caller's deadline a trial is given up.
	trialReserve = 300 * time.Millisecond
)

// How a trial ends that says nothing about the engine.
var (
	errSlow   = errors.New("it was not there in time")
	errNoTime = errors.New("there was no time to try a sandbox")
)

// guestUnconfigured is the guest's exit code when it is not told what to do.
const guestUnconfigured = 2

// trial is a trial that went well, with all that it depends on. It takes longer than everything else before a
// first sandbox, so every program with this data directory believes it for a while.
type trial struct {
	Boot    string `json:"boot"` // of the machine
	Engine  string `json:"engine"`
	Guest   string `json:"guest"`
	UID     int    `json:"uid"`
	AsUser  bool   `json:"as_user"`
	Version string `json:"version"`
}

// trialNow describes a trial made now.
func (b *Backend) trialNow(version string) trial {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it only the time counts
	return trial{
		Boot: strings.TrimSpace(string(boot)), Engine: b.engine.Hash, Guest: b.guest.Hash, UID: os.Getuid(), AsUser: b.opts.AsUser, Version: version,
	}
}

// forgetTrial makes the next Health try again: a sandbox could not be started.
func (b *Backend) forgetTrial() {
	b.healthMu.Lock()
	defer b.healthMu.Unlock()
	b.healthAt = time.Time{}
	b.trials.Forget()
}

// Health implements sandbox.Backend: it runs a sandbox in which the guest starts, finds nothing to do and ends. An answer is kept for a minute,
// unless it is that the caller gave up or had no time for it, and that it went well for longer. An engine that starts and is only slow is on a busy machine, and not
// broken: whether a sandbox can be made is then told by making one.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	b.healthMu.Lock()
	defer b.healthMu.Unlock()
	if !b.healthAt.IsZero() && time.Since(b.healthAt) < healthKept {
		return b.health
	}
	began := time.Now()
	h := sandbox.Health{}
	if t, ok := b.trials.Kept(); ok && t == b.trialNow(t.Version) {
		h.OK, h.Version, h.Took = true, t.Version, time.Since(began)
		b.health, b.healthAt = h, time.Now()
		return h
	}
	out, err := b.driver(b.engine.Path, false).call(ctx, "--version")
	line, _, _ := strings.Cut(out, "\n")
	h.Version = strings.TrimPrefix(line, "runsc version ")
	if err == nil {
		tryCtx, cancel := reserved(ctx)
		err = b.tryOut(tryCtx, ctx)
		cancel()
	}
	slow := errors.Is(err, errSlow)
	h.OK, h.Took = err == nil || slow, time.Since(began)
	switch {
	case slow:
		h.Reason = "a sandbox to try was not there in " + h.Took.Round(time.Millisecond).String() + ": the machine is busy"
		return h
	case err != nil:
		h.Reason, h.Remedy = unhealthy(b.asUser(), err)
	}
	if ctx.Err() == nil && !errors.Is(err, errNoTime) {
		b.health, b.healthAt = h, time.Now()
	}
	if h.OK {
		b.trials.Keep(b.trialNow(h.Version))
	}
	return h
}

// reserved ends a little before its parent has to.
func reserved(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-trialReserve))
}

// unhealthy tells people what is wrong.
func unhealthy(asUser bool, err error) (reason, remedy string) {
	if asUser && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL)) {
		return "this system does not let ordinary users make user namespaces: " + err.Error(),
			"as root: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 kernel.apparmor_restrict_unprivileged_userns=0; or run recluse as root"
	}
	return err.Error(), ""
}

// tryOut runs a sandbox that holds the guest and nothing else, to its end. The error is errSlow only if the sandbox itself was too slow, and not what had
// to be cleared away after it. The caller waits for that only if its own patience has ended as well: the program may end next.
func (b *Backend) tryOut(ctx, caller context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoTime
	}
	id := idPrefix + ids.Hex(6)
	dir := b.sandboxes.Path(id) // without a record: if we are killed, a sweep finds it
	root := filepath.Join(dir, "root")
	for _, d := range []string{"proc", guestMount} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return fmt.Errorf("a sandbox to try: %w", errors.Join(err, os.RemoveAll(dir)))
		}
	}
	oci := &bundleSpec{
		root: root, binds: []bind{{Source: filepath.Dir(b.guest.Path), Target: guestMount}}, hostname: "recluse",
		argv: []string{guestMount + "/" + filepath.Base(b.guest.Path)}, env: []string{"GOMAXPROCS=1"}, capabilities: guestCapabilities,
	}
	e := b.driver(b.engine.Path, false)
	err := oci.write(dir)
	if err == nil {
		_, err = e.call(ctx, "run", "--bundle="+dir, id)
		// The engine ends as the guest did, after the guest has said what it misses.
		failed, said := errors.AsType[*engineError](err)
		exit, ended := errors.AsType[*exec.ExitError](err)
		if said && ended && exit.ExitCode() == guestUnconfigured && strings.Contains(failed.stderr, launch.ConfigEnv) {
			return os.RemoveAll(dir)
		}
		if err == nil {
			err = errors.New("the guest ended without a word")
		}
	}
	remove := func() error {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
		defer cancel()
		return b.remove(clean, id, false, e)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		if caller.Err() == nil {
			b.sweeping.Go(func() { _ = remove() }) // the caller has no time for it; what stays a sweep finds
		} else {
			_ = remove() // likewise
		}
		return fmt.Errorf("a sandbox to try: %w: %w", errSlow, err)
	}
	return fmt.Errorf("a sandbox to try: %w", errors.Join(err, remove()))
}
