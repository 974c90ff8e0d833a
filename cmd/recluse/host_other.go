//go:build !linux

package main

import (
	"context"
	"runtime"
)

func systemName() string { return runtime.GOOS + "/" + runtime.GOARCH }

func hostKernel() string { return runtime.GOOS }

func hostChecks(context.Context) []fact {
	return []fact{{Name: "system", Detail: "the embedded backend runs on Linux only", Remedy: "use a Linux machine or a virtual one"}}
}

func freeSpace(string) string { return "" }
