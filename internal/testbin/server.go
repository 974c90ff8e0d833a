package testbin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// installed is the directory of Shared; Remove removes it.
var installed string

// Shared is Installed, once per test program. Call Remove at its end.
var Shared = sync.OnceValues(func() (dir string, err error) {
	installed, err = Installed()
	return installed, err
})

// Remove removes the directory of Shared, if it was made.
func Remove() {
	if installed != "" {
		_ = os.RemoveAll(installed)
	}
}

// serverTimeout is how long a server and each command for it may take.
const serverTimeout = 4 * time.Minute

// Server is recluse serve in a process of its own, on a loopback port and with a home directory of its own.
type Server struct {
	Program string            // recluse
	Env     []string          // of the server, and of commands for it
	Address string            // host:port, the same after the next Start
	Exports map[string]string // variables that the server prints for its callers

	args   []string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	ended  chan struct{} // closed when its output has ended
}

// NewServer starts a server whose home directory is home. more are flags and environment variables. The caller calls
// Close.
func NewServer(home string, more ...string) (*Server, error) {
	programs, err := Shared()
	if err != nil {
		return nil, err
	}
	shared := filepath.Join(programs, "shared")
	if err := ShareTemplates(shared, filepath.Join(home, ".local", "share")); err != nil {
		return nil, err
	}
	s := &Server{Program: filepath.Join(programs, "recluse"), Address: "127.0.0.1:0"}
	s.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME="+shared,
		"XDG_RUNTIME_DIR=", "RECLUSE_ENV=",
		"RECLUSE_BACKEND_ORDER=gvisor", // a single backend is not probed before its first use
		"RECLUSE_POOL_ENABLED=false")
	for _, m := range more {
		if strings.HasPrefix(m, "-") {
			s.args = append(s.args, m)
		} else {
			s.Env = append(s.Env, m)
		}
	}
	return s, s.Start()
}

// Start starts the server, again after Stop, and waits until it listens.
func (s *Server) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
	s.cancel, s.ended, s.Exports = cancel, make(chan struct{}), map[string]string{}
	s.cmd = exec.CommandContext(ctx, s.Program, append([]string{"serve", "--listen", s.Address}, s.args...)...)
	s.cmd.Env = s.Env
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stderr)
	var seen []string
	listens := false
	for (!listens || !s.exported()) && lines.Scan() {
		seen = append(seen, lines.Text())
		if _, url, ok := strings.Cut(lines.Text(), "listening on http"); ok {
			_, s.Address, listens = strings.Cut(strings.TrimSpace(url), "://")
		}
		if v, ok := strings.CutPrefix(lines.Text(), "export "); ok {
			name, value, _ := strings.Cut(v, "=")
			s.Exports[name] = value
		}
	}
	go func() {
		defer close(s.ended)
		for lines.Scan() { // until the server ends
		}
	}()
	if !listens {
		return errors.Join(fmt.Errorf("the server does not listen; it printed %q", seen), s.Stop(syscall.SIGKILL))
	}
	return nil
}

// exported reports whether the server has printed all variables.
func (s *Server) exported() bool {
	for _, a := range s.args {
		if a == "--e2b" {
			return s.Exports["E2B_SANDBOX_URL"] != "" || s.Exports["E2B_DOMAIN"] != ""
		}
	}
	return true
}

// Stop ends the server with a signal. Its sessions continue.
func (s *Server) Stop(sig syscall.Signal) error {
	defer s.cancel()
	_ = s.cmd.Process.Signal(sig) // it may have ended
	<-s.ended
	err := s.cmd.Wait()
	if sig == syscall.SIGKILL || s.cmd.ProcessState.ExitCode() == 128+int(syscall.SIGTERM) {
		return nil
	}
	return err
}

// PID returns the process id of the server.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Run runs a command on the server, and returns its output.
func (s *Server) Run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Program, args...)
	cmd.Env = s.Env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Close ends all sessions and the server.
func (s *Server) Close() error {
	out, err := s.Run("session", "end", "--all")
	if err != nil {
		err = fmt.Errorf("end the sessions: %w: %s", err, out)
	}
	return errors.Join(err, s.Stop(syscall.SIGTERM))
}
