package e2b

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/ids"
)

// processService adds the calls about processes. A process is a background command of the session: it outlives the
// request that starts it, and the server, and it hibernates with the session.
func (h *Handler) processService(mux *http.ServeMux) {
	const service = "/process.Process/"
	streaming(mux, service+"Start", (*inside).start)
	streaming(mux, service+"Connect", (*inside).connect)
	unary(mux, service+"List", (*inside).list)
	unary(mux, service+"Update", (*inside).update)
	unary(mux, service+"SendInput", (*inside).sendInput)
	unary(mux, service+"CloseStdin", (*inside).closeStdin)
	unary(mux, service+"SendSignal", (*inside).sendSignal)
	mux.Handle(service+"StreamInput", connect.NewClientStreamHandler(service+"StreamInput",
		func(ctx context.Context, s *connect.ClientStream[wire.StreamInputRequest]) (
			*connect.Response[wire.StreamInputResponse], error,
		) {
			d := ctx.Value(insideKey{}).(*inside) //nolint:forcetypeassert // set for all calls
			if err := d.streamInput(ctx, s); err != nil {
				return nil, rpcError(err)
			}
			return connect.NewResponse(&wire.StreamInputResponse{}), nil
		}, rpcOptions()...))
}

// idPrefix begins the id of an operation that is a process of E2B. After it come random digits and, in hexadecimal, the
// tag that its starter gave it.
const idPrefix = "e2b-"

const (
	maxTag = 40
	// killGrace is the time between SIGTERM and SIGKILL at the end of a timeout: E2B gives none.
	killGrace = time.Millisecond
)

func newID(tag string) string {
	id := idPrefix + ids.Hex(8)
	if tag != "" {
		id += "-" + hex.EncodeToString([]byte(tag))
	}
	return id
}

func tagOf(id string) string {
	_, tag, _ := strings.Cut(strings.TrimPrefix(id, idPrefix), "-")
	b, _ := hex.DecodeString(tag) // we encoded it
	return string(b)
}

// starts keeps how processes were started, for lists of processes. Processes of an earlier server are listed by the
// text of their command.
type starts struct {
	mu sync.Mutex
	of map[string]map[string]*wire.ProcessConfig // guarded by mu; by id of the session and of the operation
}

func (s *starts) add(ses, op string, c *wire.ProcessConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]map[string]*wire.ProcessConfig{}
	}
	if s.of[ses] == nil {
		s.of[ses] = map[string]*wire.ProcessConfig{}
	}
	s.of[ses][op] = c
}

func (s *starts) get(ses, op string) *wire.ProcessConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[ses][op]
}

func (s *starts) remove(ses, op string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of[ses], op)
	if len(s.of[ses]) == 0 {
		delete(s.of, ses)
	}
}

// maxKept is what is kept of each stream besides the first 10 MB: half of it is the latest output. A caller that is
// further behind has lost some, so it is the most that sessions allow.
const maxKept = 1 << 20

// start runs a process and streams its output. The time limit of the request is that of the process. If the caller
// disconnects, the process continues.
func (d *inside) start(ctx context.Context, in *wire.StartRequest, s *connect.ServerStream[wire.StartResponse]) error {
	p := in.GetProcess()
	if p.GetCmd() == "" {
		return invalid("the command is missing")
	}
	if len(in.GetTag()) > maxTag {
		return invalid("the tag is longer than 40 bytes")
	}
	user, err := d.user()
	if err != nil {
		return err
	}
	c := v1.Command{Args: append([]string{p.GetCmd()}, p.GetArgs()...), Dir: path(p.GetCwd()), RunOptions: v1.RunOptions{
		ID:        newID(in.GetTag()),
		Env:       p.GetEnvs(),
		User:      user,
		KeepStdin: in.Stdin == nil || in.GetStdin(),
		KillGrace: killGrace,

		InlineBytes: maxKept,
	}}
	if size := in.GetPty().GetSize(); in.GetPty() != nil {
		c.PTY = &v1.Size{Rows: int(size.GetRows()), Cols: int(size.GetCols())}
	}
	if end, ok := ctx.Deadline(); ok {
		c.Timeout = time.Until(end)
		if c.Timeout <= 0 {
			return context.DeadlineExceeded
		}
	}
	d.starts.add(d.ses.ID(), c.ID, p)
	if _, err := d.ses.Start(ctx, c); err != nil {
		d.starts.remove(d.ses.ID(), c.ID)
		return err
	}
	return d.follow(ctx, c.ID, v1.FollowOptions{}, func(e *wire.ProcessEvent) error {
		return s.Send(&wire.StartResponse{Event: e})
	})
}

