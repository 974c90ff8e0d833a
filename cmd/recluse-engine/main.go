//go:build linux

// Command recluse-engine is gVisor's runsc with the commands that recluse needs and
// nothing else. Whatever is linked into it is paid by every sandbox, so nothing of ours
// is but the small files beside this one, and the command table is our own: gVisor's maincli pulls in a second program for
// uploads to cloud storage that more than doubles the size (83 MB against 35 MB).
//
// It is not meant to be called by hand.
package main

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

func main() {
	calmCollector()
	countHeap()
	showMachine()
	breakLongCalls()
	// The values are the groups of the help text. Those called internal are what the
	// engine starts as itself: without them no sandbox boots.
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Checkpoint): "",
		new(cmd.Create):     "",
		new(cmd.Delete):     "",
		new(cmd.Events):     "",
		new(cmd.Exec):       "",
		new(cmd.Kill):       "",
		new(cmd.List):       "",
		new(cmd.PS):         "",
		new(cmd.Pause):      "",
		new(cmd.Restore):    "",
		new(cmd.Resume):     "",
		new(cmd.Run):        "",
		new(cmd.Start):      "",
		new(cmd.State):      "",
		new(cmd.Wait):       "",

		new(cmd.Debug): "debug",

		new(cmd.Gofer):        "internal",
		new(sentrycmd.Boot):   "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
}
