//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/pidfd"
	"github.com/recluse-dev/recluse/internal/procgroup"
)

// Timing of the engine driver, in one place.
const (
	// engineGrace is how long a cancelled engine invocation may take to die before its pipes are cut.
	engineGrace = 2 * time.Second
	// engineCleanup bounds the removal of a half made sandbox after its start failed.
	engineCleanup = 10 * time.Second
	// goneWait bounds the wait for the sandbox's processes after SIGKILL. They were seen to end within 10 ms;
	// with hundreds of spinning processes inside it took 400 ms.
	goneWait = 5 * time.Second
)

// outputLimit bounds what is kept of an engine's output, which is small.
const outputLimit = 8 << 10

// errNoSandbox says that the engine holds no state for an id.
var errNoSandbox = errors.New("engine knows no such sandbox")

// engine drives one build of the engine program (gVisor's runsc). It keeps no state of its own: everything is in the
// files below root, so that any process can drive a sandbox that another one started.
type engine struct {
	path    string // the engine program
	root    string // its state directory, private to us
	userns  bool   // enter an own user and mount namespace first (ordinary user)
	cgroups bool   // start sandboxes in the cgroups that were made for their ids
	debug   bool   // write engine logs into the bundle directory
}

// engineError is an engine invocation that failed: what was asked, how it ended, what it said.
type engineError struct {
	verb   string
	stderr string
	err    error
}

func (e *engineError) Error() string {
	if e.stderr == "" {
		return fmt.Sprintf("engine %s: %v", e.verb, e.err)
	}
	return fmt.Sprintf("engine %s: %v: %s", e.verb, e.err, brief(e.stderr))
}

// brief cuts what the engine said to a readable length. When a checkpoint fails it prints the object it was writing,
// which is memory of the sandbox and belongs into no error.
func brief(said string) string {
	const longest = 600
	said, _, _ = strings.Cut(said, "&wire.")
	if len(said) > longest {
		said = strings.ToValidUTF8(said[:longest], "") + "…"
	}
	return strings.TrimSpace(said)
}

func (e *engineError) Unwrap() error { return e.err }

// run creates the sandbox described by bundle/config.json and starts its first process on the guest's ends of p. It
// returns when that process runs. On failure nothing is left.
func (e *engine) run(ctx context.Context, id, bundle string, p *fifo.Ends) error {
	return e.start(ctx, "run", id, bundle, p, "--detach", "--bundle="+bundle, id)
}

// restore creates the sandbox from the checkpoint in image. The processes go on where they were, on the guest's ends
// of p (only descriptors 0 to 2 can be replaced). On failure nothing is left.
func (e *engine) restore(ctx context.Context, id, bundle, image string, p *fifo.Ends) error {
	return e.start(ctx, "restore", id, bundle, p, "--detach", "--bundle="+bundle, "--image-path="+image, id)
}

