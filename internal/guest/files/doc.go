// Package files does the file work that the host asks of the guest: read, write, list, stat, mkdir, move, remove, watch,
// and tar streams in and out. It knows nothing of the wire protocol.
//
// # Confinement
//
// Every operation takes a root, a directory ("" means "/"), and a path that is always taken below it: a leading slash
// means the root, not the machine's. Paths are walked name by name, and nothing is followed by the kernel: links are read,
// and their text is walked in turn (so the magic links of /proc are names like any other, not doors). Below a root other
// than "/" a link that stays inside is followed, and absolute ones and every way out are refused (Kind Escapes). The last
// name is used with single-name *at calls that follow nothing, relative to the opened directory, so that a link swapped in
// meanwhile leads nowhere. With root "/" the confinement is the sandbox itself, and absolute links work.
//
// [os.Root] is not used, because it does not hold inside gVisor; path.go tells why.
//
// # Whose permissions
//
// The guest is root, the files are the user's. With Options.SwitchUser each system call that names a file is made on an
// OS thread that has taken the user's effective ids for that moment (see user.go), so the file API can do what the user's
// own commands could, and no more. Data then flows through the open descriptor outside of that thread: a slow reader
// holds up nobody else. Files of the guest's own process in /proc are refused whoever asks.
//
// # Names
//
// Names are bytes: quotes, newlines, percent signs and invalid UTF-8 mean themselves. NUL, a name of more than 255 bytes
// and a path of more than 4095 are refused (Kind Invalid). "." and empty components are dropped.
package files
