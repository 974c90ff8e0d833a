//go:build !linux

package volumes

import (
	"context"
	"errors"
	"io/fs"
)

func allocated(info fs.FileInfo) int64 { return info.Size() }

var errLinuxOnly = errors.New("limiting a volume requires Linux")

// CanLimit returns nil if this program can make volumes whose size is limited, and otherwise the reason.
func CanLimit() error { return errLinuxOnly }

func (v *Volume) makeImage(context.Context) error { return errLinuxOnly }