// connect streams the output of a running process from now on.
func (d *inside) connect(
	ctx context.Context, in *wire.ConnectRequest, s *connect.ServerStream[wire.ConnectResponse],
) error {
	o, err := d.find(ctx, in.GetProcess())
	if err != nil {
		return err
	}
	from := v1.FollowOptions{StdoutOffset: o.Stdout, StderrOffset: o.Stderr}
	return d.follow(ctx, o.ID, from, func(e *wire.ProcessEvent) error {
		return s.Send(&wire.ConnectResponse{Event: e})
	})
}

// output is a stream of a process as an io.Writer.
type output struct {
	*events
	stream int
}

// Write implements io.Writer.
func (o output) Write(b []byte) (int, error) {
	data := &wire.ProcessEvent_DataEvent{}
	b = bytes.Clone(b)
	switch {
	case o.pty:
		data.Output = &wire.ProcessEvent_DataEvent_Pty{Pty: b}
	case o.stream == 1:
		data.Output = &wire.ProcessEvent_DataEvent_Stdout{Stdout: b}
	default:
		data.Output = &wire.ProcessEvent_DataEvent_Stderr{Stderr: b}
	}
	return len(b), o.add(&wire.ProcessEvent{Event: &wire.ProcessEvent_Data{Data: data}}, len(b))
}

// follow sends the events of a process until it ends.
func (d *inside) follow(ctx context.Context, id string, o v1.FollowOptions, send func(*wire.ProcessEvent) error) error {
	op, err := d.ses.Operation(ctx, id)
	if err != nil {
		return err
	}
	e := newEvents(send, &d.queued)
	defer e.close()
	e.pty = op.PTY
	start := &wire.ProcessEvent_StartEvent{Pid: uint32(op.PID)}
	if err := e.add(&wire.ProcessEvent{Event: &wire.ProcessEvent_Start{Start: start}}, 0); err != nil {
		return err
	}
	stop := d.keepAlive(func() error {
		return e.add(&wire.ProcessEvent{Event: &wire.ProcessEvent_Keepalive{Keepalive: &wire.ProcessEvent_KeepAlive{}}}, 0)
	})
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	lost := int64(0)
	o.Stdout, o.Stderr = output{e, 1}, output{e, 2}
	o.Skipped = func(_ int, n int64) { lost += n }
	v, err := d.ses.Follow(ctx, id, o)
	switch {
	case err != nil && d.ctx.Err() != nil:
		return connect.NewError(connect.CodeUnavailable, errors.New("the server stops; the process continues"))
	case err != nil && v1.CodeOf(err) == v1.CodeSessionMoved:
		return connect.NewError(connect.CodeUnavailable, errors.New("the sandbox was paused; the process is paused, too"))
	case err != nil:
		return err
	}
	d.starts.remove(d.ses.ID(), id)
	if err := e.flush(); err != nil {
		return err
	}
	switch {
	case v.Ended == v1.EndedTimeout:
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the process reached its timeout and was killed"))
	case lost > 0:
		return connect.NewError(connect.CodeDataLoss, fmt.Errorf(
			"%d bytes of output are missing: the process wrote faster than they were read; write it to a file", lost))
	}
	if err := e.add(&wire.ProcessEvent{Event: &wire.ProcessEvent_End{End: endOf(v)}}, 0); err != nil {
		return err
	}
	return e.flush()
}

// endOf describes the end of a process in the words of Go's ProcessState.
func endOf(v *v1.Verdict) *wire.ProcessEvent_EndEvent {
	end := &wire.ProcessEvent_EndEvent{ExitCode: int32(v.ExitCode), Exited: true}
	switch v.Ended {
	case v1.EndedExit:
		end.Status = "exit status " + strconv.Itoa(v.ExitCode)
	case v1.EndedStart:
		end.Status = v.String()
	default:
		end.ExitCode, end.Exited = -1, false
		sig := v.Signal
		if v.Ended == v1.EndedMemory || sig == 0 {
			sig = syscall.SIGKILL
		}
		end.Status = "signal: " + sig.String()
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return end
}

// keepAlive calls ping at the interval that the caller requests, until the returned function is called.
func (d *inside) keepAlive(ping func() error) (stop func()) {
	seconds, err := strconv.Atoi(d.r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds < 1 {
		seconds = 90
	}
	t := time.NewTicker(time.Duration(seconds) * time.Second)
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-t.C:
				if ping() != nil {
					return
				}
			}
		}
	})
	return func() {
		t.Stop()
		close(ended)
		wg.Wait()
	}
}

