//go:build linux

package interpreter

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/user"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Profile is what a cell requires of its interpreter. The first cell of a context sets the profile of the context.
// Later cells may leave fields empty, and must not contradict it.
type Profile struct {
	Language string     // "": that of the context, or the default
	User     *user.User // nil: that of the context, or of the sandbox
}

// kernel returns the kernel of a language; "" means the default.
func (c *Contexts) kernel(language string) (kernel.Kernel, *wire.Error) {
	var names []string
	for _, k := range c.cfg.Kernels {
		if language == "" || language == k.Language() {
			return k, nil
		}
		names = append(names, k.Language())
	}
	return nil, wire.Errorf("invalid_request", "unknown language %q: this sandbox runs %s",
		wire.Clip(language, 80), strings.Join(names, ", "))
}

// profileOf returns the complete profile of the interpreter that a cell starts.
//
// Preconditions: mu is held.
func (c *Contexts) profileOf(context string, want Profile) (Profile, *wire.Error) {
	if p, ok := c.profiles[context]; ok {
		return p, p.check(context, want)
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

// check returns an error if a cell requires another profile than that of its context.
func (p Profile) check(context string, want Profile) *wire.Error {
	switch {
	case want.Language != "" && want.Language != p.Language:
		return wire.Errorf("invalid_request", "context %q runs %s, not %s",
			context, p.Language, wire.Clip(want.Language, 80))
	case want.User != nil && !want.User.Same(*p.User):
		return wire.Errorf("invalid_request", "the interpreter of context %q runs as user %d:%d, not %d:%d",
			context, p.User.UID, p.User.GID, want.User.UID, want.User.GID)
	}
	return nil
}
