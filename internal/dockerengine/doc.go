// Package dockerengine is a Docker engine as the docker backend needs it: found as the docker command finds it,
// with what is known of it, images pulled with the user's credentials, a byte stream to a program in a container,
// and containers that are gone once they were removed. Podman's service speaks the same language with an accent;
// what has to be said or understood differently is here.
package dockerengine
