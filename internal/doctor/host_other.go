//go:build !linux

package doctor

import (
	"context"
	"runtime"
)

func systemName() string { return runtime.GOOS + "/" + runtime.GOARCH }

// HostKernel returns the release of the kernel of this machine.
func HostKernel() string { return runtime.GOOS }

func hostChecks(context.Context) []Fact {
	return []Fact{
		{Name: "system", Detail: "the gvisor backend runs on Linux only", Remedy: "use a Linux machine or virtual machine"},
	}
}
