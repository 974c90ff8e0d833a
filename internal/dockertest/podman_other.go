//go:build !linux

package dockertest

import (
	"context"
	"fmt"
)

// StartPodman returns ErrMissing on this system.
func StartPodman(context.Context) (*Engine, error) {
	return nil, fmt.Errorf("%w: Podman's service requires Linux", ErrMissing)
}
