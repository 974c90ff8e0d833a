// Package gvisor runs sandboxes in gVisor, a kernel of its own in user space, on plain Linux: as root or as an ordinary
// user, without a daemon, KVM or an image.
//
// The engine program (gVisor's runsc, built from cmd/recluse-engine) is driven by its command line. All truth about a
// sandbox is in files: the engine's state directory, the sandbox's own directory with its bundle and named pipes, and its
// cgroups; so any process can take over a sandbox that another one started.
package gvisor
