//go:build !unix

package server

import "net"

// listenPrivate relies on the permissions of the directory.
func listenPrivate(path string) (net.Listener, error) { return net.Listen("unix", path) }
