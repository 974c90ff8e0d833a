package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// maxInline is the upper bound of InlineBytes. A verdict with two such streams is well below the size of one frame.
const maxInline = 1 << 20

// maxShell is the longest script that is passed as an argument of a shell. Linux accepts 128 KiB for one argument.
const maxShell = 100 << 10

// busyPause is the time between attempts to send the rest of some input to an operation that has not yet read the input
// of another caller.
const busyPause = 20 * time.Millisecond

// maxRequest limits the size of a request, which is one message. Linux accepts about 2 MiB of arguments and
// environment.
const maxRequest = 4 << 20

// checkRequest rejects a request that is too large for one message, and an invalid environment.
func checkRequest(op string, args []string, env, metadata map[string]string, others ...string) error {
	for k, v := range env {
		if !v1.ValidVariable(k, v) {
			return &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      op,
				Message: fmt.Sprintf("invalid environment variable %.80q", k),
				Remedy:  "use a name without = and NUL, and a value without NUL",
			}
		}
	}
	n := 0
	for _, a := range args {
		n += len(a) + 8
	}
	for _, m := range []map[string]string{env, metadata} {
		for k, v := range m {
			n += len(k) + len(v) + 16
		}
	}
	for _, o := range others {
		n += len(o)
	}
	if n > maxRequest {
		return &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      op,
			Message: fmt.Sprintf("script, arguments, environment and metadata have %d bytes, the limit is 4 MiB", n),
			Remedy:  "write it to a file",
		}
	}
	return nil
}

// Run runs a command and waits for its end. When ctx ends, the command and everything it started are cancelled, and the
// verdict reports that. err is not nil if there is no verdict, or if the output could not be written to Stdout or
// Stderr.
func (s *Sandbox) Run(ctx context.Context, c Command) (*Verdict, error) {
	req, err := s.exec(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.converse(ctx, conversation{
		RunOptions: c.RunOptions,
		op:         "run command",
		opts:       req.Options,
		req:        &wire.Request{Call: &wire.Request_Exec{Exec: req}},
		resize:     c.Resize,
		input:      req.Options.Stdin || req.Pty,
	})
}

// Start runs a command in the background and returns its ID as soon as it runs. The command continues when this program
// ends. Follow, Signal, Input and Operations find it by its ID. A command with a Stdin reader or a Resize channel
// is rejected.
func (s *Sandbox) Start(ctx context.Context, c Command) (string, error) {
	if c.Stdin != nil || c.Resize != nil {
		return "", &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "start command",
			Message: "a background command cannot have a stdin reader or a channel of sizes",
			Remedy:  "keep its stdin open, and send input and sizes later",
		}
	}
	if c.Timeout == 0 {
		c.Timeout = v1.NoLimit
	}
	req, err := s.exec(ctx, c)
	if err != nil {
		return "", err
	}
	req.Background, req.Options.Detach, req.Options.Stream = true, true, false
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Exec{Exec: req}})
	if err != nil {
		return "", s.explain("start command", err)
	}
	if v := f.GetVerdict(); v != nil {
		return "", &v1.Error{Code: v1.CodeStartFailed, Op: "start command", Message: v.StartError}
	}
	return req.Options.Id, nil
}

func (s *Sandbox) exec(ctx context.Context, c Command) (*wire.Exec, error) {
	if len(c.Args) > 0 == (c.Shell != "") || c.Shell != "" && c.Python != "" {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "run command",
			Message: "the command needs either arguments or a shell script",
		}
	}
	c.Metadata = withTrace(ctx, c.Metadata)
	c.Env = withTraceEnv(c.Env, c.Metadata)
	if err := checkRequest("run command", c.Args, c.Env, c.Metadata, c.Shell, c.Dir, c.ID); err != nil {
		return nil, err
	}
	if c.PTY != nil && c.Timeout == 0 {
		c.Timeout = v1.NoLimit // a person uses it
	}
	opts, err := s.wireOptions(c.RunOptions, "c", v1.DefaultKillGrace)
	if err != nil {
		return nil, err
	}
	if c, err = s.storeScript(ctx, c); err != nil {
		return nil, err
	}
	req := &wire.Exec{Options: opts, Argv: byteSlices(c.Args), Shell: []byte(c.Shell), Dir: []byte(c.Dir)}
	if c.PTY != nil {
		req.Pty, req.Rows, req.Cols = true, uint32(max(1, c.PTY.Rows)), uint32(max(1, c.PTY.Cols))
	}
	return req, nil
}

