// Package collector lets a program start, and most verbs end, without the garbage collector.
//
// It stands apart from package startup because it needs runtime/debug, which is initialised behind many others.
package collector

import (
	"os"
	"runtime/debug"
	"time"
)

const (
	// calmPercent is the garbage collector's at first: with the usual 100 it runs before main does, over what was just made and all of which stays.
	calmPercent = 400
	// calmFor is when a verb that is still at work gets the usual one.
	calmFor = time.Second
)

// Whoever has set the collector by GOGC keeps that.
func init() {
	if os.Getenv("GOGC") != "" {
		return
	}
	usual := debug.SetGCPercent(calmPercent)
	time.AfterFunc(calmFor, func() { debug.SetGCPercent(usual) })
}
