//go:build linux

package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/privilege"
	"github.com/recluse-dev/recluse/internal/guest/proc"
)

const (
	// sudoWait is how long a process may take to send its request.
	sudoWait = 5 * time.Second
	// maxSudo is the largest number of requests that are handled at once.
	maxSudo = 16
)

// sudoPaths are where programs look for sudo, before the image's own, which cannot work.
var sudoPaths = []string{"/usr/local/bin/sudo"}

// placeSudo makes the guest's binary available as sudo, where there is none. Errors are ignored: the root file system
// may be read-only, and then PATH has another directory with it.
func placeSudo(self, state string) error {
	for _, path := range sudoPaths {
		_ = os.Symlink(self, path)
	}
	dir := filepath.Join(state, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	link := filepath.Join(dir, nanny.SudoName)
	return errors.Join(os.Symlink(self, link), privilege.Own(link), privilege.Own(dir))
}

// sudoPath is the beginning of PATH that finds sudo.
func (a *Agent) sudoPath() string {
	if !a.cfg.Root {
		return ""
	}
	return filepath.Join(a.cfg.State, "bin") + ":"
}

// serveSudo answers requests of code for processes of root.
func (a *Agent) serveSudo() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: nanny.SudoAddress, Net: "unix"})
	if err != nil {
		return err
	}
	go func() {
		slots := make(chan struct{}, maxSudo)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				defer c.Close()
				if cred, err := peer(c); err == nil {
					if f, err := c.File(); err == nil {
						defer f.Close()
						a.sudo(f, int(cred.Pid))
					}
				}
			}()
		}
	}()
	return nil
}

// sudo handles one request of a process.
func (a *Agent) sudo(f *os.File, pid int) {
	fd := int(f.Fd()) // blocking from now on
	timeout := unix.NsecToTimeval(sudoWait.Nanoseconds())
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout) != nil {
		return
	}
	r, files, err := nanny.ReceiveSudo(fd)
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return
	}
	refuse := func(why string) { _ = nanny.RefuseSudo(fd, why) } // the process may be gone
	n := a.nannyOf(pid)
	u, bad := a.user(r.User)
	switch {
	case len(files) != 3:
		return
	case n == nil:
		refuse("the command that started this process has ended")
		return
	case bad != nil:
		refuse(bad.Message)
		return
	}
	s := &nanny.Start{
		Argv: r.Argv,
		Env:  a.environment(userEnv(u, r.Env)),
		Dir:  r.Dir,
		User: &nanny.User{UID: u.UID, GID: u.GID},
	}
	if r.Login {
		s.Dir = []byte(u.Dir())
	}
	if len(s.Argv) == 0 {
		s.Argv = [][]byte{[]byte(a.shell())}
	}
	path, err := lookPath(string(s.Argv[0]), string(s.Dir), s.Env)
	if err != nil {
		refuse(string(s.Argv[0]) + ": command not found")
		return
	}
	s.Path = []byte(path)
	none := unix.Timeval{}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &none) // the nanny waits for signals
	if err := n.Beside(s, append([]int{fd}, files...)); err != nil {
		refuse(err.Error())
	}
}

// nannyOf returns the nanny of the tree that a process belongs to, or nil.
func (a *Agent) nannyOf(pid int) *nanny.Nanny {
	for pid > 1 {
		p, ok := proc.Get(pid)
		if !ok {
			return nil
		}
		if n := a.nannies.Get(p.PPID); n != nil {
			return n
		}
		pid = p.PPID
	}
	return nil
}