// storeScript writes a Python script, or a shell script that is too long for an argument, to a file inside. It returns
// the command that runs the file. Other commands are returned unchanged.
func (s *Sandbox) storeScript(ctx context.Context, c Command) (Command, error) {
	var file string
	code := c.Python
	switch {
	case c.Python != "":
		g, err := s.Guest(ctx)
		if err != nil {
			return c, err
		}
		if g.Python == "" {
			return c, &v1.Error{
				Code:    v1.CodeNoPython,
				Op:      "run the script",
				Message: "there is no Python in the sandbox",
				Remedy:  "use an image or root file system with Python 3",
			}
		}
		file = path.Join(g.Home, ".recluse-script", path.Base(c.Args[0]))
		c.Python, c.Args = "", append([]string{g.Python, file}, c.Args[1:]...)
	case len(c.Shell) > maxShell && s.Spec().Shell == "": // a shell of the spec may be unable to read a script file
		file = "/tmp/.recluse-" + s.newID("script") + ".sh"
		code = "rm -f " + file + "; " + c.Shell
		c.Shell = ". " + file
	default:
		return c, nil
	}
	if len(code) > v1.MaxCode {
		return c, &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "run the script",
			Message: fmt.Sprintf("the script has %d bytes, the limit is %d MiB", len(code), v1.MaxCode>>20),
		}
	}
	return c, s.Files().WriteAll(ctx, file, []byte(code), WriteOptions{Parents: true})
}

// wireOptions returns the options as they are sent, with defaults filled in. An operation without an ID gets one that
// begins with prefix.
func (s *Sandbox) wireOptions(o RunOptions, prefix string, defaultGrace time.Duration) (*wire.RunOptions, error) {
	if err := s.Frozen(); err != nil {
		return nil, err
	}
	if _, err := v1.ParseUser(o.User); err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Message: fmt.Sprintf("invalid user %.80q", o.User),
			Remedy:  "use a number, user:group or a name",
		}
	}
	w := &wire.RunOptions{
		Id:            o.ID,
		User:          o.User,
		Stdin:         o.Stdin != nil || o.KeepStdin,
		KeepStdin:     o.KeepStdin,
		Stream:        o.Stdout != nil || o.Stderr != nil,
		TimeoutNs:     int64(o.Timeout),
		GraceNs:       int64(o.KillGrace),
		KillSurvivors: o.KillSurvivors,
		Detach:        o.Detach,
		InlineBytes:   o.InlineBytes,
		SpoolBytes:    o.SpoolBytes,
		Metadata:      o.Metadata,
	}
	switch {
	case o.Timeout == v1.NoLimit:
		w.TimeoutNs = 0
	case o.Timeout == 0:
		w.TimeoutNs = int64(v1.DefaultTimeout)
	case o.Timeout < 0:
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Message: fmt.Sprintf("invalid timeout %s", o.Timeout)}
	}
	if o.KillGrace < 0 || o.InlineBytes < 0 || o.InlineBytes > maxInline {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Message: fmt.Sprintf("kill grace %s or inline bytes %d out of range", o.KillGrace, o.InlineBytes),
		}
	}
	if o.KillGrace == 0 {
		w.GraceNs = int64(defaultGrace)
	}
	if o.InlineBytes == 0 {
		w.InlineBytes = v1.DefaultInlineBytes
	}
	if o.SpoolBytes == 0 {
		w.SpoolBytes = v1.DefaultSpoolBytes
	}
	w.SpoolBytes = max(0, w.SpoolBytes)
	if w.Id == "" {
		w.Id = s.newID(prefix)
	}
	for _, k := range slices.Sorted(maps.Keys(o.Env)) {
		w.Env = append(w.Env, []byte(k+"="+o.Env[k]))
	}
	return w, nil
}

func byteSlices(texts []string) [][]byte {
	var out [][]byte
	for _, t := range texts {
		out = append(out, []byte(t))
	}
	return out
}

// conversation is one cell or command while it runs, seen from the host.
type conversation struct {
	RunOptions
	op      string
	opts    *wire.RunOptions // as sent, with defaults filled in
	req     *wire.Request
	more    func(st *wire.Stream) error // sends the code that did not fit into the request
	display func(Bundle)
	resize  <-chan Size
	input   bool
}

