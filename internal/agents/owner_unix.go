//go:build unix

package agents

import (
	"os"
	"strconv"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Owner returns the owner of a project in the form of Spec.User, so that code can write where the owner can, and new
// files belong to the owner. user is empty for the default user of a sandbox, and for root, because code never runs as
// root.
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
	if gid == 0 { // code does not run in root's group, either
		gid = uid
	}
	if uid == v1.DefaultUser.UID && gid == v1.DefaultUser.GID {
		return "", false, nil
	}
	return strconv.Itoa(uid) + ":" + strconv.Itoa(gid), false, nil
}
