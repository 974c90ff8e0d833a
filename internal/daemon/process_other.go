//go:build !unix

package daemon

import (
	"errors"
	"os"
	"syscall"
)

// Sessions need a backend that keeps sandboxes, and those there are need Linux.

func flock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func detached() *syscall.SysProcAttr { return nil }
