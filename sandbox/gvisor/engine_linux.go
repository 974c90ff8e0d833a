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

// Timing of the engine driver.
const (
	// engineGrace is how long a cancelled engine invocation may take to exit before its pipes are closed.
	engineGrace = 2 * time.Second
	// engineCleanup is how long the removal of an incomplete sandbox may take.
	engineCleanup = 10 * time.Second
	// goneWait is how long to wait for the sandbox's processes after SIGKILL. They usually end within 10 ms; with
	// hundreds of busy processes inside, it took 400 ms.
	goneWait = 5 * time.Second
)

// outputLimit is how many bytes of the engine's output are kept. The output is normally small.
const outputLimit = 8 << 10

// errNoSandbox means that the engine has no state for an ID.
var errNoSandbox = errors.New("sandbox not found in the state of the engine")

// engine runs one build of the engine program (gVisor's runsc). It has no state of its own: everything is in the files
// below root, so that any process can control a sandbox that another process started.
type engine struct {
	path    string // the engine program
	root    string // state directory of the engine, private to us
	userns  bool   // run in a new user and mount namespace (ordinary user)
	cgroups bool   // start sandboxes in the cgroups that were made for their IDs
	mounts  bool   // the engine mounts volumes when it starts the sandbox
	debug   bool   // write the logs of the engine into the bundle directory
}

// engineError is a failed engine invocation: its verb, its output and its error.
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

// brief shortens the engine's output to a readable length. When a checkpoint fails, the engine prints the object it was
// writing. That is memory of the sandbox and must not be part of an error.
func brief(output string) string {
	const maxBytes = 600
	output, _, _ = strings.Cut(output, "&wire.")
	if len(output) > maxBytes {
		output = strings.ToValidUTF8(output[:maxBytes], "") + "…"
	}
	return strings.TrimSpace(output)
}

func (e *engineError) Unwrap() error { return e.err }

// run creates the sandbox described by bundle/config.json and starts its first process on the guest's ends of p. It
// returns when that process runs. If it fails, it removes everything it made.
func (e *engine) run(ctx context.Context, id, bundle string, d *disk, p *fifo.Ends) error {
	return e.start(ctx, "run", id, bundle, d, p, "--detach", "--bundle="+bundle, id)
}

// restore creates the sandbox from the checkpoint in image. Its processes continue where they were, on the guest's ends
// of p (only descriptors 0 to 2 can be replaced). If it fails, it removes everything it made.
func (e *engine) restore(ctx context.Context, id, bundle, image string, d *disk, p *fifo.Ends) error {
	return e.start(ctx, "restore", id, bundle, d, p, "--detach", "--bundle="+bundle, "--image-path="+image, id)
}

