//go:build linux

package main

import (
	"os"
	"runtime/debug"
	"slices"
	"time"
)

const (
	// bootPercent is the GC percentage while a sandbox boots or is restored. With the default of 100, the collector
	// runs several times in as many milliseconds.
	bootPercent = 400
	// bootTime is a time after which a boot or restore has certainly ended.
	bootTime = time.Second
)

// relaxCollector makes the garbage collector run less often while a sandbox boots. Afterwards it returns the garbage of
// the boot to the host: 6 MB in every idle sandbox (bench --only memory).
func relaxCollector() {
	if !slices.Contains(os.Args, "boot") {
		return
	}
	previous := debug.SetGCPercent(bootPercent)
	time.AfterFunc(bootTime, func() {
		debug.SetGCPercent(previous)
		debug.FreeOSMemory()
	})
}
