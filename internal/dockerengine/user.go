package dockerengine

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxPasswd limits how much of an image's /etc/passwd is read.
const maxPasswd = 1 << 20

// imageUser identifies a user of an image.
type imageUser struct {
	image string // image ID, so that the result never changes
	name  string
}

// LookUpUser returns the user with a name in the /etc/passwd of an image. The image is given by its ID. Results are
// cached.
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
		return u, Failed(ctx, "find user", "cannot read /etc/passwd of the image", err)
	}
	u, ok := findUser(string(table), name)
	if !ok {
		return u, &v1.Error{
			Code:    v1.CodeInvalidSpec,
			Op:      "find user",
			Message: fmt.Sprintf("the image has no user %q", name),
			Remedy:  "use a numeric user ID, or a user of the image",
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

// findUser returns the user with a name in the text of an /etc/passwd.
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
