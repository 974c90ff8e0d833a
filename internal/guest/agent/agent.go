//go:build linux

// Package agent is the guest: our one process inside a sandbox. It runs commands and
// interpreters for the host, keeps their output, and reads and writes files, all over
// the one stream it was born with (package wire).
//
// The guest runs as root of the sandbox where it can; what it starts never does. It
// trusts the host and nothing else.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/files"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Version names a release, which sets it when it is linked.
var Version = "dev"

// Agent is the guest's state.
type Agent struct {
	cfg   Config
	self  string // our own binary, for nannies
	files *files.FS
	ops   *table
	born  time.Time
	link  *hostPipe

	mu       sync.Mutex
	session  *wire.Session           // guarded by mu; the attachment of now, nil without one
	identity *wire.Identity          // guarded by mu
	base     []string                // guarded by mu; the environment without what a command adds, of this identity
	idle     []*nanny.Nanny          // guarded by mu; nannies without a tree
	interps  map[string]*interpreter // guarded by mu
	starts   map[string]*start       // guarded by mu; interpreters on their way
	untold   map[string]bool         // guarded by mu; contexts whose interpreter died between cells, which no verdict has told yet
	trees    map[int]*op             // guarded by mu; by nanny pid, whose tree it is
	nannies  map[int]bool            // guarded by mu; the pids of all of them

	calls callQueue // to the host

	// Of the police alone.
	punished  time.Time // when it last saw the end of those it had chosen
	calmTasks int       // the number of tasks with which nothing was found to run; 0: not known

	// spawnMu is held for writing by whoever looks for strays: a nanny that has been started and not yet noted would look like one.
	spawnMu sync.RWMutex
}

// maxIdleNannies is how many are kept for the next commands; each costs a few MB.
const maxIdleNannies = 2

// nannyThreads is what a nanny uses at its busiest, with one thread that waits for children and one for us.
const nannyThreads = 8

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

// run serves hosts until the stream ends, and says why it did.
func run(cfg Config, token []byte, in *hostPipe, out io.Writer) error {
	debug.SetGCPercent(50)
	if n := runtime.GOMAXPROCS(0); n > 4 {
		runtime.GOMAXPROCS(4)
	}
	// Nothing that runs here may trace us or read our memory and environment.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	deaf()
	// Orphans whose nanny has died come to us rather than to a stranger.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, t := range cfg.Tmpfs {
		if err := t.mount(); err != nil {
			return err
		}
	}
	if err := prepareState(cfg.State); err != nil {
		return fmt.Errorf("prepare %s: %w", cfg.State, err)
	}
	a := &Agent{
		cfg: cfg, self: self, born: time.Now(), link: in,
		files:   files.New(files.Options{UID: cfg.UID, GID: cfg.GID, SwitchUser: os.Getuid() == 0 && cfg.UID > 0}),
		ops:     &table{dir: cfg.State, ops: map[string]*op{}, stir: make(chan struct{}, 1)},
		interps: map[string]*interpreter{},
		starts:  map[string]*start{},
		untold:  map[string]bool{},
		trees:   map[int]*op{},
		nannies: map[int]bool{},
	}
	if cfg.Unpack != "" {
		if err := a.unpack(cfg.Unpack); err != nil {
			return fmt.Errorf("unpack the snapshot: %w", err)
		}
	}
	nanny.KeepThreads(cfg.Threads)
	if cfg.Memory > 0 {
		go a.police()
	}
	if cfg.Socket != "" {
		return a.listen(cfg.Socket, token)
	}
	return a.attachments(wire.NewLink(in, out, token))
}

// attachments serves one host after the other.
func (a *Agent) attachments(link *wire.Link) error {
	for {
		at, err := link.Accept(func(h *wire.Hello) *wire.Welcome {
			return a.welcome(h)
		})
		if err != nil {
			return fmt.Errorf("await a host: %w", err)
		}
		s := wire.NewSession(at, at, false)
		a.mu.Lock()
		a.session = s
		a.mu.Unlock()
		a.serve(s, at.Epoch)
		a.leave(s, at.Epoch)
	}
}

