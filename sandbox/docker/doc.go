// Package docker is the backend whose sandboxes are containers of a Docker engine: one on this machine or far away, on runc or on a
// runtime with a kernel of its own, such as gVisor's runsc.
//
// The guest comes from a named volume, which is filled once through a container that is never started, and is the container's first
// process. Nothing of this machine need be mounted, so the engine may be anywhere. The byte stream to the guest is one exec of
// the guest's binary as a bridge for each attachment, never one for each call; when a program dies, its bridge ends, and the next
// program's takes its place.
//
// Labels on the containers are the truth about what exists: a program that has just started finds the sandboxes of its instance, with what
// runs in them, and never touches those of another instance.
package docker
