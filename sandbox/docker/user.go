package docker

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// maxPasswd is how much of an image's table of users is read.
const maxPasswd = 1 << 20

// ids is how a user and its group are written for the engine.
func ids(u sandbox.User) string { return strconv.Itoa(u.UID) + ":" + strconv.Itoa(u.GID) }

// bridge is the user of bridges to a sandbox. It owns nothing, and code cannot become it.
func (r *record) bridge() sandbox.User {
	n := bridgeUID
	if r.User.UID == n {
		n++
	}
	return sandbox.User{UID: n, GID: n}
}

// user finds out whose processes a sandbox of a spec runs. Names are looked up by us and not by the engine, because file systems in memory are
// given to a number; and so that nobody becomes root under another name.
func (b *Backend) user(ctx context.Context, f *facts, spec sandbox.Spec, image string) (sandbox.User, error) {
	u, err := sandbox.ParseUser(spec.User)
	if err != nil {
		return u, err
	}
	if u.Name != "" {
		if u, err = b.lookUser(ctx, u.Name, image); err != nil {
			return u, err
		}
	}
	if err := b.consentRoot(u); err != nil {
		return u, err
	}
	if u.UID == 0 && f.ownGuest() {
		return u, backend.NotSupported(Name, "run code as root with the runtime "+f.runtime+", where the guest alone is root", "use another user, or the runtime runc")
	}
	return u, nil
}

// guestUser is who the guest is, as the engine wants to hear it.
func (p *plan) guestUser() string {
	if p.facts.ownGuest() {
		return ids(sandbox.User{})
	}
	return ids(p.User)
}

// oomScore returns the oom_score_adj of everything that is run.
func (b *Backend) oomScore(f *facts, o SpecOptions) (int, error) {
	if f.userSpace() {
		if o.OOMScoreAdj != nil {
			return 0, backend.NotSupported(Name, "set oom_score_adj with the runtime "+f.runtime+", where the guest chooses what to kill for memory",
				"leave it out, or use the runtime runc")
		}
		return 0, nil
	}
	hc, err := b.patch(o)
	if o.OOMScoreAdj == nil {
		return max(defaultOOMScore, hc.OomScoreAdj), err // which can only be raised
	}
	if err == nil && *o.OOMScoreAdj < hc.OomScoreAdj {
		err = &sandbox.Error{
			Code: sandbox.CodeInvalidSpec, Op: "start sandbox",
			Message: fmt.Sprintf("oom_score_adj %d is below the %d of the host config, and can only be raised", *o.OOMScoreAdj, hc.OomScoreAdj),
		}
	}
	return *o.OOMScoreAdj, err
}

// consentRoot refuses root, and root's group, unless the options allow it.
func (b *Backend) consentRoot(u sandbox.User) error {
	if u.UID != 0 && u.GID != 0 {
		return nil
	}
	refused := &sandbox.Error{Code: sandbox.CodeConsentMissing, Op: "start sandbox", Message: "code would run as root, or in root's group, and be root on the engine's machine if it got out"}
	switch production, err := backend.Production(); {
	case err != nil:
		return err
	case production:
		refused.Message = "RECLUSE_ENV=production forbids code that is root, or in root's group"
	case b.opts.UnsafeRoot:
		return nil
	default:
		refused.Remedy = "use another user, or allow it explicitly with docker.unsafe_root"
	}
	return refused
}

// lookUser finds a name in an image's table of users, in a container that is never started. What was found holds for the image for ever.
func (b *Backend) lookUser(ctx context.Context, name, image string) (u sandbox.User, err error) {
	key := image + " " + name
	b.mu.Lock()
	u, known := b.users[key]
	b.mu.Unlock()
	if known {
		return u, nil
	}
	carrier, remove, err := b.carrier(ctx, carrierName(), image, nil, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		return u, failed(ctx, "find user", "the image cannot be looked at", err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	res, err := b.cli.CopyFromContainer(ctx, carrier, client.CopyFromContainerOptions{SourcePath: "/etc/passwd"})
	if errdefs.IsNotFound(err) {
		return u, noUser(name)
	}
	if err != nil {
		return u, failed(ctx, "find user", "the image's /etc/passwd cannot be read", err)
	}
	defer func() { _ = res.Content.Close() }()
	archive := tar.NewReader(res.Content)
	if _, err := archive.Next(); err != nil {
		return u, failed(ctx, "find user", "the image's /etc/passwd cannot be read", err)
	}
	u, ok := findUser(io.LimitReader(archive, maxPasswd), name)
	if !ok {
		return u, noUser(name)
	}
	b.mu.Lock()
	b.users[key] = u
	b.mu.Unlock()
	return u, nil
}

func noUser(name string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "find user", Message: fmt.Sprintf("the image knows no user %q", name), Remedy: "give the number of one"}
}

// findUser reads a table of users.
func findUser(table io.Reader, name string) (sandbox.User, bool) {
	for lines := bufio.NewScanner(table); lines.Scan(); {
		f := strings.Split(lines.Text(), ":")
		if len(f) < 4 || f[0] != name {
			continue
		}
		u, err := sandbox.ParseUser(f[2] + ":" + f[3])
		u.Name = name
		return u, err == nil
	}
	return sandbox.User{}, false
}
