//go:build !linux

package dockertest

import (
	"context"
	"fmt"
)

// StartPodman starts nothing here.
func StartPodman(context.Context) (*Engine, error) {
	return nil, fmt.Errorf("%w: Podman's service is for Linux", ErrMissing)
}
