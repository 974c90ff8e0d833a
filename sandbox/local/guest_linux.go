package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/pidfd"
)

// Names in the directory of a sandbox, besides its record and the pipes.
const (
	logFile = "guest.log" // stderr of the guest: empty, unless the guest fails
	homeDir = "home"
	runDir  = "run" // the guest's own directory: spooled output
)

// marker is an environment variable of everything that runs in a sandbox. It identifies processes even when guest and
// nanny were killed.
const marker = "RECLUSE_SANDBOX"

// state is everything that another program needs to take over a sandbox.
type state struct {
	backendkit.Record
	Process backendkit.Process `json:"process"` // the guest
}

// guest is the guest process of a sandbox. All attachments to the sandbox share it.
type guest struct {
	*backendkit.Machine
	pid int
}

func lostGuest(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeGuestLost, Message: fmt.Sprintf(format, args...), Remedy: "make a new sandbox"}
}

// spawn starts the guest in its own process session, where it outlives this program, and stores its process in st. It
// calls prepare once the pipes exist.
func spawn(path, dir string, st *state, prepare func() error) (*guest, error) {
	ends, err := fifo.Make(dir)
	if err != nil {
		return nil, err
	}
	defer ends.Close()
	if err := prepare(); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	home := filepath.Join(dir, homeDir)
	cfg := backendkit.GuestConfig(st.Record, filepath.Join(dir, runDir), backendkit.ImageConfig{
		Dir: home, Env: []string{"PATH=" + os.Getenv("PATH"), marker + "=" + st.ID},
	})
	cfg.Home, cfg.OpenFiles, cfg.CPUs = home, 0, 0 // no limits
	config, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	//nolint:forbidigo // no ctx, because the guest outlives all; Stop looks for the ID in the process table
	cmd := exec.Command(path, st.ID)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends.In, ends.Out, log
	cmd.Dir = home
	cmd.Env = []string{launch.ConfigEnv + "=" + string(config), "HOME=" + home}
	for _, k := range []string{"PATH", "USER", "TMPDIR"} {
		if v := os.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	st.Process = backendkit.ProcessOf(cmd.Process.Pid)
	g := &guest{backendkit.NewMachine(st.Record), cmd.Process.Pid}
	go func() { g.End(exitCause(cmd.Wait(), cmd, log.Name())) }()
	return g, nil
}

// exitCause returns the cause of the end of a guest that this program has started. Only the parent of a process learns
// its exit status.
func exitCause(err error, cmd *exec.Cmd, log string) error {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return lostGuest("the guest was killed by signal %s", unix.SignalName(ws.Signal()))
		}
	}
	return lostGuest("the guest has ended: %s%s", cmd.ProcessState, logExcerpt(log))
}

// logExcerpt returns the beginning of the guest's log, as a suffix for an error.
func logExcerpt(log string) string {
	b, err := os.ReadFile(log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(strings.TrimSpace(string(b[:min(len(b), 1000)])), "?")
}

// watchForeign returns a guest that another program has started, and begins to watch its process.
func watchForeign(st state) (*guest, error) {
	p, err := pidfd.Open(st.Process.PID)
	if err != nil {
		return nil, err
	}
	if !st.Process.Alive() {
		p.Close()
		return nil, unix.ESRCH
	}
	g := &guest{backendkit.NewMachine(st.Record), p.PID()}
	go func() {
		defer p.Close()
		if err := p.Wait(context.Background()); err != nil {
			g.End(lostGuest("the guest, process %d, can no longer be watched: %v", p.PID(), err))
			return
		}
		g.End(lostGuest("the guest, process %d, has ended", p.PID()))
	}()
	return g, nil
}

// checkBinary checks that the guest's binary can be run here. Without its configuration, the guest prints an error and
// exits with status 2.
func checkBinary(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 2 {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("the program is not the guest: %.100q", out)
	}
	return err
}

// guestBinary returns the path of the guest and the hash that identifies its version.
func (b *Backend) guestBinary(ctx context.Context) (path, hash string, err error) {
	if b.opts.GuestPath != "" {
		if _, err := os.Stat(b.opts.GuestPath); err != nil {
			return "", "", &v1.Error{
				Code:    v1.CodeEngineMissing,
				Op:      "find the guest",
				Message: b.opts.GuestPath + " not found",
				Err:     err,
			}
		}
		return b.opts.GuestPath, "", nil
	}
	p, err := bundle.Guest(ctx)
	return p.Path, p.Hash, err
}

const (
	// nannyGrace is how long nannies have, after the end of the guest, to kill what they started. They do it better
	// than this program can from outside: they stop a tree before they kill it.
	nannyGrace = 2 * time.Second
	// firstPoll and maxPoll are the first and the longest time between two checks of the process table. The time
	// doubles from check to check.
	firstPoll = time.Millisecond
	maxPoll   = 50 * time.Millisecond
)

// killTree kills the guest and everything below it. The end of the guest closes the sockets of its nannies, which then
// kill what they have started. killTree kills everything that is left after that.
func killTree(ctx context.Context, st state) error {
	guest := st.Process
	tree := map[backendkit.Process]bool{}
	collect := func() error {
		if !guest.Alive() {
			return nil
		}
		all, err := proc.Descendants(guest.PID)
		if err != nil {
			return err
		}
		for _, p := range all {
			tree[backendkit.Process{PID: p.PID, Start: p.Start}] = true
		}
		return nil
	}
	if err := collect(); err != nil {
		return err
	}
	tree[guest] = true
	if guest.Alive() {
		_ = unix.Kill(guest.PID, syscall.SIGTERM)
		_ = unix.Kill(guest.PID, syscall.SIGCONT) // a stopped process would not handle SIGTERM
	}
	began := time.Now()
	for pause := firstPoll; ; pause = min(2*pause, maxPoll) {
		if time.Since(began) > nannyGrace/4 && guest.Alive() {
			if err := collect(); err != nil {
				return err
			}
			_ = unix.Kill(guest.PID, syscall.SIGKILL)
		}
		left := 0
		for p := range tree {
			if !p.Alive() {
				delete(tree, p)
				continue
			}
			left++
			if time.Since(began) > nannyGrace {
				_ = unix.Kill(p.PID, syscall.SIGKILL)
			}
		}
		if left == 0 {
			// Processes that had already lost their parents when the tree was collected.
			for _, pid := range markedProcesses(st.ID) {
				left++
				tree[backendkit.ProcessOf(pid)] = true // a dying process loses its environment before it has ended
				_ = unix.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%d processes are left: %w", left, ctx.Err())
		}
	}
}

// markedProcesses returns the processes whose environment contains the marker of the sandbox, and its guest, which
// hides its environment but has the ID as its argument.
func markedProcesses(id string) []int {
	all, err := proc.List()
	if err != nil {
		return nil
	}
	want := []byte(marker + "=" + id)
	var out []int
	for _, p := range all {
		if p.Zombie {
			continue
		}
		dir := "/proc/" + strconv.Itoa(p.PID)
		line, err := os.ReadFile(dir + "/cmdline")
		if err == nil && bytes.HasSuffix(line, []byte("\x00"+id+"\x00")) &&
			bytes.Contains(line, []byte(bundle.GuestName)) {
			out = append(out, p.PID)
			continue
		}
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue // the process has ended, or belongs to another user
		}
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(v, want) {
				out = append(out, p.PID)
				break
			}
		}
	}
	return out
}
