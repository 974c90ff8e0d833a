//go:build unix

package agents

import (
	"os"
	"strconv"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Owner returns the owner of a project in the form of Spec.User, so that code may change what the owner may, and new files are the owner's. It is
// empty for the sandbox's usual user, and for root, which code never is.
func Owner(project string) (user string, root bool, err error) {
	fi, err := os.Stat(project)
	if err != nil {
		return "", false, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false, nil
	}
	uid, gid := int(st.Uid), int(st.Gid)
	if uid == 0 {
		return "", true, nil
	}
	if gid == 0 { // nor is code in root's group
		gid = uid
	}
	if uid == v1.DefaultUser.UID && gid == v1.DefaultUser.GID {
		return "", false, nil
	}
	return strconv.Itoa(uid) + ":" + strconv.Itoa(gid), false, nil
}
