package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/dockersetup"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// bridge returns the user of bridges to a sandbox. It owns no files, and code cannot switch to it.
func (r *record) bridge() v1.User {
	n := bridgeUID
	if r.User.UID == n {
		n++
	}
	return v1.User{UID: n, GID: n}
}

// user returns the user that runs code in a sandbox. We look up names ourselves instead of leaving it to the Docker
// engine, because the owner of a tmpfs must be a number, and because a name could belong to root's user ID.
func (b *Backend) user(ctx context.Context, f *dockerengine.Facts, spec sandbox.Spec, image string) (v1.User, error) {
	u, err := v1.ParseUser(spec.User)
	if err != nil {
		return u, err
	}
	if u.Name != "" {
		if u, err = b.cli.LookUpUser(ctx, image, u.Name); err != nil {
			return u, err
		}
	}
	if ownGuest(f) { // root inside has no rights outside
		if (spec.Sudo || u.IsRoot()) && !limitsRoot(f) {
			return u, backend.NotSupported(
				Name,
				"let code be root with this runtime, which lacks the argument "+dockersetup.ProcessLimitArg,
				"run recluse install-runtime, which adds it",
			)
		}
		return u, nil
	}
	if spec.Sudo {
		return u, backend.NotSupported(
			Name,
			"let code become root on the kernel of the Docker engine's machine, where the guest has no more rights than code",
			"use gvisor, or the runtime runsc",
		)
	}
	return u, b.consentRoot(u)
}

// limitsRoot reports whether the guest can limit the processes of root.
func limitsRoot(f *dockerengine.Facts) bool {
	return slices.Contains(strings.Fields(f.Command), dockersetup.ProcessLimitArg)
}

// guestUser returns the user of the guest in the format of the Docker API.
func (p *plan) guestUser() string {
	if ownGuest(p.facts) {
		return userArg(v1.User{})
	}
	return userArg(p.User)
}

// oomScore returns the oom_score_adj of everything that runs in the sandbox.
func (b *Backend) oomScore(f *dockerengine.Facts, o SpecOptions) (int, error) {
	if f.UserSpace() {
		if o.OOMScoreAdj != nil {
			return 0, backend.NotSupported(
				Name,
				"set oom_score_adj with the runtime "+f.Runtime+", where the guest selects the processes to OOM-kill",
				"remove oom_score_adj, or use the runtime runc",
			)
		}
		return 0, nil
	}
	hc, err := b.patch(o)
	if o.OOMScoreAdj == nil {
		return max(defaultOOMScore, hc.OomScoreAdj), err // an unprivileged process can only raise it
	}
	if err == nil && *o.OOMScoreAdj < hc.OomScoreAdj {
		err = &v1.Error{
			Code: v1.CodeInvalidSpec,
			Op:   "start sandbox",
			Message: fmt.Sprintf("oom_score_adj %d is lower than %d in the host config, and can only be raised",
				*o.OOMScoreAdj, hc.OomScoreAdj),
		}
	}
	return *o.OOMScoreAdj, err
}

// consentRoot is for code that shares the kernel of the Docker engine's machine. It refuses root and root's group,
// unless the options allow it.
func (b *Backend) consentRoot(u v1.User) error {
	if u.UID != 0 && u.GID != 0 {
		return nil
	}
	err := backendkit.RefuseInProduction("start sandbox", "code that runs as root or in root's group", "")
	if err != nil || b.opts.UnsafeRoot {
		return err
	}
	return &v1.Error{
		Code:    v1.CodeConsentMissing,
		Op:      "start sandbox",
		Message: "code in the sandbox would be root or in root's group, and root on the Docker engine's machine if it escaped",
		Remedy:  "use another user, or set docker.unsafe_root",
	}
}