// converse sends the request and receives frames until the verdict.
func (s *Sandbox) converse(ctx context.Context, c conversation) (*Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: c.op, Message: "cancelled before it began", Err: err}
	}
	client := s.guest()
	kills, counted := s.machine.MemoryKills()
	st, err := client.Open(ctx, c.req)
	if err != nil {
		if ctx.Err() != nil {
			go c.abandon(client)
		}
		return nil, s.explain(c.op, err)
	}
	if c.input || c.more != nil {
		st.Dedicate()
	}
	over := make(chan struct{})
	defer close(over)
	stop := context.AfterFunc(ctx, func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verdictWait+time.Duration(c.opts.GraceNs))
		defer cancel()
		if c.cancel(cctx, client) {
			select {
			case <-over:
			case <-cctx.Done():
			}
		}
		st.Close() // has no effect on a call that is over
	})
	defer stop()
	if c.more != nil {
		if err := c.more(st); err != nil {
			st.Close()
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, s.explain(c.op, err)
		}
	}
	if c.input {
		defer feed(st, c.Stdin, c.resize)()
	}
	var writeErr error
	for {
		f, err := host.Receive(st)
		if err != nil {
			if ctx.Err() != nil && errors.Is(err, host.ErrDetached) {
				return nil, &v1.Error{
					Code:    v1.CodeCancelled,
					Op:      c.op,
					Message: "cancelled, and the guest sent no verdict",
					Err:     ctx.Err(),
				}
			}
			return nil, s.explain(c.op, err)
		}
		switch b := f.Body.(type) {
		case *wire.Frame_Output:
			w := c.Stdout
			if b.Output.Stream == 2 {
				w = c.Stderr
			}
			if w != nil && writeErr == nil {
				_, writeErr = w.Write(b.Output.Data)
			}
		case *wire.Frame_Display:
			if c.display != nil {
				if bundle, err := decodeBundle(b.Display.Bundle); err == nil {
					c.display(bundle)
				}
			}
		case *wire.Frame_Verdict:
			if c.input {
				st.Close()
			} else {
				st.Release()
			}
			v := s.withNetwork(verdict(b.Verdict))
			if v.Ended == v1.EndedSignal && v.Signal == syscall.SIGKILL && counted {
				if now, ok := s.machine.MemoryKills(); ok && now > kills {
					v.Ended, v.MemoryKills = v1.EndedMemory, max(1, v.MemoryKills)
				}
			}
			if writeErr != nil {
				return v, &v1.Error{Code: v1.CodeInternal, Op: c.op, Message: "cannot write the output", Err: writeErr}
			}
			return v, nil
		}
	}
}

// cancel ends the operation in the guest, and reports whether there will be a verdict. It uses a separate stream,
// because the stream of the call may be full of output.
func (c conversation) cancel(ctx context.Context, client *host.Client) bool {
	sig := &wire.Signal{Id: c.opts.Id, Cancel: true}
	_, err := client.Call(ctx, &wire.Request{Call: &wire.Request_Signal{Signal: sig}})
	e, ok := errors.AsType[*host.Error](err)
	return err == nil || ok && e.Code == "not_found"
}

// abandon cancels an operation whose caller cancelled while the request was being sent. It tries several times, because
// the guest may receive the request only after the first attempt.
func (c conversation) abandon(client *host.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), verdictWait)
	defer cancel()
	for range abandonTries {
		if !c.cancel(ctx, client) {
			return
		}
		select {
		case <-client.Done():
			return
		case <-time.After(abandonPause):
		}
	}
}

// feed sends input and terminal sizes to the guest until the returned function is called. If stdin blocks for ever, its
// goroutine stays: Go cannot interrupt a Read.
func feed(st *wire.Stream, stdin io.Reader, resize <-chan Size) (stop func()) {
	done := make(chan struct{})
	if stdin != nil {
		go func() {
			buf := make([]byte, wire.Chunk)
			for {
				n, err := stdin.Read(buf)
				select {
				case <-done:
					return
				default:
				}
				if n > 0 && st.Send(&wire.Frame{Body: &wire.Frame_Input{Input: &wire.Input{Stdin: buf[:n]}}}) != nil {
					return
				}
				if errors.Is(err, v1.ErrInputLeft) {
					return
				}
				if err != nil {
					// If Send fails, the operation has already ended.
					_ = st.Send(&wire.Frame{Body: &wire.Frame_Input{Input: &wire.Input{CloseStdin: true}}})
					return
				}
			}
		}()
	}
	if resize != nil {
		go func() {
			for {
				select {
				case <-done:
					return
				case z, ok := <-resize:
					if !ok {
						return
					}
					in := &wire.Input{Rows: uint32(max(1, z.Rows)), Cols: uint32(max(1, z.Cols))}
					if st.Send(&wire.Frame{Body: &wire.Frame_Input{Input: in}}) != nil {
						return
					}
				}
			}
		}()
	}
	return func() { close(done) }
}

// Operations returns the operations that run or have ended recently, oldest first.
func (s *Sandbox) Operations(ctx context.Context) ([]Operation, error) {
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_ListOps{ListOps: &wire.ListOps{}}})
	if err != nil {
		return nil, s.explain("list operations", err)
	}
	var out []Operation
	for _, o := range f.GetOps().GetOps() {
		op := Operation{
			ID:      o.Id,
			Kind:    o.Kind,
			Command: o.Command,
			Context: o.Context,
			Running: o.Running,
			PID:     int(o.Pid),
			Input:   o.Input,
			PTY:     o.Pty,
			Stdout:  o.Stdout,
			Stderr:  o.Stderr,
			Started: time.Unix(0, o.StartedUnixNs),
		}
		if o.Verdict != nil {
			op.Verdict = s.withNetwork(verdict(o.Verdict))
		}
		out = append(out, op)
	}
	return out, nil
}

