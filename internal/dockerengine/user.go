package dockerengine

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxPasswd is how much of an image's table of users is read.
const maxPasswd = 1 << 20

// imageUser names a user of an image.
type imageUser struct {
	image string // id, so that the answer holds for ever
	name  string
}

// LookUpUser returns the user of a name in the /etc/passwd of an image, which is given by its id. Each is read once.
func (e *Engine) LookUpUser(ctx context.Context, image, name string) (v1.User, error) {
	key := imageUser{image, name}
	e.mu.Lock()
	u, known := e.users[key]
	e.mu.Unlock()
	if known {
		return u, nil
	}
	table, err := e.ReadFile(ctx, image, "/etc/passwd", maxPasswd)
	if err != nil && !errdefs.IsNotFound(err) {
		return u, Failed(ctx, "find user", "the image's /etc/passwd cannot be read", err)
	}
	u, ok := findUser(string(table), name)
	if !ok {
		return u, &v1.Error{
			Code: v1.CodeInvalidSpec, Op: "find user", Message: fmt.Sprintf("the image knows no user %q", name), Remedy: "give the number of one",
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.users == nil {
		e.users = map[imageUser]v1.User{}
	}
	e.users[key] = u
	return u, nil
}

// findUser returns the user of a name in the text of an /etc/passwd.
func findUser(table, name string) (v1.User, bool) {
	for line := range strings.Lines(table) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || f[0] != name {
			continue
		}
		u, err := v1.ParseUser(f[2] + ":" + f[3])
		if err != nil {
			return v1.User{}, false
		}
		u.Name = name
		return u, true
	}
	return v1.User{}, false
}
