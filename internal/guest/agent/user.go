//go:build linux

package agent

import (
	"os"
	"strings"

	"github.com/recluse-dev/recluse/internal/guest/user"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// switchesUser reports whether the guest runs code as another user than its own. Then it can run code as any user.
func (a *Agent) switchesUser() bool { return a.privileges != nil || os.Getuid() == 0 && a.cfg.UID > 0 }

// defaultUser returns the user that runs code if the request does not name one.
func (a *Agent) defaultUser() user.User {
	if a.cfg.UID < 0 {
		return user.User{UID: os.Getuid(), GID: os.Getgid()}
	}
	return user.User{UID: a.cfg.UID, GID: a.cfg.GID}
}

// user returns the user that a request names, or nil if it names none.
func (a *Agent) user(text string) (*user.User, *wire.Error) {
	if text == "" {
		return nil, nil
	}
	u, err := user.Find(text)
	usual := a.defaultUser()
	switch {
	case err != nil:
		return nil, wire.Errorf("invalid_request", "%v", err)
	case u.Same(usual):
		return &u, nil
	case !a.switchesUser():
		return nil, wire.Errorf("not_supported", "code runs as user %d:%d here and cannot run as %q",
			usual.UID, usual.GID, text)
	case u.IsRoot() && a.privileges == nil:
		return nil, wire.Errorf("invalid_request", "code cannot run as root or in the group of root: "+
			"the sandbox was not made with sudo")
	}
	return &u, nil
}

// userEnv returns env, preceded by the user's variables that env does not set.
func userEnv(u *user.User, env [][]byte) [][]byte {
	set := map[string]bool{}
	for _, e := range env {
		k, _, _ := strings.Cut(string(e), "=")
		set[k] = true
	}
	var out [][]byte
	for _, e := range u.Env() {
		if k, _, _ := strings.Cut(e, "="); !set[k] {
			out = append(out, []byte(e))
		}
	}
	return append(out, env...)
}
