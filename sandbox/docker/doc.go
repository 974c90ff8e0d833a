// Package docker is the backend whose sandboxes are containers of a Docker engine. The engine may be local or remote.
// Its runtime is runc, or a runtime with its own kernel, such as gVisor's runsc.
//
// The guest is the first process of the container. Its program comes from a named volume, which is filled once
// through a container that is never started. Nothing of this machine has to be mounted, so the Docker engine may be
// on any machine. The byte stream to the guest is one exec of the guest's binary as a bridge. There is one bridge for
// each attachment, never one for each call. When a host program dies, its bridge ends, and the bridge of the next
// program replaces it.
//
// The labels of the containers are the only record of which sandboxes exist. A program that starts finds the
// sandboxes of its instance, with everything that runs in them. It never touches the sandboxes of another instance.
package docker