func (e *engine) start(ctx context.Context, verb, id, bundle string, d *disk, p *fifo.Ends, args ...string) error {
	cmd := e.command(ctx, bundle, d, verb, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.In, p.Out, p.Err
	// If the engine is killed half way, it leaves a sandbox and a gofer that are in no file. Therefore a cancelled
	// start runs to its end (100 ms) and is then undone. Only if it hangs, exec kills it after WaitDelay.
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
	// If the engine fails by itself, it removes what it made; if it was killed, it does not.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
	defer cancel()
	if err := e.sweep(clean, id, bundle); err != nil {
		return errors.Join(failed, err)
	}
	return failed
}

// spawn starts cmd, in the cgroups of sandbox id if e.cgroups is set.
func (e *engine) spawn(cmd *exec.Cmd, id string) error {
	if !e.cgroups {
		return startWithSlack(cmd)
	}
	h, err := mountedCgroups()
	if err != nil {
		return err
	}
	return h.open(id).start(cmd)
}

// timerSlack is how much later than requested a sleep in the engine may end. Go's runtime has a monitor thread that
// wakes up every 20 µs while another thread works. With the kernel's default slack, that is every 80 µs in every
// sandbox. It was a third of all context switches of a small cell, and with 32 busy sandboxes most of the work of two
// processors (650 cells per second against 2000). The price is that a sleep inside may take this much longer.
const timerSlack = 500 * time.Microsecond

// startWithSlack starts cmd with timerSlack. All threads of cmd and of the processes it starts inherit it, including
// the sandbox. It cannot be set for threads that already run.
func startWithSlack(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// If this fails, everything works, but slower. 0 restores the default of the thread.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	return cmd.Start()
}

// sweep removes everything of a sandbox whose start was interrupted, by this program or by the death of the process
// that started it. That includes engine processes that are not yet in the state of the engine. They are recognized by
// their command lines, which contain our state directory and the bundle of the sandbox.
func (e *engine) sweep(ctx context.Context, id, bundle string) error {
	st, stateErr := e.state(id)
	err := e.delete(ctx, id)
	if errors.Is(err, errNoSandbox) {
		err = nil
	}
	if stateErr == nil && st.GoferPid > 0 && st.Sandbox.Pid > 0 &&
		(st.Status == statusRunning || st.Status == statusPaused) {
		return err // the sandbox was complete, so all its processes were in the state
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

// checkpoint writes the state of the sandbox into dir, which must not contain a checkpoint. Unless leaveRunning is set,
// the sandbox ends.
func (e *engine) checkpoint(ctx context.Context, id, dir string, leaveRunning bool) error {
	args := []string{"--image-path=" + dir}
	if leaveRunning {
		args = append(args, "--leave-running")
	}
	_, err := e.call(ctx, "checkpoint", append(args, id)...)
	return err
}

// pause stops every task of the sandbox until resume. A checkpoint of a paused sandbox leaves it paused, but a sandbox
// restored from that checkpoint runs.
func (e *engine) pause(ctx context.Context, id string) error {
	_, err := e.call(ctx, "pause", id)
	return err
}

// resume continues a paused sandbox.
func (e *engine) resume(ctx context.Context, id string) error {
	_, err := e.call(ctx, "resume", id)
	return err
}

// delete kills the sandbox, whatever its state is, and removes the engine's files about it. It returns errNoSandbox if
// the engine has no state for id.
//
// It does not run the engine's own delete command: that command asks the sandbox to end and waits, and starting a
// program for it takes as long as everything else. With the flags that we use (no cgroups, no overlay files, no named
// network namespace), a sandbox consists only of processes and these files.
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
	// A start that was killed between its lock and its state file leaves the lock file, which no process holds any
	// more.
	for _, name := range e.files(id) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// files returns the paths of all files that the engine may have for id.
func (e *engine) files(id string) []string {
	stem := filepath.Join(e.root, id+"_sandbox:"+id)
	return []string{stem + ".state", stem + ".lock", filepath.Join(e.root, "runsc-"+id+".sock")}
}

// engineState is the part that we need of the engine's record of a sandbox. Reading its file costs 0.1 ms, running the
// engine's state command 10 to 20 ms.
type engineState struct {
	BundleDir string `json:"bundleDir"`
	Status    string `json:"status"`
	GoferPid  int    `json:"goferPid"`
	Sandbox   struct {
		Pid       int       `json:"pid"`
		StartTime time.Time `json:"startTime"`
	} `json:"sandbox"`
}

// Values of engineState.Status.
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

// kill kills the sandbox process and its gofer and waits until they are gone. The systrap stubs die with the sandbox
// process.
func (s *engineState) kill(ctx context.Context) error {
	return errors.Join(killEngineProcess(ctx, s.Sandbox.Pid), killEngineProcess(ctx, s.GoferPid))
}

// killEngineProcess kills an engine process and waits until it is gone. It returns nil if the process has already
// ended.
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
		return fmt.Errorf("kill engine process %d: %w", pid, err)
	}
	return nil
}

// openEngineProcess opens pid if it is a live process of an engine, and returns errNoSandbox otherwise. After a reboot,
// the PID may belong to any process. Therefore the command line is read after the descriptor has pinned the process.
func openEngineProcess(pid int) (*pidfd.Process, error) {
	p, err := pidfd.Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, errNoSandbox
	}
	if err != nil {
		return nil, err
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	// A zombie has an empty command line, and nothing of it is left to kill.
	if err != nil || !strings.HasPrefix(string(line), "runsc-") {
		p.Close()
		return nil, errNoSandbox
	}
	return p, nil
}

// call runs one verb that passes no descriptors to a sandbox, and returns its output.
func (e *engine) call(ctx context.Context, verb string, args ...string) (string, error) {
	cmd := e.command(ctx, "", nil, verb, args...)
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

// command returns an engine invocation that is ready to start.
func (e *engine) command(ctx context.Context, bundle string, d *disk, verb string, args ...string) *exec.Cmd {
	all := append(e.flags(bundle), d.flag(bundle), verb)
	cmd := exec.CommandContext(ctx, e.path, append(all, args...)...)
	// The engine gets nothing of our environment, which may contain keys of model providers. One processor is enough
	// for a program that mostly waits, and was a little faster. A process that lives for 100 ms needs no garbage
	// collector. The sandbox's own processes start with an empty environment.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1", "GOGC=off"}
	procgroup.Own(cmd)
	if d != nil || e.mounts {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS // the engine mounts the parts of the root, and volumes
	}
	if e.userns {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.WaitDelay = engineGrace
	return cmd
}

// disk is the writable layer of a sandbox's root: a file without a name in the directory of its bundle, which ends with
// the sandbox. A nil disk means that the root is read-only.
type disk struct {
	bytes, files int64
}

// flag returns the flag that makes the layer. Without it, root file systems are read-only and shared; only tmpfs mounts
// and writable mounts of the spec are then writable.
func (d *disk) flag(bundle string) string {
	if d == nil {
		return "--overlay2=none"
	}
	// The limit of files is an option of cmd/recluse-engine (disk.go).
	return fmt.Sprintf("--overlay2=root:dir=%s,size=%d;nr_inodes=%d", bundle, d.bytes, d.files)
}

// flags returns the engine's global flags. Each is set for a measured or a security reason.
func (e *engine) flags(bundle string) []string {
	flags := []string{
		"--root=" + e.root,
		"--platform=systrap",
		"--network=none",
		// The guest redirects connections with a raw socket. Without this flag, CAP_NET_RAW has no effect.
		"--net-raw",
		// Skips advisory checks of the host's settings, which take 5 ms.
		"--host-settings=ignore",
		// The default leaves a bind mount of a network namespace behind when all sandboxes are gone.
		"--gofer-network-namespace=new",
		// The engine is started in our cgroups. Its own were slower on cgroup v1: it joins and leaves nine hierarchies,
		// and waits for a grace period of the kernel each time (16 and 11 ms were measured).
		"--ignore-cgroups",
	}
	if e.debug && bundle != "" {
		flags = append(flags, "--debug", "--debug-log="+filepath.Join(bundle, "engine-log")+"/")
	}
	return flags
}
