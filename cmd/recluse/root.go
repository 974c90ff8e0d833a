package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// app is one invocation of the program.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	json           bool // --json
}

// Exit statuses that are ours. A command's own, 124, 126, 127 and those of signals come from its verdict.
const (
	statusFailure = 125 // recluse failed, not what it ran
	statusPipe    = 141 // nobody reads our output any more: what a program that is killed by SIGPIPE gives
)

// exit is the error of a verb that has said everything and only wants a status.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// main runs one invocation and gives its exit status.
func (a *app) main(ctx context.Context, args []string) int {
	ignorePipe()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	var status exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	a.report(err)
	if s, ok := signalled(err); ok {
		return s
	}
	return statusFailure
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "recluse",
		Short: "Run model-written Python and bash in a machine of their own",
		Long: `recluse runs code that nobody has read yet: each sandbox has a kernel of its own, no
network, limits, and nothing of this machine but its programs, read-only.

Exit status: that of what ran; 124 when its time was up, 128 and the signal's number when a
signal ended it, 130 after Ctrl-C, 126 and 127 when it could not be started, and 125 when
recluse itself failed.`,
		Example: `  recluse exec --python 'import platform; print(platform.release())'
  recluse exec -- bash -c 'id; ls /'
  recluse shell
  recluse doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print the result as JSON")
	root.AddCommand(a.execCommand(), a.shellCommand(), a.demoCommand(), a.doctorCommand(), a.versionCommand())
	return root
}
