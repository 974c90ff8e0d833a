package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// jsonInline is the output kept per stream with --json. It is the maximum, because the file with the rest of the output
// ends with the sandbox.
const jsonInline = 1 << 20

type execOptions struct {
	sandboxFlags
	session       string
	labels        labelFlags
	context       string
	background    bool
	waitPort      uint16
	python        string
	pythonFile    string
	timeout       v1.Duration
	inline, spool int64
	killSurvivors bool
	noStdin       bool
	gate          string
	role          string
	saveDisplay   string

	saved *displays // what --save-display has saved; nil without it
}

func (a *app) execCommand() *cobra.Command {
	var o execOptions
	c := &cobra.Command{
		Use:   "exec [flags] [--] COMMAND [ARG...]",
		Short: "Run a command or Python code in a sandbox or a session",
		Long: `Run a command or Python code in a new sandbox, or in a session.

Without --session, a new sandbox is made, and it ends with the command. With --session, the
command runs in the session of that name, which is made if it does not exist. A session is a
sandbox that stays after the command, with its Python variables, files and processes, until
recluse session end. If client.url is configured, sandboxes and sessions are on that server.

--timeout, --env and --dir are for this command only, in a session too. The other flags in
the groups Limits, Network, Sandbox and Backend, and --gate and --role, are settings of the
sandbox: if you give one for an existing session, it must have the value that the session
has; otherwise the command is refused. Leave them out to use the session as it is. recluse
net set changes the network of a session.

stdin, stdout, stderr and the exit status are those of the command. --python runs code like
a notebook cell: it prints the value of the last expression. --python-file runs a script as
python3 does, in a process of its own: it does not see the session's Python variables. With
both, further arguments are in sys.argv.

With --json, stdout is one JSON object instead of the output: the verdict, which has the
output, the exit code and how the command ended ("ended"), or {"error": ...}.

A sandbox has no network unless --net or --allow permits it: --net packages for package
managers, --allow NAME for one server. Sizes are bytes, or a number with k, m or g: 1m is
1 MiB.

Exit status if it is not the command's own; a line on stderr says why:
  124  after a timeout
  125  recluse failed, or refused to run the command
  137  killed (128 + signal 9), for example because of the memory limit`,
		Example: `  recluse exec --python 'import platform; print(platform.release())'
  recluse exec --session work --python 'x = 41'
  recluse exec --session work --python 'x + 1'
  recluse exec --session work --background -- make -C /home/user/project
  recluse exec --session work --background --wait-port 8000 -- npm start
  recluse exec --python - < script.py
  recluse exec --save-display plots --python - < plot.py
  recluse exec --python-file script.py ARG... < data
  recluse exec -- bash -c 'id; ls /'
  echo data | recluse exec -- wc -c
  while read -r f; do recluse exec -n -- echo "$f"; done < list
  recluse exec --timeout 5s --memory 256m --cpus 0.5 --python 'while True: pass'
  recluse exec --mount .:/work:rw --dir /work -- python3 -m pytest
  recluse exec --net packages -- npm install left-pad
  recluse exec --allow api.github.com -- curl -sS https://api.github.com/zen`,
		RunE: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("python") && !c.Flags().Changed("python-file") && len(args) == 0 {
				return usage("nothing to run: give a command, --python or --python-file")
			}
			if err := o.check(c.Flags(), a.json); err != nil {
				return err
			}
			return a.exec(c.Context(), &o, c.Flags().Changed("python"), args)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // arguments after the command's name are for the command
	f.StringVar(&o.python, "python", "", "run this Python `code` as a cell; - reads it from stdin")
	f.StringVar(&o.pythonFile, "python-file", "", "run this local Python `file` as a program")
	f.Var(valueOf(&o.inline), "inline-bytes",
		"with --json: maximum `size` of each stream in the verdict; more is cut in the middle (default 1 MiB)")
	f.Var(valueOf(&o.spool), "spool-bytes",
		"with --session: maximum `size` of each stream that is kept for \"recluse logs\" (default 10 MiB)")
	f.Var(
		&o.timeout,
		"timeout",
		"kill the command and its processes after this `duration`, such as 5s or 2m (default unlimited)",
	)
	f.BoolVar(&o.killSurvivors, "kill-survivors", false, "kill processes that the command leaves running in the session")
	f.BoolVarP(&o.noStdin, "no-stdin", "n", false,
		"give the command an empty stdin; needed in a \"while read\" loop, because the command would "+
			"read the loop's input")
	f.StringVar(&o.saveDisplay, "save-display", "",
		"with --python: save plots and documents that the code displays to this `directory`")
	f.StringVar(&o.session, "session", "", "run in the session of this `name`")
	f.Var(&o.labels, "label", "with --session: label of the session, if this call makes it (repeatable)")
	f.StringVar(&o.context, "context", "",
		"with --session and --python: `name` of the interpreter, made if missing; each has its own variables")
	f.BoolVar(
		&o.background,
		"background",
		false,
		"with --session: do not wait; print the ID of the command, for \"recluse logs SESSION ID\" and \"recluse kill SESSION ID\"",
	)
	f.Uint16Var(&o.waitPort, "wait-port", 0,
		"with --background: wait until a program listens on this `port`; fail if the command ends before")
	f.StringVar(
		&o.gate,
		"gate",
		"",
		"what to do with findings of the gate, which checks code before it runs (default as configured)",
	)
	f.StringVar(&o.role, "role", "", "`role` that selects the word list of the gate; see \"recluse gate\"")
	o.register(f)
	setGroup(f, groupSession, "session", "context", "background", "wait-port", "label", "spool-bytes", "kill-survivors")
	setGroup(f, groupOutput, "inline-bytes", "save-display")
	setGroup(f, groupLimits, "timeout")
	c.MarkFlagsMutuallyExclusive("python", "python-file")
	a.completeSession(c, "session")
	completeEnum[v1.GateRequest](c, "gate", "Rules")
	return c
}

// check refuses flags that cannot be combined.
func (o *execOptions) check(f *pflag.FlagSet, json bool) error {
	cell := f.Changed("python")
	if o.gate != "" {
		if _, err := gate.ParseMode(o.gate); err != nil {
			return err
		}
	}
	switch {
	case f.Changed("session") && o.session == "":
		return usage("--session: empty name")
	case o.session == "" && (o.context != "" || o.background || len(o.labels) > 0 || o.spool > 0):
		return usage("--context, --background, --label and --spool-bytes need --session")
	case o.inline > 0 && !json:
		return usage("--inline-bytes needs --json")
	case o.context != "" && !cell:
		return usage("--context needs --python")
	case f.Changed("wait-port") && !o.background:
		return usage("--wait-port needs --background: otherwise the call waits until the command ends")
	case f.Changed("wait-port") && o.waitPort == 0:
		return usage("--wait-port: want a number from 1 to 65535")
	case o.background && cell:
		return usage("--background cannot be used with --python, because a cell occupies its interpreter")
	case o.saveDisplay != "" && !cell:
		return usage("--save-display needs --python")
	case o.noStdin && cell && o.python == "-":
		return usage("--no-stdin cannot be used with --python -, which reads the code from stdin")
	case o.session != "" && o.sandbox.Dir != "" && cell:
		return usage(
			"--dir cannot be used with --session and --python: the interpreter has its own directory; os.chdir changes it",
		)
	}
	return nil
}

func (a *app) exec(ctx context.Context, o *execOptions, cell bool, args []string) error {
	cmd := sandbox.Command{
		Args:       args,
		RunOptions: sandbox.RunOptions{Stdin: a.input(), Timeout: timeout(o.timeout), KillSurvivors: o.killSurvivors},
	}
	req := gate.Request{Language: gate.Python, Code: o.python}
	if o.noStdin {
		cmd.Stdin = nil
	}
	if cell && o.python == "-" {
		b, err := io.ReadAll(a.stdin)
		if err != nil {
			return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read the code", Message: "cannot read stdin", Err: err}
		}
		req.Code, cmd.Stdin = string(b), nil
	}
	if o.pythonFile != "" {
		b, err := os.ReadFile(o.pythonFile)
		if err != nil {
			return &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "read the script",
				Message: "cannot read the file",
				Err:     err,
			}
		}
		cmd.Python, cmd.Args = cmp.Or(string(b), "\n"), append([]string{filepath.Base(o.pythonFile)}, args...)
	}
	if !cell {
		req = gate.CommandRequest(cmd, o.sandbox)
	}
	req.Rules, req.Graph, req.Role = gate.Mode(o.gate), gate.Mode(o.gate), o.role

	var err error
	if o.saved, err = newDisplays(o.saveDisplay); err != nil {
		return err
	}
	ctx = a.watch(ctx)
	judged := func() (warning string, err error) { return "", nil } // the server judges code of its sessions
	remote, err := a.hasRemoteServer()
	if err != nil {
		return err
	}
	if o.session == "" && !remote {
		if judged, err = a.judge(ctx, req); err != nil {
			return err
		}
	}
	t, done, err := a.target(ctx, o.session, &o.sandboxFlags, session.OpenOptions{Settings: session.Settings{
		Gate:   o.gate,
		Role:   o.role,
		Labels: o.labels,
	}})
	if err != nil {
		_, _ = judged() // wait, so that no process of the gate is left
		return err
	}
	defer done()
	warning, err := judged()
	if err != nil {
		return cause(ctx, err)
	}

	out := a.output(a.stdout)
	errs := a.output(a.stderr)
	cmd.SpoolBytes = o.spool
	if a.json {
		cmd.InlineBytes = cmp.Or(o.inline, jsonInline)
	} else {
		cmd.Stdout, cmd.Stderr = out, errs
	}
	if o.session != "" {
		cmd.Env, cmd.Dir = o.sandbox.Env, o.sandbox.Dir
	}
	var v *sandbox.Verdict
	switch {
	case o.background:
		return a.background(ctx, t, o, cmd)
	case cell:
		c := sandbox.Cell{
			Code:       req.Code,
			Context:    o.context,
			Args:       append([]string{"-c"}, args...),
			RunOptions: cmd.RunOptions,
		}
		switch {
		case !a.json:
			c.Display = func(b sandbox.Bundle) { printText(out, b.Text()); o.saved.save(&b) }
		case o.saved != nil:
			c.Display = func(b sandbox.Bundle) { o.saved.save(&b) }
		}
		v, err = t.Cell(ctx, c)
		if v != nil {
			o.saved.save(v.Result)
		}
		if v != nil && !a.json {
			printText(out, v.Result.Text())
			if v.Error != nil {
				printText(errs, v.Error.Traceback)
			}
		}
	default:
		v, err = t.Run(ctx, cmd)
	}
	a.noticeGate(v, warning)
	return a.conclude(ctx, o, t, v, err)
}

