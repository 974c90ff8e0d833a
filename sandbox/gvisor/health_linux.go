//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// healthKept is how long a result of Health is reused.
	healthKept = time.Minute
	// trialReserve is how long before the caller's deadline a trial is cancelled.
	trialReserve = 300 * time.Millisecond
)

// Errors of a trial that say nothing about the engine.
var (
	errSlow   = errors.New("the sandbox did not start in time")
	errNoTime = errors.New("no time left for a trial sandbox")
)

// guestUnconfigured is the guest's exit code if it has no configuration.
const guestUnconfigured = 2

// trial describes a successful trial: everything on which its result depends. A trial takes longer than everything else
// before a first sandbox, so all programs with this data directory reuse its result for a while.
type trial struct {
	Boot    string `json:"boot"` // boot ID of the machine
	Engine  string `json:"engine"`
	Guest   string `json:"guest"`
	UID     int    `json:"uid"`
	AsUser  bool   `json:"as_user"`
	Version string `json:"version"`
}

// trialNow returns the description of a trial made now.
func (b *Backend) trialNow(version string) trial {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, only the age of the result counts
	return trial{
		Boot:    strings.TrimSpace(string(boot)),
		Engine:  b.engine.Hash,
		Guest:   b.guest.Hash,
		UID:     os.Getuid(),
		AsUser:  b.opts.AsUser,
		Version: version,
	}
}

// forgetTrial makes the next Health run a new trial. It is called when a sandbox could not be started.
func (b *Backend) forgetTrial() {
	b.healthMu.Lock()
	defer b.healthMu.Unlock()
	b.healthAt = time.Time{}
	b.trials.Forget()
}

// Health implements sandbox.Backend. It runs a trial sandbox, in which the guest starts, finds no configuration and
// exits. The result is reused for healthKept, and a success for longer, also by other programs. A result is not reused
// if the caller cancelled the call or left no time for the trial. An engine that starts but is slow is healthy: the
// machine is busy, and only making a sandbox shows whether it can be made.
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
		tryCtx, cancel := earlierDeadline(ctx)
		err = b.tryOut(tryCtx, ctx)
		cancel()
	}
	slow := errors.Is(err, errSlow)
	h.OK, h.Took = err == nil || slow, time.Since(began)
	switch {
	case slow:
		took := h.Took.Round(time.Millisecond)
		h.Reason = fmt.Sprintf("a trial sandbox did not start within %s: the machine is busy", took)
		return h
	case err != nil:
		h.Reason, h.Remedy = explainFailure(b.asUser(), err)
	}
	if ctx.Err() == nil && !errors.Is(err, errNoTime) {
		b.health, b.healthAt = h, time.Now()
	}
	if h.OK {
		b.trials.Keep(b.trialNow(h.Version))
	}
	return h
}

// earlierDeadline returns a context whose deadline is trialReserve before that of ctx.
func earlierDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-trialReserve))
}

// explainFailure returns the reason and the remedy of a failed trial.
func explainFailure(asUser bool, err error) (reason, remedy string) {
	refused := []error{unix.EPERM, unix.ENOSPC, unix.EACCES, unix.EINVAL}
	if asUser && slices.ContainsFunc(refused, func(e error) bool { return errors.Is(err, e) }) {
		return "this system does not allow ordinary users to make user namespaces: " + err.Error(),
			"as root: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 " +
				"kernel.apparmor_restrict_unprivileged_userns=0; or run recluse as root"
	}
	return err.Error(), ""
}

// tryOut runs a sandbox that contains only the guest, until it ends. It returns errSlow only if the sandbox itself was
// too slow, not its removal. After a slow trial, the removal runs in the background, unless the context of the caller
// is also done: then tryOut waits for it, because the program may exit next.
func (b *Backend) tryOut(ctx, caller context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoTime
	}
	id := idPrefix + ids.Hex(6)
	dir := b.sandboxes.Path(id) // without a record: if this program is killed, a sweep removes it
	root := filepath.Join(dir, "root")
	for _, d := range []string{"proc", guestMount} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return fmt.Errorf("trial sandbox: %w", errors.Join(err, os.RemoveAll(dir)))
		}
	}
	oci := &bundleSpec{
		root:         root,
		binds:        []bind{{Source: filepath.Dir(b.guest.Path), Target: guestMount}},
		hostname:     "recluse",
		argv:         []string{guestMount + "/" + filepath.Base(b.guest.Path)},
		env:          []string{"GOMAXPROCS=1"},
		capabilities: guestCapabilities,
	}
	e := b.driver(b.engine.Path, false)
	err := oci.write(dir)
	if err == nil {
		_, err = e.call(ctx, "run", "--bundle="+dir, id)
		// The engine exits with the guest's status, after the guest has printed that its configuration is missing.
		failed, isEngine := errors.AsType[*engineError](err)
		exit, isExit := errors.AsType[*exec.ExitError](err)
		if isEngine && isExit && exit.ExitCode() == guestUnconfigured &&
			strings.Contains(failed.stderr, launch.ConfigEnv) {
			return os.RemoveAll(dir)
		}
		if err == nil {
			err = errors.New("the guest exited without the expected message")
		}
	}
	remove := func() error {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
		defer cancel()
		return b.remove(clean, id, false, e)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		if caller.Err() == nil {
			b.sweeping.Go(func() { _ = remove() }) // the caller has no time to wait; a sweep removes what is left
		} else {
			_ = remove() // a sweep removes what is left
		}
		return fmt.Errorf("trial sandbox: %w: %w", errSlow, err)
	}
	return fmt.Errorf("trial sandbox: %w", errors.Join(err, remove()))
}
