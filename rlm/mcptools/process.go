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
	// closeGrace is how long a server has to end once its input has ended.
	closeGrace = 3 * time.Second
	// outputGrace is how long somebody else may hold the stderr of a program that has ended.
	outputGrace = time.Second
	// maxComplaint is how much of a program's stderr is kept for an error.
	maxComplaint = 2 << 10
)

// inherited are the variables that every program gets. Ours may hold keys of models, which are no business of a tool.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
	"XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"APPDATA", "LOCALAPPDATA", "PATHEXT", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "USERPROFILE", "COMSPEC",
}

// process is a server that is a program of ours. It is the stream to it, too.
type process struct {
	cmd       *exec.Cmd
	in, out   *os.File
	complaint *procgroup.Tail
	kill      func()
	ended     chan struct{} // closed when it has ended
	err       error         // how; set before ended is closed
	closing   sync.Once
}

// start starts the program. It outlives the call that needed it first.
func start(s *Server) (*process, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inRead.Close(), inWrite.Close())
	}
	ctx, kill := context.WithCancel(context.Background())
	p := &process{in: inWrite, out: outRead, complaint: &procgroup.Tail{Max: maxComplaint}, ended: make(chan struct{}), kill: kill}
	p.cmd = exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	p.cmd.Dir, p.cmd.Env = s.Dir, environment(s.Env)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = inRead, outWrite, p.complaint
	p.cmd.WaitDelay = outputGrace
	procgroup.Own(p.cmd)
	err = p.cmd.Start()
	_ = inRead.Close() // they are the program's
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

func environment(more map[string]string) []string {
	var env []string
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	for name, v := range more {
		env = append(env, name+"="+v)
	}
	return env
}

// Close ends the program: its input ends, and if that is not enough, it is killed with what it started.
func (p *process) Close() error {
	p.closing.Do(func() {
		_ = p.in.Close() // it may have ended already
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

// story tells how the program ended and what it said last; empty: it still runs.
func (p *process) story() string {
	t := time.NewTimer(outputGrace)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-t.C:
		return ""
	}
	text := "it ended"
	if p.err != nil {
		text = p.err.Error()
	}
	if said := p.complaint.String(); said != "" {
		text += ": " + said
	}
	return text
}