// background starts a command in a session and prints its id.
func (a *app) background(ctx context.Context, t target, o *execOptions, cmd sandbox.Command) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, nil, nil
	s, ok := t.(*inSession)
	if ok && o.waitPort != 0 {
		if err := checkFree(ctx, s.Session, o.waitPort); err != nil {
			return cause(ctx, err)
		}
	}
	id, err := t.Start(ctx, cmd)
	if err != nil {
		return cause(ctx, err)
	}
	if ok {
		a.noticeOpened(s.made)
		if o.waitPort != 0 {
			if err := awaitPort(ctx, s.Session, id, o.waitPort); err != nil {
				return cause(ctx, err)
			}
		}
	}
	return a.result(map[string]string{"session": o.session, "id": id}, "%s\n", id)
}

// input returns the input of the command: our stdin. It returns nil if stdin is a terminal and the shell runs us in its
// background, because reading would stop us.
func (a *app) input() io.Reader {
	if fd := int(a.stdin.Fd()); term.IsTerminal(fd) && inBackground(fd) {
		return nil
	}
	return a.stdin
}

// conclude prints how an operation ended, and returns its exit status as an error.
func (a *app) conclude(ctx context.Context, o *execOptions, t target, v *sandbox.Verdict, err error) error {
	why := context.Cause(ctx)
	if errors.Is(why, errPipe) {
		return exit(statusPipe)
	}
	if v == nil {
		return cause(ctx, err)
	}
	a.noticeState(v)
	if o.saved != nil && err == nil {
		err = o.saved.err
	}
	if a.json {
		printed, failed := o.saved.report(v)
		if failed != nil {
			return failed
		}
		if err := console.WriteJSON(a.stdout, printed); err != nil {
			return err
		}
		if err != nil { // stdout already has one JSON value
			a.printError(err)
			return exit(statusFailure)
		}
	}
	if o.saved != nil && !a.json {
		for _, name := range o.saved.Files {
			a.notice("saved %s", name)
		}
	}
	if err != nil {
		return err
	}
	if i, ok := errors.AsType[interrupted](why); ok && v.Ended == v1.EndedCancelled {
		if !a.json {
			a.notice("cancelled %v", i)
		}
		return exit(128 + int(i.signal))
	}
	if !a.json {
		a.noticeNetwork(v)
	}
	if line := endNote(ctx, o, t, v); line != "" && !a.json { // with --json it is in the verdict
		a.notice("%s", line)
	}
	return exit(v.Status())
}