// welcome takes up the identity that a host has brought.
func (a *Agent) welcome(h *wire.Hello) *wire.Welcome {
	a.adopt(h.Identity)
	return &wire.Welcome{Protocol: wire.Protocol, GuestVersion: Version}
}

// leave ends an attachment's session and what was bound to it.
func (a *Agent) leave(s *wire.Session, epoch uint64) {
	_ = s.Close() // it has ended already, or a stranger broke it
	a.mu.Lock()
	if a.session == s {
		a.session = nil
	}
	a.mu.Unlock()
	a.ops.cut(epoch)
}

func (a *Agent) serve(s *wire.Session, epoch uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.Serve(func(st *wire.Stream, req *wire.Request) bool { return a.handle(ctx, st, req, epoch) })
}

// takeNanny gives a nanny without a tree.
func (a *Agent) takeNanny() (*nanny.Nanny, error) {
	a.mu.Lock()
	if n := len(a.idle); n > 0 {
		got := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		return got, nil
	}
	a.mu.Unlock()
	a.spawnMu.RLock()
	defer a.spawnMu.RUnlock()
	n, err := nanny.Spawn(a.self, nanny.Config{UID: a.cfg.UID, GID: a.cfg.GID, Processes: a.cfg.Processes, OpenFiles: a.cfg.OpenFiles, Threads: min(a.cfg.Threads, nannyThreads), OOMScore: a.cfg.OOMScore, Filter: a.cfg.Filter})
	if err == nil {
		a.mu.Lock()
		a.nannies[n.PID()] = true
		a.mu.Unlock()
	}
	return n, err
}

// launch starts a process under a nanny; o is whose it is, nil for none. An idle nanny may have been killed by whoever was
// bored in the sandbox; then another one is asked. With nanny.ErrLost the process may run, and the nanny is the caller's to close.
func (a *Agent) launch(o *op, s *nanny.Start, files []int) (n *nanny.Nanny, e *nanny.Event, err error) {
	for range maxIdleNannies + 2 {
		if n, err = a.takeNanny(); err != nil {
			return nil, nil, err
		}
		if o != nil {
			a.own(n, o)
		}
		if s.Mute {
			err = n.Begin(s, files)
		} else {
			e, err = n.Start(s, files)
		}
		if err == nil || errors.Is(err, nanny.ErrLost) {
			return n, e, err
		}
		a.closeNanny(n)
		if !errors.Is(err, nanny.ErrDead) {
			break
		}
	}
	return nil, nil, err
}

// closeNanny ends one, with whatever it looks after.
func (a *Agent) closeNanny(n *nanny.Nanny) {
	n.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.trees, n.PID())
	delete(a.nannies, n.PID())
}

// buryNanny closes one that has died, and kills its tree. That comes to us only when the kernel has done with the nanny, a while after its connection
// has ended: whoever looked for strays before would find none.
func (a *Agent) buryNanny(n *nanny.Nanny) {
	a.closeNanny(n)
	a.endStrays()
}

// giveNanny takes back one whose tree has ended.
func (a *Agent) giveNanny(n *nanny.Nanny) {
	a.mu.Lock()
	delete(a.trees, n.PID())
	if len(a.idle) < maxIdleNannies {
		a.idle = append(a.idle, n)
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	a.closeNanny(n)
}

// own notes whose tree a nanny looks after.
func (a *Agent) own(n *nanny.Nanny, o *op) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trees[n.PID()] = o
}

func (a *Agent) disown(n *nanny.Nanny) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.trees, n.PID())
}

// lookPython finds the interpreter of the sandbox, or "".
func (a *Agent) lookPython() string {
	if a.cfg.Python != "" {
		return a.cfg.Python
	}
	for _, name := range []string{"python3", "python"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

// shell finds the program that runs scripts, or "".
func (a *Agent) shell() string {
	a.mu.Lock()
	id := a.identity
	a.mu.Unlock()
	if id.GetShell() == "" {
		return lookShell("", "")
	}
	return lookShell(id.Shell, a.envMap(id)["PATH"])
}

// lookShell finds the shell of a name, and no other then; without a name bash, or sh. "": there is none.
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
