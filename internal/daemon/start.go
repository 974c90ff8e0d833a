package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	// readyWait is how long a server has until it serves: it may have a hundred sessions to take over first.
	readyWait = 60 * time.Second
	// toldOfLog is how much of the log is shown of a server that ended without a word.
	toldOfLog = 2 << 10
)

// news is what a server in the background says on its output, once: it serves, or why not.
type news struct {
	Problem *v1.Problem `json:"problem"` // nil: it serves
}

// Tell says to whoever started this server that it serves, or why it does not, and closes the output: from then on
// nobody listens.
func Tell(out *os.File, failed error) error {
	var n news
	if e, ok := errors.AsType[*v1.Error](failed); ok {
		n.Problem = &v1.Problem{Code: e.Code, Op: e.Op, Detail: e.Message, Remedy: e.Remedy, Retry: e.Retry}
		if e.Err != nil {
			n.Problem.Cause = e.Err.Error()
		}
	} else if failed != nil {
		n.Problem = &v1.Problem{Code: v1.CodeInternal, Detail: failed.Error()}
	}
	return errors.Join(json.NewEncoder(out).Encode(n), out.Close())
}

// Background gives what starts args of this program as a server that outlives us.
func (p *Place) Background(args ...string) Starter {
	return func(ctx context.Context) error {
		fail := func(err error) error {
			return &v1.Error{Code: CodeNotReady, Op: "start the server", Message: "it could not be started", Err: err}
		}
		self, err := os.Executable()
		if err != nil {
			return fail(err)
		}
		if _, err := os.Stat(self); err != nil {
			self = "/proc/self/exe" // the file was replaced while we run; the program is still there
		}
		log, err := p.openLog()
		if err != nil {
			return fail(err)
		}
		defer log.Close()
		begin, err := log.Seek(0, io.SeekEnd)
		if err != nil {
			return fail(err)
		}
		// Not our ctx: it must outlive us.
		cmd := exec.CommandContext(context.Background(), self, args...)
		cmd.Args[0] = "recluse"
		cmd.Dir, cmd.Stderr, cmd.SysProcAttr = "/", log, detached()
		cmd.Env = append(cmd.Environ(), p.Env...)
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		defer r.Close()
		cmd.Stdout = w
		err = cmd.Start()
		w.Close()
		if err != nil {
			return fail(err)
		}
		// One that ends before us would stay as a zombie until we end, too, and we may hold a shell open for hours.
		go func() { _ = cmd.Wait() }()
		return p.await(ctx, r, begin)
	}
}

// await reads the one thing that the server says.
func (p *Place) await(ctx context.Context, r *os.File, begin int64) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var n news
	err := json.NewDecoder(r).Decode(&n)
	if err == nil && n.Problem != nil {
		return n.Problem.Err()
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &v1.Error{Code: CodeNotReady, Op: "start the server", Message: fmt.Sprintf("it is not ready after %s", readyWait), Remedy: "see " + p.Log(), Retry: true, Err: context.Cause(ctx)}
	}
	e := &v1.Error{Code: CodeNotReady, Op: "start the server", Message: "it ended at once", Remedy: "see " + p.Log()}
	if said := p.logSince(begin); said != "" {
		e.Err = errors.New(said)
	}
	return e
}

func (p *Place) openLog() (*os.File, error) {
	return os.OpenFile(p.Log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// logSince gives the end of what was logged from an offset on.
func (p *Place) logSince(begin int64) string {
	f, err := os.Open(p.Log())
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, begin, 1<<20))
	if err != nil {
		return ""
	}
	if len(b) > toldOfLog {
		b = b[len(b)-toldOfLog:]
	}
	return string(bytes.TrimSpace(b))
}
