//go:build linux

package interpreter

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/user"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Profile is what a cell demands of its interpreter. The first cell of a context decides; later ones may leave it out, and must not
// contradict it.
type Profile struct {
	Language string     // "": the context's, or the default
	User     *user.User // nil: the context's, or the sandbox's
}

// kernel returns the kernel of a language, the default for "".
func (c *Contexts) kernel(language string) (kernel.Kernel, *wire.Error) {
	var names []string
	for _, k := range c.cfg.Kernels {
		if language == "" || language == k.Language() {
			return k, nil
		}
		names = append(names, k.Language())
	}
	return nil, wire.Errorf("invalid_request", "unknown language %q: this sandbox runs %s", wire.Clip(language, 80), strings.Join(names, ", "))
}

// decide returns the profile of an interpreter that a cell starts, complete.
//
// Preconditions: mu is held.
func (c *Contexts) decide(context string, want Profile) (Profile, *wire.Error) {
	if p, ok := c.decided[context]; ok {
		return p, p.refuse(context, want)
	}
	k, bad := c.kernel(want.Language)
	if bad != nil {
		return Profile{}, bad
	}
	p := Profile{Language: k.Language(), User: want.User}
	if p.User == nil {
		p.User = &c.cfg.User
	}
	return p, nil
}

// refuse returns an error if a cell demands something else than the interpreter of its context is.
func (p Profile) refuse(context string, want Profile) *wire.Error {
	switch {
	case want.Language != "" && want.Language != p.Language:
		return wire.Errorf("invalid_request", "context %q runs %s and not %s", context, p.Language, wire.Clip(want.Language, 80))
	case want.User != nil && !want.User.Same(*p.User):
		return wire.Errorf("invalid_request", "the interpreter of context %q is user %d:%d and not %d:%d", context, p.User.UID, p.User.GID, want.User.UID, want.User.GID)
	}
	return nil
}