// Follow writes an operation's output to opts.Stdout and opts.Stderr, beginning at absolute offsets, and returns the
// verdict once the operation has ended. It may be called repeatedly, also after Attach. When ctx ends, the operation
// continues. With NoWait, both results are nil while the operation runs. Otherwise exactly one is nil.
func (s *Sandbox) Follow(ctx context.Context, id string, opts FollowOptions) (*Verdict, error) {
	st, err := s.guest().Open(ctx, &wire.Request{Call: &wire.Request_Follow{Follow: &wire.Follow{
		Id:           id,
		StdoutOffset: opts.StdoutOffset,
		StderrOffset: opts.StderrOffset,
		NoWait:       opts.NoWait,
	}}})
	if err != nil {
		return nil, s.explain("follow", err)
	}
	st.Dedicate() // the guest waits for the end of the stream
	stop := context.AfterFunc(ctx, st.Close)
	defer stop()
	for {
		f, err := host.Receive(st)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			st.Close()
			return nil, s.explain("follow", err)
		}
		if o := f.GetOutput(); o != nil {
			if o.Skipped > 0 && opts.Skipped != nil {
				opts.Skipped(int(o.Stream), o.Skipped)
			}
			w := opts.Stdout
			if o.Stream == 2 {
				w = opts.Stderr
			}
			if w != nil {
				if _, err := w.Write(o.Data); err != nil {
					st.Close()
					return nil, &v1.Error{
						Code:    v1.CodeInternal,
						Op:      "follow",
						Message: "cannot write the output",
						Err:     err,
					}
				}
			}
		}
		if f.Last {
			st.Release()
			if v := f.GetVerdict(); v != nil {
				return s.withNetwork(verdict(v)), nil
			}
			return nil, nil
		}
	}
}

// Signal sends a signal to an operation's main process and its process group, or to all of its processes if opts.Tree
// is set.
func (s *Sandbox) Signal(ctx context.Context, id string, sig syscall.Signal, opts SignalOptions) error {
	req := &wire.Signal{Id: id, Signal: int32(sig), Tree: opts.Tree}
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Signal{Signal: req}})
	return s.explain("signal", err)
}

// Input sends input to a running operation that has a terminal or whose stdin was kept open. It returns when the
// operation has accepted the input. While it waits, another call fails with CodeBusy. After an error that is not
// retryable, the operation may still receive the input, now or later.
func (s *Sandbox) Input(ctx context.Context, id string, in Input) error {
	pieces := slices.Collect(slices.Chunk([]byte(in.Data), wire.Chunk))
	if len(pieces) == 0 {
		pieces = [][]byte{nil}
	}
	for i, p := range pieces {
		w := &wire.Input{Stdin: p, CloseStdin: in.End && i == len(pieces)-1}
		if in.Size != nil {
			w.Rows, w.Cols = uint32(max(1, in.Size.Rows)), uint32(max(1, in.Size.Cols))
		}
		if err := s.feed(ctx, id, w, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// feed sends one piece of input to an operation. If begun is set, the operation has received earlier pieces of the same
// input, and feed waits while the operation is busy: the caller could only repeat the whole input.
func (s *Sandbox) feed(ctx context.Context, id string, in *wire.Input, begun bool) error {
	for {
		_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Feed{Feed: &wire.Feed{Id: id, Input: in}}})
		if err == nil {
			return nil
		}
		err = s.explain("send input", err)
		if v1.CodeOf(err) != v1.CodeBusy {
			if e, ok := errors.AsType[*v1.Error](err); ok {
				e.Retry = false // the guest may have the input, or a part of it
			}
			return err
		}
		if !begun {
			return err
		}
		select {
		case <-ctx.Done():
			return s.explain("send input", ctx.Err())
		case <-time.After(busyPause):
		}
	}
}

// Cancel ends an operation and everything it started, like the end of the ctx of Run.
func (s *Sandbox) Cancel(ctx context.Context, id string) error {
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Signal{Signal: &wire.Signal{Id: id, Cancel: true}}})
	return s.explain("cancel", err)
}

// Forget deletes an ended operation and its spooled output.
func (s *Sandbox) Forget(ctx context.Context, id string) error {
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Forget{Forget: &wire.Forget{Id: id}}})
	return s.explain("forget", err)
}
