package docker

import (
	"context"
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// bridge is the user of bridges to a sandbox. It owns nothing, and code cannot become it.
func (r *record) bridge() v1.User {
	n := bridgeUID
	if r.User.UID == n {
		n++
	}
	return v1.User{UID: n, GID: n}
}

// user finds out whose processes a sandbox of a spec runs. Names are looked up by us and not by the engine, because file systems in memory are
// given to a number; and so that nobody becomes root under another name.
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
	if err := b.consentRoot(u); err != nil {
		return u, err
	}
	if u.UID == 0 && ownGuest(f) {
		return u, backend.NotSupported(Name, "run code as root with the runtime "+f.Runtime+", where the guest alone is root", "use another user, or the runtime runc")
	}
	return u, nil
}

// guestUser is who the guest is, as the engine wants to hear it.
func (p *plan) guestUser() string {
	if ownGuest(p.facts) {
		return userArg(v1.User{})
	}
	return userArg(p.User)
}

// oomScore returns the oom_score_adj of everything that is run.
func (b *Backend) oomScore(f *dockerengine.Facts, o SpecOptions) (int, error) {
	if f.UserSpace() {
		if o.OOMScoreAdj != nil {
			return 0, backend.NotSupported(Name, "set oom_score_adj with the runtime "+f.Runtime+", where the guest chooses what to kill for memory",
				"leave it out, or use the runtime runc")
		}
		return 0, nil
	}
	hc, err := b.patch(o)
	if o.OOMScoreAdj == nil {
		return max(defaultOOMScore, hc.OomScoreAdj), err // which can only be raised
	}
	if err == nil && *o.OOMScoreAdj < hc.OomScoreAdj {
		err = &v1.Error{
			Code: v1.CodeInvalidSpec, Op: "start sandbox",
			Message: fmt.Sprintf("oom_score_adj %d is below the %d of the host config, and can only be raised", *o.OOMScoreAdj, hc.OomScoreAdj),
		}
	}
	return *o.OOMScoreAdj, err
}

// consentRoot refuses root, and root's group, unless the options allow it.
func (b *Backend) consentRoot(u v1.User) error {
	if u.UID != 0 && u.GID != 0 {
		return nil
	}
	if err := backendkit.RefuseInProduction("start sandbox", "code that is root, or in root's group", ""); err != nil || b.opts.UnsafeRoot {
		return err
	}
	return &v1.Error{
		Code: v1.CodeConsentMissing, Op: "start sandbox",
		Message: "code would run as root, or in root's group, and be root on the engine's machine if it got out",
		Remedy:  "use another user, or allow it explicitly with docker.unsafe_root",
	}
}
