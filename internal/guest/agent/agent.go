//go:build linux

// Package agent is the guest: our agent, the first process in a sandbox. It serves hosts, one attachment after another,
// over the stream that it was started with (package wire). It runs commands itself and cells in live interpreters
// (package interpreter), and reads and writes files (package files). Cells and commands outlive the attachment that
// requested them (package operation).
//
// The guest runs as root of the sandbox where possible. The processes it starts do not, unless the sandbox lets code
// become root; then the guest has a uid of its own (package privilege). It trusts the host and nothing else.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/boot"
	"github.com/recluse-dev/recluse/internal/guest/files"
	"github.com/recluse-dev/recluse/internal/guest/interpreter"
	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/kernel/python"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/memory"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/network"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/privilege"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Version is the version of the release, set by the linker.
var Version = "dev"

// Agent is the guest's state.
type Agent struct {
	cfg      launch.Config
	files    *files.FS
	ops      *operation.Table
	nannies  *nanny.Pool
	contexts *interpreter.Contexts
	started  time.Time
	link     *hostPipe
	network  *network.Network
	// privileges are those of a guest whose code may be root; nil: it may not.
	privileges *privilege.Guest

	mu       sync.Mutex
	session  *wire.Session  // guarded by mu; of the current attachment, nil without one
	identity *wire.Identity // guarded by mu
	base     []string       // guarded by mu; the environment of this identity, without variables that a command adds
}

// nannyThreads is the largest number of threads that a nanny uses, including one that waits for children and one that
// waits for the guest.
const nannyThreads = 8

// kernels are the languages of cells; the first is the default.
var kernels = []kernel.Kernel{python.Kernel{}}

// Main runs the guest until its stream ends.
func Main() int {
	if filepath.Base(os.Args[0]) == nanny.SudoName {
		return nanny.Sudo(os.Args[1:])
	}
	if len(os.Args) == 3 && os.Args[1] == nanny.Arg {
		return nanny.Main(os.Args[2])
	}
	if len(os.Args) == 2 && os.Args[1] == launch.BootArg {
		boot.Main()
	}
	if len(os.Args) > 2 && subcommands[os.Args[1]] != nil {
		if err := subcommands[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "recluse-guest:", os.Args[1]+":", err)
			return 1
		}
		return 0
	}
	if len(os.Args) == 2 && os.Args[1] == launch.RemoteArg {
		return remote()
	}
	cfg, token, err := configFromEnv()
	if err != nil {
		fmt.Fprintln(os.Stderr, "recluse-guest:", err)
		return 2
	}
	pipe := &hostPipe{port: cfg.Machine && !cfg.Vsock}
	fmt.Fprintln(os.Stderr, "recluse-guest:", run(cfg, token, pipe, pipe, os.Stdout))
	return 1
}

// run serves hosts until the stream ends, and returns the error that ended it. All of in comes from pipe.
func run(cfg launch.Config, token []byte, pipe *hostPipe, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(50)
	if n := runtime.GOMAXPROCS(0); n > 4 {
		runtime.GOMAXPROCS(4)
	}
	// No process in the sandbox may trace the guest or read its memory and environment.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	catchSignals()
	// Processes whose nanny has died become children of the guest instead of another process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if cfg.Disk {
		// gVisor mounts a tmpfs on an empty /tmp. EINVAL: it has not.
		if err := unix.Unmount("/tmp", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount /tmp: %w", err)
		}
		// The bundle cannot ask for this, because gVisor ignores options of a root.
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("remount /: %w", err)
		}
	}
	for _, t := range cfg.Tmpfs {
		if err := mount(t); err != nil {
			return err
		}
	}
	for _, d := range cfg.Dirs {
		if err := prepareDir(d); err != nil {
			return err
		}
	}
	if err := prepareState(cfg.State); err != nil {
		return fmt.Errorf("prepare %s: %w", cfg.State, err)
	}
	var privileges *privilege.Guest
	var cage *privilege.Cage
	if cfg.Root {
		if privileges, cage, err = separate(cfg, self); err != nil {
			return fmt.Errorf("keep apart from root: %w", err)
		}
	}
	a := &Agent{
		privileges: privileges,

		cfg:     cfg,
		started: time.Now(),
		link:    pipe,
		ops:     operation.NewTable(cfg.State),
		nannies: nanny.NewPool(self, nanny.Config{
			UID:       cfg.UID,
			GID:       cfg.GID,
			Processes: cfg.Processes,
			OpenFiles: cfg.OpenFiles,
			Threads:   min(cfg.Threads, nannyThreads),
			OOMScore:  cfg.OOMScore,
			Filter:    cfg.Filter,
			NoPing:    cfg.Network,
			Root:      cfg.Root,
			Spared:    cfg.Peer,
			Cage:      cage,
		}),
	}
	fileUser := files.Options{UID: cfg.UID, GID: cfg.GID, SwitchUser: a.switchesUser()}
	if cfg.Root {
		fileUser.SetEffective, fileUser.ForRoot = privileges.SetEffective, privilege.ForFiles
	}
	a.files = files.New(fileUser)
	a.contexts = interpreter.New(interpreter.Config{
		Kernels:    kernels,
		Nannies:    a.nannies,
		Operations: a.ops,
		Dir:        cfg.Dir,
		State:      cfg.State,
		User:       a.defaultUser(),
		SwitchUser: a.switchesUser(),
		Env:        func() map[string]string { return a.envMap(nil) },
		Call:       a.callHost,
	})
	if cfg.Unpack != "" {
		if err := a.unpack(cfg.Unpack); err != nil {
			return fmt.Errorf("unpack the snapshot: %w", err)
		}
	}
	a.makeWorkDir()
	a.network = network.New(networkHost{a}, a.operationOf)
	if cfg.Network {
		if err := a.network.ServeDNS(); err != nil {
			return fmt.Errorf("answer DNS queries: %w", err)
		}
	}
	if cfg.Root {
		if err := a.serveSudo(); err != nil {
			return fmt.Errorf("listen for sudo: %w", err)
		}
	}
	nanny.KeepThreads(cfg.Threads)
	if cfg.Memory > 0 {
		go memory.NewEnforcer(cfg.Memory, cfg.Machine, processes{a}, a.ops.Started()).Run()
	}
	if cfg.Socket != "" {
		return a.listen(cfg.Socket, token)
	}
	if cfg.Vsock {
		return a.listenVsock(pipe.fd, token)
	}
	return a.serveHosts(wire.NewLink(in, out, token))
}

