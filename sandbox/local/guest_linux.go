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

// What lies in a sandbox's directory, beside its record and the pipes.
const (
	logFile = "guest.log" // what the guest writes to stderr: nothing, unless it breaks
	homeDir = "home"
	runDir  = "run" // the guest's own: spooled output
)

// marker is set in the environment of everything that runs in a sandbox, so that it is found even when guest
// and nanny were killed and nothing else tells whose it is.
const marker = "RECLUSE_SANDBOX"

// state is what another program needs to take a sandbox over.
type state struct {
	backendkit.Record
	Process backendkit.Process `json:"process"` // the guest
}

// guest is the process of a sandbox, shared by all attachments to it.
type guest struct {
	*backendkit.Machine
	pid int
}

func lostGuest(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeGuestLost, Message: fmt.Sprintf(format, args...), Remedy: "make a new sandbox"}
}

// spawn starts the guest in a session of its own, where it outlives us, and notes its process in st.
func spawn(path, dir string, st *state) (*guest, error) {
	ends, err := fifo.Make(dir)
	if err != nil {
		return nil, err
	}
	defer ends.Close()
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
	//nolint:forbidigo // no context, because it outlives every one; the id is for the process table, which Stop reads
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
	go func() { g.End(howEnded(cmd.Wait(), cmd, log.Name())) }()
	return g, nil
}

// howEnded says how a guest ended that this program has started. Only its parent gets to know that.
func howEnded(err error, cmd *exec.Cmd, log string) error {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return lostGuest("the guest was killed by signal %s", unix.SignalName(ws.Signal()))
		}
	}
	return lostGuest("the guest has ended: %s%s", cmd.ProcessState, lastWords(log))
}

// lastWords returns what the guest complained about before it ended.
func lastWords(log string) string {
	b, err := os.ReadFile(log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(strings.TrimSpace(string(b[:min(len(b), 1000)])), "?")
}

// stranger watches a guest that another program has started.
func stranger(st state) (*guest, error) {
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

// runs reports whether the guest's binary can be run here. Without its configuration it complains and exits with 2.
func runs(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 2 {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("it is not the guest: %.100q", out)
	}
	return err
}

// guestBinary finds the guest and the hash that names its version.
func (b *Backend) guestBinary(ctx context.Context) (path, hash string, err error) {
	if b.opts.GuestPath != "" {
		if _, err := os.Stat(b.opts.GuestPath); err != nil {
			return "", "", &v1.Error{
				Code: v1.CodeEngineMissing, Op: "find the guest", Message: "there is no " + b.opts.GuestPath, Err: err,
			}
		}
		return b.opts.GuestPath, "", nil
	}
	p, err := bundle.Guest(ctx)
	return p.Path, p.Hash, err
}

const (
	// politely is how long nannies have, once the guest has gone, to end what they look after. They do it
	// better than we could from outside: they stop a tree before they kill it.
	politely = 2 * time.Second
	// Between two looks at the process table, doubling from the first to the second.
	firstLook = time.Millisecond
	laterLook = 50 * time.Millisecond
)

// endTree ends the guest and everything below it. The guest's end closes the sockets of its nannies, which then
// kill what they have started; what is left after that is killed here.
func endTree(ctx context.Context, st state) error {
	guest := st.Process
	tree := map[backendkit.Process]bool{}
	look := func() error {
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
	if err := look(); err != nil {
		return err
	}
	tree[guest] = true
	if guest.Alive() {
		_ = unix.Kill(guest.PID, syscall.SIGTERM)
		_ = unix.Kill(guest.PID, syscall.SIGCONT) // one that is stopped could not hear it
	}
	began := time.Now()
	for pause := firstLook; ; pause = min(2*pause, laterLook) {
		if time.Since(began) > politely/4 && guest.Alive() {
			if err := look(); err != nil {
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
			if time.Since(began) > politely {
				_ = unix.Kill(p.PID, syscall.SIGKILL)
			}
		}
		if left == 0 {
			// Whoever had lost its parents before we looked.
			for _, pid := range marked(st.ID) {
				left++
				tree[backendkit.ProcessOf(pid)] = true // a dying process loses its mark before it has ended
				_ = unix.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%d are left: %w", left, ctx.Err())
		}
	}
}

// marked gives the processes whose environment names the sandbox, and its guest, which hides its own but
// has the name as its argument.
func marked(id string) []int {
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
		if line, err := os.ReadFile(dir + "/cmdline"); err == nil && bytes.HasSuffix(line, []byte("\x00"+id+"\x00")) && bytes.Contains(line, []byte(bundle.GuestName)) {
			out = append(out, p.PID)
			continue
		}
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue // it has gone, or is not ours
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