// noticeState prints that the state of the session is not the one that the caller left. The server reports it once,
// however the call itself ended.
func (a *app) noticeState(v *sandbox.Verdict) {
	if previous := v.Metadata[session.MetaPrevious]; previous != "" && !a.json {
		a.noticeNew(previous)
	}
	from, err := time.Parse(time.RFC3339Nano, v.Metadata[session.MetaStateFrom])
	if err != nil || a.json { // the state is unchanged, or the verdict has it
		return
	}
	a.noticeRestored(from)
}

// maxNetworkNotices bounds the destinations of one command that are reported.
const maxNetworkNotices = 5

// noticeNetwork prints the destinations that the network policy has denied.
func (a *app) noticeNetwork(v *sandbox.Verdict) {
	printed := 0
	for _, u := range v.Network {
		switch {
		case u.Action == v1.NetworkAllow:
			continue
		case printed == maxNetworkNotices:
			a.notice("network: more destinations were denied; --json lists them")
			return
		}
		a.notice("network: %s", u.Reason)
		if u.Approval != "" {
			a.notice("to allow it: %s%s", v1.GrantCommand, u.Approval)
		}
		printed++
	}
}

// noticeNew prints that a session is new, and how the previous session of its name ended.
func (a *app) noticeNew(previous string) {
	a.notice("this session is new; the previous one of its name %s", previous)
}

