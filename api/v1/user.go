package v1

import (
	"fmt"
	"strconv"
	"strings"
)

// User is the user that processes of a sandbox run as.
type User struct {
	UID, GID int
	Name     string // set instead of the numbers; it is looked up in the root file system
}

// DefaultUser is the user of a spec without one.
var DefaultUser = User{UID: DefaultUID, GID: DefaultUID}

// maxUID is the largest uid or gid; the Linux kernel reserves the next number.
const maxUID = 1<<31 - 2

// IsRoot reports whether u is root or in root's group.
func (u User) IsRoot() bool { return u.Name == "root" || u.Name == "" && (u.UID == 0 || u.GID == 0) }

// AllowsRoot reports whether code may become root inside.
func (s Spec) AllowsRoot() bool {
	u, err := ParseUser(s.User)
	return s.Sudo || err == nil && u.IsRoot()
}

// ParseUser parses Spec.User: a uid, whose group has the same number; uid:gid; or a name.
func ParseUser(text string) (User, error) {
	if text == "" {
		return DefaultUser, nil
	}
	if isName(text, lower+"_", lower+digits+"_-", 32) {
		return User{Name: text}, nil
	}
	user, group, both := strings.Cut(text, ":")
	uid, err := parseID(user)
	gid := uid
	if err == nil && both {
		gid, err = parseID(group)
	}
	if err != nil {
		return User{}, &Error{
			Code:    CodeInvalidSpec,
			Op:      "check spec",
			Message: fmt.Sprintf("invalid user %q: want uid, uid:gid or a name", text),
		}
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

// The characters of names.
const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// isName reports whether text is a name of at most longest bytes: one character of first, then any number of characters
// of rest. It is not a regular expression because those are compiled whenever a program starts, and this package must
// cost every program little.
func isName(text, first, rest string, longest int) bool {
	return text != "" && len(text) <= longest &&
		strings.IndexByte(first, text[0]) >= 0 && strings.Trim(text[1:], rest) == ""
}