func (e *engine) start(ctx context.Context, verb, id, bundle string, p *fifo.Ends, args ...string) error {
	cmd := e.command(ctx, bundle, verb, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.In, p.Out, p.Err
	// Killed half way, the engine leaves a sandbox and a gofer that no file tells of. So a cancelled start is let finish (100 ms)
	// and then undone; only one that hangs is killed, by exec after WaitDelay.
	cmd.Cancel = func() error { return nil }
	err := e.spawn(cmd, id)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	failed := &engineError{verb: verb, stderr: p.PendingStderr(), err: err}
	// The engine removes what it made when it fails by itself, not when it was killed half way.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
	defer cancel()
	if err := e.sweep(clean, id, bundle); err != nil {
		return errors.Join(failed, err)
	}
	return failed
}

// spawn starts cmd, in the cgroups of sandbox id if the engine is to use them.
func (e *engine) spawn(cmd *exec.Cmd, id string) error {
	if !e.cgroups {
		return startSlack(cmd)
	}
	h, err := mountedCgroups()
	if err != nil {
		return err
	}
	return h.open(id).start(cmd)
}

// timerSlack is how much later than asked a sleep in the engine may end. Go's runtime has a thread that looks after the others and, while any of
// them does something, wakes up every 20 µs: with the kernel's usual slack every 80 µs in every sandbox, which was a third of all context switches of
// a small cell, and with 32 sandboxes at work most of what two processors did (650 cells a second against 2000). The price is that a sleep inside takes this
// much longer at worst.
const timerSlack = 500 * time.Microsecond

// startSlack starts cmd with timerSlack, which all threads of it and of what it starts inherit: the sandbox among them. It can't be given to threads
// that run already.
func startSlack(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Without it everything works, only slower. 0 is the thread's own default.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	return cmd.Start()
}

// sweep removes everything of a sandbox whose start was interrupted, by us or by the death of the process that
// started it: also engine processes that the engine itself has no record of yet. They are known by their command lines, which
// hold our state directory and the sandbox's bundle.
func (e *engine) sweep(ctx context.Context, id, bundle string) error {
	st, stateErr := e.state(id)
	err := e.delete(ctx, id)
	if errors.Is(err, errNoSandbox) {
		err = nil
	}
	if stateErr == nil && st.GoferPid > 0 && st.Sandbox.Pid > 0 && (st.Status == statusRunning || st.Status == statusPaused) {
		return err // it was whole, so all of it was on record
	}
	names, globErr := filepath.Glob("/proc/[0-9]*/cmdline")
	errs := []error{err, globErr}
	for _, name := range names {
		line, _ := os.ReadFile(name)
		args := strings.Split(string(line), "\x00")
		ours := slices.Contains(args, "--root="+e.root) &&
			(slices.Contains(args, "--bundle="+bundle) || slices.Contains(args, bundle))
		if !ours {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			errs = append(errs, killEngineProcess(ctx, pid))
		}
	}
	return errors.Join(errs...)
}

// checkpoint writes the sandbox's state into dir, which must hold no checkpoint yet. Unless leaveRunning is set the
// sandbox ends with it.
func (e *engine) checkpoint(ctx context.Context, id, dir string, leaveRunning bool) error {
	args := []string{"--image-path=" + dir}
	if leaveRunning {
		args = append(args, "--leave-running")
	}
	_, err := e.call(ctx, "checkpoint", append(args, id)...)
	return err
}

// pause stops every task of the sandbox until resume. A checkpoint of a paused sandbox leaves it paused, and what is restored from it runs.
func (e *engine) pause(ctx context.Context, id string) error {
	_, err := e.call(ctx, "pause", id)
	return err
}

// resume lets a paused sandbox go on.
func (e *engine) resume(ctx context.Context, id string) error {
	_, err := e.call(ctx, "resume", id)
	return err
}

// delete ends the sandbox, whatever state it is in, and removes what the engine holds of it. It returns errNoSandbox when
// there is nothing.
//
// The engine itself is not asked: it would ask the sandbox nicely and wait, and a program started for it takes as long as all the rest. With the flags
// that we give it (no cgroups, no overlay files, no named network namespace) nothing but processes and these files is left of a sandbox.
func (e *engine) delete(ctx context.Context, id string) error {
	st, err := e.state(id)
	if err != nil && !errors.Is(err, errNoSandbox) {
		return err
	}
	if err == nil {
		if err := st.kill(ctx); err != nil {
			return err
		}
	}
	// A start that was killed between its lock and its state file leaves the lock; nobody holds it now.
	for _, name := range e.files(id) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// files names every file that the engine may keep for id.
func (e *engine) files(id string) []string {
	stem := filepath.Join(e.root, id+"_sandbox:"+id)
	return []string{stem + ".state", stem + ".lock", filepath.Join(e.root, "runsc-"+id+".sock")}
}

// engineState is what we need of the engine's own record of a sandbox. Reading its file costs 0.1 ms, asking
// the engine 10 to 20.
type engineState struct {
	BundleDir string `json:"bundleDir"`
	Status    string `json:"status"`
	GoferPid  int    `json:"goferPid"`
	Sandbox   struct {
		Pid       int       `json:"pid"`
		StartTime time.Time `json:"startTime"`
	} `json:"sandbox"`
}

// The engine's words for a sandbox that was started, and for one that was paused.
const (
	statusRunning = "running"
	statusPaused  = "paused"
)

// state reads the engine's record of id.
func (e *engine) state(id string) (*engineState, error) {
	data, err := os.ReadFile(e.files(id)[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", errNoSandbox, id)
	}
	if err != nil {
		return nil, err
	}
	var st engineState
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, fmt.Errorf("engine state of %s: %w", id, err)
	}
	return &st, nil
}

// alive reports whether the sandbox process runs.
func (s *engineState) alive() bool {
	p, err := openEngineProcess(s.Sandbox.Pid)
	if err != nil {
		return false
	}
	p.Close()
	return true
}

// kill ends the sandbox process and its gofer and waits until they are gone. The systrap stubs die with the former.
func (s *engineState) kill(ctx context.Context) error {
	return errors.Join(killEngineProcess(ctx, s.Sandbox.Pid), killEngineProcess(ctx, s.GoferPid))
}

// killEngineProcess ends an engine process and waits until it is gone. One that is gone already is fine.
func killEngineProcess(ctx context.Context, pid int) error {
	p, err := openEngineProcess(pid)
	if errors.Is(err, errNoSandbox) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(ctx, goneWait)
	defer cancel()
	err = p.Signal(unix.SIGKILL)
	if err == nil {
		err = p.Wait(ctx)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending engine process %d: %w", pid, err)
	}
	return nil
}

// openEngineProcess opens pid if it is a live process of an engine, and fails with errNoSandbox otherwise. A pid can be
// anyone's after a restart of the machine, so its command line is read once the descriptor has pinned it.
func openEngineProcess(pid int) (*pidfd.Process, error) {
	p, err := pidfd.Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, errNoSandbox
	}
	if err != nil {
		return nil, err
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	// A zombie has an empty command line and ends nothing more.
	if err != nil || !strings.HasPrefix(string(line), "runsc-") {
		p.Close()
		return nil, errNoSandbox
	}
	return p, nil
}

// call runs one verb that hands no descriptors to a sandbox, and returns its output.
func (e *engine) call(ctx context.Context, verb string, args ...string) (string, error) {
	cmd := e.command(ctx, "", verb, args...)
	stdout, stderr := &procgroup.Tail{Max: outputLimit}, &procgroup.Tail{Max: outputLimit}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", &engineError{verb: verb, stderr: stderr.String(), err: err}
	}
	return stdout.String(), nil
}

// command prepares one invocation of the engine.
func (e *engine) command(ctx context.Context, bundle, verb string, args ...string) *exec.Cmd {
	all := append(e.flags(bundle), verb)
	cmd := exec.CommandContext(ctx, e.path, append(all, args...)...)
	// Nothing of our environment reaches the engine (model keys live there). One processor is enough for what is
	// mostly waiting, and was a little faster. What lives for 100 ms needs no garbage collector; the sandbox's own processes
	// start with an empty environment.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1", "GOGC=off"}
	procgroup.Own(cmd)
	if e.userns {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.WaitDelay = engineGrace
	return cmd
}

// flags are the engine's global flags. Each is here for a measured or a security reason.
func (e *engine) flags(bundle string) []string {
	flags := []string{
		"--root=" + e.root,
		"--platform=systrap",
		"--network=none",
		// Root file systems are read-only and shared; what is writable is tmpfs, or a bind that was asked for.
		"--overlay2=none",
		// Advisory checks of the host's settings, 5 ms.
		"--host-settings=ignore",
		// The default keeps a bind mount of a network namespace behind when all sandboxes are gone.
		"--gofer-network-namespace=new",
		// It is started in cgroups of ours. Its own cost more on cgroup v1: it joins and leaves nine hierarchies,
		// waiting for a grace period of the kernel each time (16 and 11 ms were seen).
		"--ignore-cgroups",
	}
	if e.debug && bundle != "" {
		flags = append(flags, "--debug", "--debug-log="+filepath.Join(bundle, "engine-log")+"/")
	}
	return flags
}
