// Package collector delays the garbage collector, so that a program starts, and most commands end, without it.
//
// It is separate from package startup because it needs runtime/debug, which is initialised after many others.
package collector

import (
	"os"
	"runtime/debug"
	"time"
)

const (
	// startupPercent is the GC percentage at the start. With the default of 100, the garbage collector runs before
	// main, on new objects that all stay in use.
	startupPercent = 400
	// startupTime is the time after which a command that still runs gets the default percentage.
	startupTime = time.Second
)

// A percentage that is set with GOGC stays.
func init() {
	if os.Getenv("GOGC") != "" {
		return
	}
	previous := debug.SetGCPercent(startupPercent)
	time.AfterFunc(startupTime, func() { debug.SetGCPercent(previous) })
}
