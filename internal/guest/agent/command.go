//go:build linux

package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/user"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// killWait is how long a killed tree may take to end before the verdict reports survivors.
	killWait = 10 * time.Second
	// ptyDrain is how long the guest waits for the rest of a terminal's output.
	ptyDrain = 500 * time.Millisecond
)

// command runs one Exec and sends its verdict. It reports whether the stream can carry another call. With input it
// cannot, because the host may still be sending. A background command gets its input by separate calls.
func (a *Agent) command(st *wire.Stream, req *wire.Exec, epoch uint64) (reusable bool) {
	if req.Options == nil {
		req.Options = &wire.RunOptions{}
	}
	answered := a.exec(st, req, epoch)
	return answered && (req.Background || !req.Options.Stdin && !req.Pty)
}

func (a *Agent) exec(st *wire.Stream, req *wire.Exec, epoch uint64) (answered bool) {
	defer a.link.beginLong()()
	argv := req.Argv
	if len(req.Shell) > 0 {
		sh := a.shell()
		if sh == "" {
			return answer(st, wire.Errorf("no_shell", "%s", a.shellMissing()))
		}
		argv = [][]byte{[]byte(sh), []byte("-c"), req.Shell}
	}
	if len(argv) == 0 || len(argv[0]) == 0 {
		return answer(st, wire.Errorf("invalid_request", "missing command"))
	}
	for _, s := range append(append([][]byte{req.Dir}, argv...), req.Options.Env...) {
		if strings.IndexByte(string(s), 0) >= 0 {
			return answer(st, wire.Errorf("invalid_request", "NUL byte in command, environment or directory"))
		}
	}
	u, bad := a.user(req.Options.User)
	if bad != nil {
		return answer(st, bad)
	}
	if u != nil && u.Same(a.defaultUser()) {
		u = nil
	}
	line := make([]string, len(argv))
	for i, s := range argv {
		line[i] = string(s)
	}
	o, bad := a.ops.Add(operation.Request{
		Kind:    "command",
		Command: strings.Join(line, " "),
		Detach:  req.Background,
		PTY:     req.Pty,
		Epoch:   epoch,
	}.Options(req.Options))
	if bad != nil {
		return answer(st, bad)
	}
	c := &running{
		agent: a,
		op:    o,
		req:   req,
		user:  u,
		argv:  argv,
		quiet: !req.Options.Stream && !req.Options.Stdin && !req.Pty,
	}
	var listener *operation.Listener
	if req.Options.Stream && !req.Background {
		listener = o.Listen(st)
	}
	if v := c.start(); v != nil {
		o.Finish(v)
		return st.Send(&wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}, Last: true}) == nil
	}
	if c.stdin != nil {
		o.SetInput(c.accept)
	}
	if req.Background {
		go c.supervise()
		return answer(st, nil)
	}
	if req.Options.Stdin || req.Pty {
		go c.receiveInput(st)
	}
	v := c.supervise()
	o.Flush(listener)
	return st.Send(&wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}, Last: true}) == nil
}

// shellMissing returns the error message for a script that cannot run.
func (a *Agent) shellMissing() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name := a.identity.GetShell(); name != "" {
		return "shell " + strconv.Quote(name) + " of this sandbox not found"
	}
	return "this sandbox has neither bash nor sh"
}

// running is a running command.
type running struct {
	agent   *Agent
	op      *operation.Operation
	req     *wire.Exec
	user    *user.User // nil: the sandbox's
	argv    [][]byte
	nanny   *nanny.Nanny
	tree    int         // number of its tree at the nanny
	pid     int         // 0: not known yet
	tries   int         // number of starts
	timeout *time.Timer // nil: not started yet

	// quiet means that output is not sent while it is produced. Then only the disk can delay reading it; see
	// readUntilEvent.
	quiet bool

	inputMu sync.Mutex // held while input is written or closed
	stdin   *os.File   // nil without
	tty     *os.File   // nil without
	taps    []*tap
	pumps   sync.WaitGroup
	drained chan struct{} // closed when all output has been read
}

