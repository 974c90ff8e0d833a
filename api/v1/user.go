package v1

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// User is whose processes run in a sandbox.
type User struct {
	UID, GID int
	Name     string // set if a name was given, which is looked up in the root file system
}

// DefaultUser is the user of a spec that names none.
var DefaultUser = User{UID: DefaultUID, GID: DefaultUID}

// maxUID is the largest number of a user or group; the kernel reserves the next one.
const maxUID = 1<<31 - 2

var goodUser = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// ParseUser reads Spec.User: the number of a user, whose group has the same number; user:group, both numbers; or a name.
func ParseUser(text string) (User, error) {
	if text == "" {
		return DefaultUser, nil
	}
	if goodUser.MatchString(text) {
		return User{Name: text}, nil
	}
	user, group, both := strings.Cut(text, ":")
	uid, err := parseID(user)
	gid := uid
	if err == nil && both {
		gid, err = parseID(group)
	}
	if err != nil {
		return User{}, &Error{Code: CodeInvalidSpec, Op: "check spec", Message: fmt.Sprintf("user %q is neither a number, user:group, nor a name", text)}
	}
	return User{UID: uid, GID: gid}, nil
}

func parseID(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > maxUID || strconv.Itoa(n) != text {
		return 0, strconv.ErrRange
	}
	return n, nil
}
