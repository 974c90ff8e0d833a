package mcptools

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/procgroup"
)

const (
	// closeGrace is the time between the end of a server's stdin and SIGKILL.
	closeGrace = 3 * time.Second
	// outputGrace is how long other processes may keep the stderr of an ended program open.
	outputGrace = time.Second
	// maxStderr is the number of bytes at the end of a program's stderr that are kept for errors.
	maxStderr = 2 << 10
)

// inheritedEnv are the environment variables that every program gets. The others may contain keys of models, which
// tools must not get.
var inheritedEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP",
	"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"APPDATA", "LOCALAPPDATA", "PATHEXT", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "USERPROFILE", "COMSPEC",
}

// process is a running server program, with the pipes to its stdin and stdout.
type process struct {
	cmd       *exec.Cmd
	in, out   *os.File
	stderr    *procgroup.Tail
	kill      func()
	ended     chan struct{} // closed when the program has ended
	err       error         // from cmd.Wait; set before ended is closed
	closeOnce sync.Once
}

// startProcess starts the program of a server. The program keeps running after the call that needed it.
func startProcess(s *Server) (*process, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inRead.Close(), inWrite.Close())
	}
	ctx, kill := context.WithCancel(context.Background())
	p := &process{
		in:     inWrite,
		out:    outRead,
		stderr: &procgroup.Tail{Max: maxStderr},
		ended:  make(chan struct{}),
		kill:   kill,
	}
	p.cmd = exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	p.cmd.Dir, p.cmd.Env = s.Dir, environ(s.Env)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = inRead, outWrite, p.stderr
	p.cmd.WaitDelay = outputGrace
	procgroup.Own(p.cmd)
	err = p.cmd.Start()
	_ = inRead.Close() // the program has its own copies of these two
	_ = outWrite.Close()
	if err != nil {
		kill()
		return nil, errors.Join(err, inWrite.Close(), outRead.Close())
	}
	go func() {
		defer close(p.ended)
		defer kill()
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

func environ(more map[string]string) []string {
	var env []string
	for _, name := range inheritedEnv {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	for name, v := range more {
		env = append(env, name+"="+v)
	}
	return env
}

// Close closes the stdin of the program. After closeGrace it kills the program and its process group.
func (p *process) Close() error {
	p.closeOnce.Do(func() {
		_ = p.in.Close() // fails if the program has already ended
		t := time.NewTimer(closeGrace)
		defer t.Stop()
		select {
		case <-p.ended:
		case <-t.C:
			p.kill()
			<-p.ended
		}
		_ = p.out.Close()
	})
	return nil
}

// exitText returns how the program ended, with the end of its stderr. It returns "" if the program still runs.
func (p *process) exitText() string {
	t := time.NewTimer(outputGrace)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		return ""
	}
	text := "the program exited"
	if p.err != nil {
		text = p.err.Error()
	}
	if said := p.stderr.String(); said != "" {
		text += ": " + said
	}
	return text
}
