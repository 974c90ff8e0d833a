//go:build !linux

package dockersetup

import (
	"context"
	"io"

	"github.com/recluse-dev/recluse/sandbox/backend"
)

// WriteHostRoot is for Linux machines, whose programs a container can run.
func WriteHostRoot(context.Context, io.Writer) error {
	return backend.NotSupported("docker", "build an image from this machine", "pull one instead")
}