// start starts the command. It returns a verdict if that fails, and nil otherwise.
func (c *running) start() *wire.Verdict {
	start := &nanny.Start{Argv: c.argv, TTY: c.req.Pty, Mute: c.quiet && !c.req.Background}
	if c.user == nil {
		start.Env = c.agent.environment(c.req.Options.Env)
	} else {
		start.Env = c.agent.environment(userEnv(c.user, c.req.Options.Env))
		start.User = &nanny.User{UID: c.user.UID, GID: c.user.GID}
	}
	dir := c.dir()
	start.Dir = []byte(dir)
	path, err := lookPath(string(c.argv[0]), dir, start.Env)
	if err != nil {
		errno := unix.ENOENT
		if errors.Is(err, os.ErrPermission) {
			errno = unix.EACCES
		}
		return c.startFailed(errno)
	}
	plumbing, err := c.plumb()
	if err != nil {
		return startVerdict(126, "create pipes for the command: "+err.Error())
	}
	start.Path = []byte(path)
	n, e, err := c.agent.nannies.Launch(c.op, start, plumbing.theirs)
	c.nanny = n
	c.tries++
	switch {
	case err == nil && start.Mute:
		c.tree = n.Tree()
	case err == nil && e.PID == 0:
		plumbing.close()
		c.closeInput()
		c.agent.nannies.Put(n)
		return c.startFailed(syscall.Errno(e.Errno))
	case err == nil:
		c.tree, c.pid = n.Tree(), e.PID
	case errors.Is(err, nanny.ErrLost):
		// The command has started, and has killed its nanny at once. supervise handles that.
		err = nil
	}
	if err != nil {
		plumbing.close()
		c.closeInput()
		return startVerdict(126, "start the command: "+err.Error())
	}
	plumbing.closeTheirs()
	c.drained = make(chan struct{})
	c.taps = nil
	for i, fd := range plumbing.outputs {
		c.taps = append(c.taps, &tap{fd: fd, op: c.op, stream: i + 1, blocks: true, shared: c.quiet})
	}
	if len(plumbing.outputs) == 1 {
		c.op.Output(2).End()
	}
	if !c.quiet {
		c.pump()
	}
	c.op.Memory.SetMain(c.pid)
	c.op.Run(c.pid, c.signaller(n, c.tree))
	return nil
}

// startVerdict returns the verdict for a command that could not be started.
func startVerdict(code int, text string) *wire.Verdict {
	return &wire.Verdict{Ending: wire.Ending_ENDING_START, ExitCode: int32(code), StartError: wire.Clip(text, 500)}
}

// dir returns the directory in which the command starts.
func (c *running) dir() string {
	if len(c.req.Dir) > 0 {
		return filepath.Clean(c.agent.absolute(c.req.Dir))
	}
	if c.user != nil {
		return c.user.Dir()
	}
	return c.agent.cfg.Dir
}

// startFailed returns the verdict for a failed exec. Only now it checks whether the directory is the cause: a check
// before each start would slow down all commands.
func (c *running) startFailed(errno syscall.Errno) *wire.Verdict {
	if fi, err := os.Stat(c.dir()); err != nil || !fi.IsDir() {
		return startVerdict(126, "working directory "+c.dir()+": not a directory")
	}
	return startVerdict(nanny.DescribeStartError(string(c.argv[0]), int(errno)))
}

// receiveInput passes on the input that the host sends while the command runs.
func (c *running) receiveInput(st *wire.Stream) {
	for {
		f := &wire.Frame{}
		if err := st.Receive(f); err != nil {
			// The host has gone. The input ends with it, unless another host may send more. An operation that does not
			// outlive its attachment is cancelled.
			if !c.req.Options.Detach {
				c.op.End(wire.Ending_ENDING_CANCELLED)
			}
			if !c.req.Options.Detach || c.tty == nil && !c.req.Options.KeepStdin {
				c.closeInput()
			}
			return
		}
		in := f.GetInput()
		if in == nil {
			continue
		}
		if len(in.Stdin) > 0 && c.stdin != nil {
			c.inputMu.Lock()
			err := c.feed(in.Stdin)
			c.inputMu.Unlock()
			if err != nil {
				continue // it no longer reads, which is not an error, as in a pipeline
			}
		}
		switch {
		case in.CloseStdin:
			c.inputMu.Lock()
			c.endInput()
			c.inputMu.Unlock()
		case in.Rows > 0 && in.Cols > 0:
			_ = c.resize(in.Rows, in.Cols)
		}
	}
}

// accept takes input from a Feed call. Only one call at a time may wait for the command to read; other calls return
// busy.
func (c *running) accept(in *wire.Input) *wire.Error {
	if in.GetRows() > 0 && in.GetCols() > 0 {
		if err := c.resize(in.Rows, in.Cols); err != nil {
			return wire.Errorf("invalid_request", "operation %s: %v", c.op.ID, err)
		}
	}
	if len(in.GetStdin()) == 0 && !in.GetCloseStdin() {
		return nil
	}
	if !c.inputMu.TryLock() {
		return wire.Errorf("busy", "operation %s has not read its earlier input", c.op.ID)
	}
	defer c.inputMu.Unlock()
	if len(in.GetStdin()) > 0 {
		if err := c.feed(in.Stdin); err != nil {
			return wire.Errorf("invalid_request", "operation %s no longer reads input", c.op.ID)
		}
	}
	if in.GetCloseStdin() {
		c.endInput()
	}
	return nil
}