// noticeOpened is noticeNew for a session that was opened without running anything in it.
func (a *app) noticeOpened(o session.Opened) {
	if o.New && o.Previous != nil && !a.json {
		a.noticeNew(o.Previous.String())
	}
}

func (a *app) noticeRestored(from time.Time) {
	a.notice("the session's sandbox was lost; its state is that of %s", from.Local().Format(time.DateTime))
}

// endNote returns one line about how an operation ended, or "" if the exit status alone says it.
func endNote(ctx context.Context, o *execOptions, t target, v *sandbox.Verdict) string {
	var parts []string
	switch v.Ended {
	case v1.EndedExit:
		if v.MemoryKills > 0 {
			parts = append(
				parts,
				fmt.Sprintf(
					"%s killed: out of memory (limit %s)",
					console.Plural(v.MemoryKills, "process", "processes"),
					memoryLimit(ctx, t),
				),
			)
		}
	case v1.EndedTimeout:
		parts = append(parts, fmt.Sprintf("%s (--timeout %s)", v, o.timeout.String()))
	case v1.EndedMemory:
		parts = append(parts, fmt.Sprintf("%s (limit %s; see --memory)", v, memoryLimit(ctx, t)))
	default:
		parts = append(parts, v.String())
	}
	if n := v.SurvivorsTotal; n > 0 && !o.killSurvivors && v.Ended == v1.EndedExit {
		what := console.Plural(n, "process was", "processes were") + " still running and ended with the sandbox"
		if o.session != "" {
			what = console.Plural(n, "process is", "processes are") + " still running in the session"
		}
		parts = append(parts, what)
	}
	if v.StateLostBefore {
		parts = append(parts, "the interpreter had ended since the previous call, so its variables were lost")
	}
	if o.session != "" && v.Error == nil && !v.StateKept && o.python != "" {
		parts = append(parts, "the interpreter ended, so its variables are lost")
	}
	return strings.Join(parts, "; ")
}

// printText prints text with a newline at its end.
func printText(w io.Writer, text string) {
	if text != "" {
		_, _ = io.WriteString(w, strings.TrimSuffix(text, "\n")+"\n") // output handles the error
	}
}

// output returns a writer to one of our own streams, for the output of a command.
func (a *app) output(w io.Writer) *output { return &output{w: w, cancel: a.signals.cancel} }

// output is a writer to one of our own streams. If a write fails, for example because the reader has closed it, the
// command is cancelled.
type output struct {
	w      io.Writer
	cancel context.CancelCauseFunc
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		if errors.Is(err, syscall.EPIPE) {
			o.cancel(errPipe)
		} else {
			o.cancel(&v1.Error{Code: v1.CodeInternal, Op: "write the output", Message: "write failed", Err: err})
		}
	}
	return n, err
}
