//go:build linux

// Command recluse-engine is gVisor's runsc with only the commands that recluse needs. Everything that is linked into it
// costs memory in every sandbox. Therefore it contains nothing of ours except the small files beside this one, and it
// has its own command table: gVisor's maincli links a second program for uploads to cloud storage, which more than
// doubles the size (83 MB against 35 MB).
//
// It is not meant to be called by hand.
package main

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

func main() {
	relaxCollector()
	countHeap()
	showMachine()
	splitLongCalls()
	if err := composeRoot(); err != nil {
		fmt.Fprintln(os.Stderr, "compose the root file system:", err)
		os.Exit(1)
	}
	declareCheckpointGofer()
	// The values are the groups of the help text. The engine starts itself with the internal commands; without them no
	// sandbox boots.
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

		new(cmd.Gofer):            "internal",
		boot{new(sentrycmd.Boot)}: "internal",
		checkpointGofer{}:         "internal",
		new(sentrycmd.Umount):     "internal",
	}, nil)
}
