package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/config"
)

// app is one invocation of the program.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	json           bool // --json
	verbose        bool // --verbose
	forModel       bool // a model reads our output
	begun          bool // the arguments are valid, and the verb runs
	configFile     string
	cfg            *config.Config // nil until config is called
	e2bKey         string         // key that a server prints for E2B's SDKs
	otherConfig    bool           // the connected server has a different configuration
	signals        *watch         // signal handling of the verb; nil before watch is called
	listening      listeningAddrs // TCP addresses on which this program serves
	atEnd          []func() error // called when the verb has ended, to release what it used
	helpFailed     error          // why a help text could not be printed
}

// Exit statuses of recluse itself. The status of a command, 124, 126, 127 and those of signals come from its verdict.
const (
	statusMissing = 1   // the named object does not exist; only verbs that run nothing
	statusFailure = 125 // recluse failed, not the code that it ran
	statusPipe    = 141 // the reader of our output has closed it: the status of a program that SIGPIPE kills
)

// exit is the error of a verb that has printed everything and only sets an exit status, which may be zero.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// main runs one invocation and returns its exit status.
func (a *app) main(ctx context.Context, args []string) int {
	ignorePipe()
	root := a.root(args...)
	root.SetArgs(args)
	verb, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, a.helpFailed)
	if outputClosed(err) {
		err = errPipe
	}
	err = a.explain(verb, args, err)
	for _, f := range a.atEnd {
		_ = f() // the verb has already reported its result
	}
	var status exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, errPipe):
		return statusPipe
	}
	a.report(err)
	if s, ok := signalled(err); ok {
		return s
	}
	if absent(err) && !runsCode[verb.CommandPath()] {
		return statusMissing
	}
	return statusFailure
}

// runsCode lists the verbs whose exit status is the status of what they run, including 1.
var runsCode = map[string]bool{
	"recluse exec":        true,
	"recluse shell":       true,
	"recluse hook run":    true,
	"recluse ask":         true,
	"recluse runs resume": true,
	"recluse runs fork":   true,
	"recluse runs replay": true,
	"recluse runs watch":  true,
}

// absent reports whether err, or each of the errors joined in it, means that the named object does not exist.
func absent(err error) bool {
	for _, e := range single(err) {
		if !absentOne(e) {
			return false
		}
	}
	return true
}

func absentOne(err error) bool {
	return gone(err) || slices.Contains([]v1.Code{
		v1.CodeNotFound,
		v1.CodeSnapshotNotFound,
		v1.CodeVarNotFound,
		v1.CodeKeyUnknown,
		v1.CodeRunNotFound,
		v1.CodeApprovalUnknown,
		v1.CodeFileNotFound,
		v1.CodeVolumeNotFound,
	}, v1.CodeOf(err))
}

// root returns the command line. If args name the verb hook, hook is its only verb: an agent waits for hook run at each
// of its commands, and declaring the flags of all verbs takes a millisecond.
func (a *app) root(args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:   "recluse",
		Short: "Run model-written Python and bash in sandboxes",
		Long: `Run model-written Python and bash in sandboxes.

Each sandbox has its own kernel, limits and no network. Of this machine it sees only the
installed programs, read-only.

Exit status: that of the code that ran, or
  124       timeout
  125       recluse failed, not the code
  126, 127  the program could not be started
  128+N     killed by signal N; 130 after Ctrl-C
Commands that run nothing exit with 1 if the named object does not exist.`,
		Example: `  recluse exec --python 'import platform; print(platform.release())'
  recluse exec -- bash -c 'id; ls /'
  recluse exec --session work --python 'x = 41'
  recluse exec --session work --python 'x + 1'
  recluse shell
  recluse doctor`,
		Version:       thisBuild().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("recluse {{.Version}}\n")
	root.Flags().BoolP("version", "V", false, "print the version")
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetHelpFunc(a.help)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print the result as JSON")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "print warnings in full")
	root.PersistentFlags().StringVar(&a.configFile, "config", "",
		"configuration `file` (default $XDG_CONFIG_HOME/recluse/config.yaml)")
	run := &cobra.Group{ID: "run", Title: "Run code:"}
	sessions := &cobra.Group{ID: "session", Title: "Sessions:"}
	serve := &cobra.Group{ID: "serve", Title: "Serving and operation:"}
	root.AddGroup(run, sessions, serve)
	verbs := map[*cobra.Group][]*cobra.Command{serve: {a.hookCommand()}}
	if len(args) == 0 || args[0] != "hook" {
		verbs = a.verbs(run, sessions, serve)
	}
	for group, commands := range verbs {
		for _, c := range commands {
			c.GroupID = group.ID
			root.AddCommand(c)
		}
	}
	strictHelp(root)
	completeEnums(root)
	a.noteRuns(root)
	return root
}

// verbs returns all verbs by their group.
func (a *app) verbs(run, sessions, serve *cobra.Group) map[*cobra.Group][]*cobra.Command {
	return map[*cobra.Group][]*cobra.Command{
		run: {a.execCommand(), a.shellCommand(), a.askCommand(), a.runsCommand(), a.mcpCommand(), a.demoCommand()},
		sessions: {
			a.sessionCommand(), a.snapshotCommand(), a.forkCommand(), a.volumeCommand(), a.cpCommand(), a.psCommand(),
			a.killCommand(), a.logsCommand(), a.portCommand(), a.netCommand(),
		},
		serve: {
			a.serveCommand(), a.serverCommand(), a.keyCommand(), a.tenantCommand(), a.usageCommand(), a.auditCommand(),
			a.gateCommand(), a.integrateCommand(), a.hookCommand(), a.gcCommand(), a.sandboxCommand(), a.configCommand(),
			a.doctorCommand(), a.imageCommand(), a.vmCommand(), a.installRuntimeCommand(), a.versionCommand(),
		},
	}
}
