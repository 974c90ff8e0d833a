// Package files implements the file operations of the guest: read, write, list, stat, mkdir, move, remove, watch, and
// tar streams in both directions. It does not depend on the wire protocol.
//
// # Confinement
//
// Every operation takes a root, which is a directory ("" means "/"), and a path that is always resolved below the root:
// a leading slash means the root, not "/" of the sandbox. A path is walked name by name, and the kernel never follows a
// link: the package reads each link and walks its text. So the magic links of /proc are treated like any other link.
// Below a root other than "/", a link that stays inside is followed; absolute links and links that lead out are refused
// (Kind Escapes). The last name is used in *at calls with a single name that follow nothing, relative to the opened
// directory, so a link that is swapped in meanwhile has no effect. With root "/", the sandbox itself is the
// confinement, and absolute links work.
//
// [os.Root] is not used, because its confinement does not hold inside gVisor; path.go explains why.
//
// # Permissions
//
// The guest is root, and the files belong to the user. With Options.SwitchUser, each system call that names a file runs
// on an OS thread that has the user's effective ids for the time of the call (see user.go). The file API can therefore
// do what the user's own commands can do, and no more. Data then flows through the open descriptor outside that thread,
// so a slow reader does not block other operations. Files of the guest's own process in /proc are refused for every
// user.
//
// # Names
//
// Names are bytes: quotes, newlines, percent signs and invalid UTF-8 have no special meaning. A NUL byte, a name of
// more than 255 bytes and a path of more than 4095 bytes are refused (Kind Invalid). "." and empty components are
// dropped.
package files
