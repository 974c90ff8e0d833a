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
	// readyWait is how long a server may take to start. It may have to take over a hundred sessions first.
	readyWait = 60 * time.Second
	// logExcerpt is how many bytes of the log are shown if a server exits without a report.
	logExcerpt = 2 << 10
)

// startReport is the message that a background server writes to its stdout once: that it serves, or why not.
type startReport struct {
	Problem *v1.Problem `json:"problem"` // nil if the server serves
}

// ReportStart reports to the program that started this server that it serves, or why it does not. It closes out,
// because that program reads only one report.
func ReportStart(out *os.File, failed error) error {
	var n startReport
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

// Background returns a Starter that runs this program with args as a background server.
func (p *Place) Background(args ...string) Starter {
	return func(ctx context.Context) error {
		fail := func(err error) error {
			return &v1.Error{Code: CodeNotReady, Op: "start the server", Message: "cannot start the process", Err: err}
		}
		self, err := os.Executable()
		if err != nil {
			return fail(err)
		}
		if _, err := os.Stat(self); err != nil {
			self = "/proc/self/exe" // the file was replaced while this process runs
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
		// The server must outlive this process, so it does not get ctx.
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
		// A server that exits before this process would stay a zombie, and this process may run a shell for hours.
		go func() { _ = cmd.Wait() }()
		return p.await(ctx, r, begin)
	}
}

// await waits for the report of the server. begin is the size of the log before the start.
func (p *Place) await(ctx context.Context, r *os.File, begin int64) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var n startReport
	err := json.NewDecoder(r).Decode(&n)
	if err == nil && n.Problem != nil {
		return n.Problem.Err()
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &v1.Error{
			Code:    CodeNotReady,
			Op:      "start the server",
			Message: fmt.Sprintf("not ready after %s", readyWait),
			Remedy:  "see the log " + p.Log(),
			Retry:   true,
			Err:     context.Cause(ctx),
		}
	}
	e := &v1.Error{
		Code:    CodeNotReady,
		Op:      "start the server",
		Message: "it exited at once",
		Remedy:  "see the log " + p.Log(),
	}
	if text := p.logSince(begin); text != "" {
		e.Err = errors.New(text)
	}
	return e
}

func (p *Place) openLog() (*os.File, error) {
	return os.OpenFile(p.Log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// logSince returns the end of the log after the offset begin.
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
	if len(b) > logExcerpt {
		b = b[len(b)-logExcerpt:]
	}
	return string(bytes.TrimSpace(b))
}