// separate gives the guest an identity that code cannot have, even if it is root, and limits the number of processes of
// code. See package privilege.
func separate(cfg launch.Config, self string) (*privilege.Guest, *privilege.Cage, error) {
	if err := placeSudo(self, cfg.State); err != nil {
		return nil, nil, fmt.Errorf("place sudo: %w", err)
	}
	// Root may rename a directory, but not a mount point: nothing can take the place of the state directory.
	for dir := filepath.Dir(cfg.State); dir != "/"; dir = filepath.Dir(dir) {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return nil, nil, fmt.Errorf("pin %s: %w", dir, err)
		}
	}
	cage, err := privilege.NewCage(filepath.Join(cfg.State, "pids"), cfg.Processes)
	if err != nil {
		return nil, nil, err
	}
	if err := privilege.Own(cfg.State); err != nil {
		return nil, nil, err
	}
	guest, err := privilege.LeaveRoot()
	return guest, cage, err
}

// serveHosts serves one host after another.
func (a *Agent) serveHosts(link *wire.Link) error {
	for {
		at, err := link.Accept(a.welcome)
		if err != nil {
			return fmt.Errorf("wait for a host: %w", err)
		}
		a.serveAttachment(at)
	}
}

// serveAttachment serves one attachment until it ends, and then ends the operations that were bound to it.
func (a *Agent) serveAttachment(at *wire.Attachment) {
	s := wire.NewSession(at, at, false)
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.Serve(func(st *wire.Stream, req *wire.Request) bool { return a.handle(ctx, st, req, at.Epoch) })
	_ = s.Close() // it has ended already, or code in the sandbox broke it
	a.mu.Lock()
	if a.session == s {
		a.session = nil
	}
	a.mu.Unlock()
	a.ops.CancelAttached(at.Epoch)
}

// welcome applies the identity that a host has sent, and returns the answer.
func (a *Agent) welcome(h *wire.Hello) *wire.Welcome {
	a.adopt(h.Identity)
	return &wire.Welcome{Protocol: wire.Protocol, GuestVersion: Version}
}

// processes implements memory.Sandbox for the enforcer of the memory limit.
type processes struct{ *Agent }

// Own implements memory.Sandbox.
func (p processes) Own() map[int]bool {
	own := p.nannies.PIDs()
	own[os.Getpid()] = true
	return own
}

// Trees implements memory.Sandbox.
func (p processes) Trees() map[int]memory.Tree {
	trees := map[int]memory.Tree{}
	for pid, o := range p.nannies.Owners() {
		trees[pid] = memory.Tree{Owner: o}
	}
	for pid, main := range p.contexts.Mains() {
		trees[pid] = memory.Tree{Owner: trees[pid].Owner, Main: main}
	}
	return trees
}

// Idle implements memory.Sandbox.
func (p processes) Idle() bool { return p.ops.Idle() }

// shell returns the path of the program that runs scripts, or "" if there is none.
func (a *Agent) shell() string {
	a.mu.Lock()
	id := a.identity
	a.mu.Unlock()
	if id.GetShell() == "" {
		return lookShell("", "")
	}
	return lookShell(id.Shell, a.envMap(id)["PATH"])
}

// lookShell returns the path of the named shell. Without a name it returns that of bash or sh. It returns "" if there
// is none.
func lookShell(name, path string) string {
	if name != "" {
		p, err := lookPath(name, "/", [][]byte{[]byte("PATH=" + path)})
		if err != nil {
			return ""
		}
		if fi, err := os.Stat(p); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
			return ""
		}
		return p
	}
	for _, p := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh"} {
		if unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return ""
}

// makeWorkDir makes the working directory of commands, if it is missing. Errors are ignored: a command that starts in a
// missing directory reports it.
func (a *Agent) makeWorkDir() {
	var missing []string
	for dir := filepath.Clean(a.cfg.Dir); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	for _, dir := range slices.Backward(missing) {
		if os.Mkdir(dir, 0o755) != nil {
			return
		}
		if a.switchesUser() {
			_ = os.Chown(dir, a.cfg.UID, a.cfg.GID) // if this fails, the user cannot write to it
		}
	}
}

// prepareState makes the guest's state directory. Processes in the sandbox may read only the spooled output in it.
func prepareState(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