// find returns the running process that a selector names.
func (d *inside) find(ctx context.Context, s *wire.ProcessSelector) (*v1.Operation, error) {
	all, err := d.ses.Operations(ctx)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		if !o.Running || o.Kind != "command" {
			continue
		}
		if s.GetTag() != "" && tagOf(o.ID) == s.GetTag() || s.GetTag() == "" && uint32(o.PID) == s.GetPid() {
			return &all[i], nil
		}
	}
	return nil, &v1.Error{Code: v1.CodeNotFound, Op: "find process", Message: "no running process has this pid or tag"}
}

func (d *inside) list(ctx context.Context, _ *wire.ListRequest) (*wire.ListResponse, error) {
	all, err := d.ses.Operations(ctx)
	if err != nil {
		return nil, err
	}
	out := &wire.ListResponse{}
	for _, o := range all {
		if !o.Running || o.Kind != "command" {
			continue
		}
		p := &wire.ProcessInfo{Pid: uint32(o.PID), Config: d.starts.get(d.ses.ID(), o.ID)}
		if p.Config == nil {
			p.Config = &wire.ProcessConfig{Cmd: o.Command}
		}
		if tag := tagOf(o.ID); tag != "" {
			p.Tag = &tag
		}
		out.Processes = append(out.Processes, p)
	}
	return out, nil
}

// input sends input to a process.
func (d *inside) input(ctx context.Context, s *wire.ProcessSelector, in v1.Input) error {
	o, err := d.find(ctx, s)
	if err != nil {
		return err
	}
	return d.ses.Input(ctx, o.ID, in)
}

func (d *inside) update(ctx context.Context, in *wire.UpdateRequest) (*wire.UpdateResponse, error) {
	size := in.GetPty().GetSize()
	if size == nil {
		return nil, invalid("the size of the terminal is missing")
	}
	err := d.input(ctx, in.GetProcess(), v1.Input{Size: &v1.Size{Rows: int(size.GetRows()), Cols: int(size.GetCols())}})
	return &wire.UpdateResponse{}, err
}

func inputOf(in *wire.ProcessInput) v1.Input {
	if pty := in.GetPty(); len(pty) > 0 {
		return v1.Input{Data: v1.Text(pty)}
	}
	return v1.Input{Data: v1.Text(in.GetStdin())}
}

func (d *inside) sendInput(ctx context.Context, in *wire.SendInputRequest) (*wire.SendInputResponse, error) {
	return &wire.SendInputResponse{}, d.input(ctx, in.GetProcess(), inputOf(in.GetInput()))
}

func (d *inside) closeStdin(ctx context.Context, in *wire.CloseStdinRequest) (*wire.CloseStdinResponse, error) {
	return &wire.CloseStdinResponse{}, d.input(ctx, in.GetProcess(), v1.Input{End: true})
}

// streamInput sends the input that arrives as a stream. The first message names the process.
func (d *inside) streamInput(ctx context.Context, s *connect.ClientStream[wire.StreamInputRequest]) error {
	var to *wire.ProcessSelector
	for s.Receive() {
		if err := checkUnknown(s.Msg()); err != nil {
			return err
		}
		switch e := s.Msg().GetEvent().(type) {
		case *wire.StreamInputRequest_Start:
			to = e.Start.GetProcess()
		case *wire.StreamInputRequest_Data:
			if to == nil {
				return invalid("the first message must name the process")
			}
			if err := d.input(ctx, to, inputOf(e.Data.GetInput())); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

func (d *inside) sendSignal(ctx context.Context, in *wire.SendSignalRequest) (*wire.SendSignalResponse, error) {
	sig := syscall.Signal(in.GetSignal())
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
		return nil, invalid("the signal is neither SIGKILL nor SIGTERM")
	}
	o, err := d.find(ctx, in.GetProcess())
	if err != nil {
		return nil, err
	}
	return &wire.SendSignalResponse{}, d.ses.Signal(ctx, o.ID, sig, v1.SignalOptions{})
}