// feed writes input of the host to the command.
//
// Preconditions: inputMu is held.
func (c *running) feed(p []byte) error {
	if c.tty != nil {
		return typeIn(c.tty, p)
	}
	_, err := c.stdin.Write(p)
	return err
}

// endInput closes stdin of the command, or sends Ctrl-D to its terminal.
//
// Preconditions: inputMu is held.
func (c *running) endInput() {
	if c.tty != nil {
		_, _ = c.tty.Write([]byte{4}) // Ctrl-D, the end of file of a terminal
		return
	}
	c.closeInput()
}

func (c *running) closeInput() {
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
}

// signaller returns a function that signals a tree of a nanny. The command may have another nanny by the time the
// function is called.
func (c *running) signaller(n *nanny.Nanny, tree int) func(s int32, all bool) error {
	return func(s int32, all bool) error {
		c.op.RecordSignal(s)
		if all {
			return n.SignalTree(tree, syscall.Signal(s))
		}
		return n.Signal(tree, syscall.Signal(s), true)
	}
}

func (c *running) resize(rows, cols uint32) error {
	if c.tty == nil {
		return errors.New("not a terminal")
	}
	return pty.Setsize(c.tty, &pty.Winsize{Rows: uint16(min(rows, 1<<15)), Cols: uint16(min(cols, 1<<15))})
}

// startTimeout starts the timeout of the command. It must be called once the command is known to run.
func (c *running) startTimeout() {
	if c.req.Options.TimeoutNs > 0 && c.timeout == nil {
		timeout := time.Duration(c.req.Options.TimeoutNs)
		c.timeout = time.AfterFunc(timeout, func() { c.op.End(wire.Ending_ENDING_TIMEOUT) })
	}
}

// supervise waits for the command and returns its verdict.
func (c *running) supervise() *wire.Verdict {
	o := c.op
	defer func() {
		if c.timeout != nil {
			c.timeout.Stop()
		}
	}()
	if c.pid != 0 {
		c.startTimeout()
	}
	var killMu sync.Mutex
	var killTimer *time.Timer
	arm := func(n *nanny.Nanny, tree int) {
		o.SetStop(func() {
			_ = n.SignalTree(tree, syscall.SIGTERM)
			_ = n.SignalTree(tree, syscall.SIGCONT) // a stopped process handles SIGTERM only after SIGCONT
			killMu.Lock()
			defer killMu.Unlock()
			grace := time.Duration(c.req.Options.GraceNs)
			killTimer = time.AfterFunc(grace, func() { _ = n.SignalTree(tree, syscall.SIGKILL) })
		})
	}

	arm(c.nanny, c.tree)
	v := &wire.Verdict{}
	e, err := c.await()
	for errors.Is(err, nanny.ErrDead) && c.tries < nanny.Tries {
		// Code in the sandbox had killed an idle nanny, before it could start this command.
		c.abandon()
		c.agent.nannies.CloseDead(c.nanny)
		if v := c.start(); v != nil {
			o.Finish(v)
			return v
		}
		arm(c.nanny, c.tree)
		e, err = c.await()
	}
	if errors.Is(err, nanny.ErrDead) {
		// No nanny lived long enough to start it, for example because code has used up the processes of the sandbox.
		c.abandon()
		c.agent.nannies.CloseDead(c.nanny)
		v = startVerdict(126, "start the command: "+err.Error())
		o.Finish(v)
		return v
	}
	if err == nil && !e.Exited {
		c.abandon()
		c.agent.nannies.Put(c.nanny)
		v = c.startFailed(syscall.Errno(e.Errno))
		o.Finish(v)
		return v
	}
	if c.quiet {
		c.pump() // the rest of the output
	}
	if err != nil {
		// The nanny has died: it was killed.
		c.agent.nannies.CloseDead(c.nanny)
		v.Ending, v.Signal, v.ExitCode = wire.Ending_ENDING_SIGNAL, int32(syscall.SIGKILL), -1
		if why := o.Ending(); why != wire.Ending_ENDING_UNKNOWN {
			v.Ending = why
		}
		c.finish(v, nil)
		return v
	}
	c.finish(v, e)
	killMu.Lock()
	defer killMu.Unlock()
	if killTimer != nil {
		killTimer.Stop()
	}
	return v
}
