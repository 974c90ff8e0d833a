//go:build linux

// Package agent is the guest: our one process inside a sandbox. It serves hosts, one attachment after the other, over the one stream
// that it was started with (package wire): it runs commands itself, cells in live interpreters (package interpreter), and reads and
// writes files (package files). Cells and commands outlive the attachment that asked for them (package operation).
//
// The guest runs as root of the sandbox where it can; what it starts never does. It trusts the host and nothing else.
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

	"github.com/recluse-dev/recluse/internal/guest/files"
	"github.com/recluse-dev/recluse/internal/guest/interpreter"
	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/kernel/python"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/memory"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Version names a release, which sets it when it is linked.
var Version = "dev"

// Agent is the guest's state.
type Agent struct {
	cfg      launch.Config
	files    *files.FS
	ops      *operation.Table
	nannies  *nanny.Pool
	contexts *interpreter.Contexts
	born     time.Time
	link     *hostPipe

	mu       sync.Mutex
	session  *wire.Session  // guarded by mu; of the present attachment, nil without one
	identity *wire.Identity // guarded by mu
	base     []string       // guarded by mu; the environment without what a command adds, of this identity
}

// nannyThreads is what a nanny uses at its busiest, with one thread that waits for children and one that waits for the guest.
const nannyThreads = 8

// kernels are the languages of cells; the first is the default.
var kernels = []kernel.Kernel{python.Kernel{}}

// Main runs the guest until its stream ends.
func Main() int {
	if len(os.Args) == 3 && os.Args[1] == nanny.Arg {
		return nanny.Main(os.Args[2])
	}
	if len(os.Args) > 2 && verbs[os.Args[1]] != nil {
		if err := verbs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "recluse-guest:", os.Args[1]+":", err)
			return 1
		}
		return 0
	}
	cfg, token, err := configFromEnv()
	if err != nil {
		fmt.Fprintln(os.Stderr, "recluse-guest:", err)
		return 2
	}
	fmt.Fprintln(os.Stderr, "recluse-guest:", run(cfg, token, &hostPipe{fd: 0}, os.Stdout))
	return 1
}

// run serves hosts until the stream ends, and returns why it ended.
func run(cfg launch.Config, token []byte, in *hostPipe, out io.Writer) error {
	debug.SetGCPercent(50)
	if n := runtime.GOMAXPROCS(0); n > 4 {
		runtime.GOMAXPROCS(4)
	}
	// No process in the sandbox may trace the guest or read its memory and environment.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	deaf()
	// Orphans whose nanny has died become children of the guest rather than of another process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, t := range cfg.Tmpfs {
		if err := mount(t); err != nil {
			return err
		}
	}
	if err := prepareState(cfg.State); err != nil {
		return fmt.Errorf("prepare %s: %w", cfg.State, err)
	}
	a := &Agent{
		cfg:  cfg,
		born: time.Now(),
		link: in,
		ops:  operation.NewTable(cfg.State),
		nannies: nanny.NewPool(self, nanny.Config{
			UID:       cfg.UID,
			GID:       cfg.GID,
			Processes: cfg.Processes,
			OpenFiles: cfg.OpenFiles,
			Threads:   min(cfg.Threads, nannyThreads),
			OOMScore:  cfg.OOMScore,
			Filter:    cfg.Filter,
		}),
	}
	a.files = files.New(files.Options{UID: cfg.UID, GID: cfg.GID, SwitchUser: a.switchesUser()})
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
	nanny.KeepThreads(cfg.Threads)
	if cfg.Memory > 0 {
		go memory.NewEnforcer(cfg.Memory, processes{a}, a.ops.Started()).Run()
	}
	if cfg.Socket != "" {
		return a.listen(cfg.Socket, token)
	}
	return a.attachments(wire.NewLink(in, out, token))
}

// attachments serves one host after the other.
func (a *Agent) attachments(link *wire.Link) error {
	for {
		at, err := link.Accept(a.welcome)
		if err != nil {
			return fmt.Errorf("await a host: %w", err)
		}
		a.attend(at)
	}
}

// attend serves one attachment until it ends, and ends what was bound to it.
func (a *Agent) attend(at *wire.Attachment) {
	s := wire.NewSession(at, at, false)
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.Serve(func(st *wire.Stream, req *wire.Request) bool { return a.handle(ctx, st, req, at.Epoch) })
	_ = s.Close() // it has ended already, or was broken by code in the sandbox
	a.mu.Lock()
	if a.session == s {
		a.session = nil
	}
	a.mu.Unlock()
	a.ops.Cut(at.Epoch)
}

// welcome adopts the identity that a host has sent.
func (a *Agent) welcome(h *wire.Hello) *wire.Welcome {
	a.adopt(h.Identity)
	return &wire.Welcome{Protocol: wire.Protocol, GuestVersion: Version}
}

// processes is the sandbox as the enforcer of its memory limit sees it.
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

// shell returns the program that runs scripts, or "".
func (a *Agent) shell() string {
	a.mu.Lock()
	id := a.identity
	a.mu.Unlock()
	if id.GetShell() == "" {
		return lookShell("", "")
	}
	return lookShell(id.Shell, a.envMap(id)["PATH"])
}

// lookShell returns the path of the named shell, without a name that of bash or sh; "": there is none.
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

// makeWorkDir makes the directory where commands start, if it is missing and can be made. A command that starts where there is none reports it.
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
			_ = os.Chown(dir, a.cfg.UID, a.cfg.GID) // at worst it cannot be written
		}
	}
}

// prepareState makes the guest's directory. What runs in the sandbox may read spooled output, and nothing else.
func prepareState(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
