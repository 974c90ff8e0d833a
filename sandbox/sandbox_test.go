package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/testbin"
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain sets the guest and a data directory for the examples.
func testMain(m *testing.M) int {
	guest, err := testbin.Guest()
	dir, mkdirErr := os.MkdirTemp("", "recluse-sandbox-")
	defer func() { _ = os.RemoveAll(dir) }()
	if err = errors.Join(err, mkdirErr, os.Setenv("RECLUSE_GUEST", guest.Path), os.Setenv("XDG_DATA_HOME", dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// toy is a backend with one sandbox, whose guest answers requests with serve.
type toy struct {
	Backend
	name    string
	machine toyMachine
	stops   []error // results of successive calls of Stop; then nil
	stopped int
	serve   func(*wire.Stream, *wire.Request) bool
	session *wire.Session
}

func (b *toy) Start(_ context.Context, spec Spec) (Machine, error) {
	ours, theirs := net.Pipe()
	b.machine = toyMachine{stream: ours, spec: spec, gone: make(chan struct{})}
	go func() {
		a, err := wire.NewLink(theirs, theirs, b.machine.Token()).Accept(func(*wire.Hello) *wire.Welcome { return &wire.Welcome{Protocol: wire.Protocol} })
		if err == nil {
			b.session = wire.NewSession(a, theirs, false)
			b.session.Serve(b.serve)
		}
	}()
	return &b.machine, nil
}

func (b *toy) Name() string { return b.name }

func (b *toy) Stop(context.Context, string) error {
	b.stopped++
	if len(b.stops) == 0 {
		return nil
	}
	err := b.stops[0]
	b.stops = b.stops[1:]
	return err
}

type toyMachine struct {
	Machine
	stream io.ReadWriteCloser
	spec   Spec
	gone   chan struct{}
	cause  error // once gone is closed
}

func (m *toyMachine) ID() string                  { return "toy" }
func (m *toyMachine) Spec() Spec                  { return m.spec }
func (m *toyMachine) Stream() io.ReadWriteCloser  { return m.stream }
func (m *toyMachine) Token() []byte               { return bytes.Repeat([]byte{7, 9}, wire.TokenSize/2) }
func (m *toyMachine) Generation() string          { return "1" }
func (m *toyMachine) Gone() <-chan struct{}       { return m.gone }
func (m *toyMachine) Cause() error                { return m.cause }
func (m *toyMachine) MemoryKills() (uint64, bool) { return 0, false }

func openToy(t *testing.T, b *toy) *Sandbox {
	t.Helper()
	s, err := Open(t.Context(), b, Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestACancelledCommandWhoseVerdictNeverComesIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled := 0
		s := openToy(t, &toy{serve: func(st *wire.Stream, req *wire.Request) bool {
			if req.GetSignal().GetCancel() {
				cancelled++
				return st.Send(&wire.Frame{Last: true}) == nil
			}
			return st.Receive(&wire.Frame{}) == nil // for ever
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		v, err := s.Run(ctx, Command{Args: []string{"sleep"}})
		if v != nil || v1.CodeOf(err) != v1.CodeCancelled || !strings.Contains(err.Error(), "sent no verdict") {
			t.Errorf("%v, %v", v, err)
		}
		if took, want := time.Since(begin), time.Second+verdictWait+v1.DefaultKillGrace; took != want {
			t.Errorf("Run took %s, want %s", took, want)
		}
		if cancelled != 1 {
			t.Errorf("cancelled %d times", cancelled)
		}
	})
}

func TestTheVerdictOfACancelledCommandIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		s := openToy(t, &toy{serve: func(st *wire.Stream, req *wire.Request) bool {
			if req.GetSignal().GetCancel() {
				close(over)
				return st.Send(&wire.Frame{Last: true}) == nil
			}
			<-over
			return st.Send(&wire.Frame{Last: true, Body: &wire.Frame_Verdict{Verdict: &wire.Verdict{Ending: wire.Ending_ENDING_CANCELLED}}}) == nil
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		v, err := s.Run(ctx, Command{Args: []string{"sleep"}})
		if err != nil || v.Ended != v1.EndedCancelled {
			t.Errorf("%v, %v", v, err)
		}
	})
}

// stillborn is a backend whose guests end at once. It notices the end one second later.
type stillborn struct{ toy }

func (b *stillborn) Start(_ context.Context, spec Spec) (Machine, error) {
	ours, theirs := net.Pipe()
	b.machine = toyMachine{stream: ours, spec: spec, gone: make(chan struct{})}
	_ = theirs.Close()
	time.AfterFunc(time.Second, func() {
		b.machine.cause = &v1.Error{Code: v1.CodeGuestLost, Message: "it ended with exit code 3"}
		close(b.machine.gone)
	})
	return &b.machine, nil
}

func TestTheEndOfAGuestThatNeverAnsweredIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &stillborn{}
		if _, err := Open(t.Context(), b, Spec{}); v1.CodeOf(err) != v1.CodeGuestLost || !strings.Contains(err.Error(), "exit code 3") {
			t.Error(err)
		}
		if b.stopped != 1 {
			t.Errorf("stopped %d times", b.stopped)
		}
	})
}

func TestRequestsThatDoNotFitAreTooLarge(t *testing.T) {
	s := openToy(t, &toy{serve: func(*wire.Stream, *wire.Request) bool { return false }})
	large := strings.Repeat("x", maxRequest+1)
	half := large[:maxRequest/2]
	run := func(c Command) error { _, err := s.Run(t.Context(), c); return err }
	cell := func(c Cell) error { _, err := s.Cell(t.Context(), c); return err }
	for name, err := range map[string]error{
		"script":                   run(Command{Shell: large}),
		"arguments":                run(Command{Args: []string{"echo", half, half}}),
		"environment":              run(Command{Shell: "true", RunOptions: RunOptions{Env: map[string]string{"A": half, "B": half}}}),
		"metadata":                 run(Command{Shell: "true", RunOptions: RunOptions{Metadata: map[string]string{"a": large}}}),
		"all together":             run(Command{Shell: half, RunOptions: RunOptions{Metadata: map[string]string{"a": half}}}),
		"arguments of a cell":      cell(Cell{Args: []string{large}}),
		"environment of a cell":    cell(Cell{RunOptions: RunOptions{Env: map[string]string{"A": large}}}),
		"metadata of a cell":       cell(Cell{RunOptions: RunOptions{Metadata: map[string]string{"a": large}}}),
		"path larger than a frame": s.Files().Mkdir(t.Context(), large+large+large, MkdirOptions{}),
	} {
		if v1.CodeOf(err) != v1.CodeTooLarge || !strings.Contains(err.Error(), "write it to a file") {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

func TestACloseThatFailedCanBeRepeated(t *testing.T) {
	b := &toy{stops: []error{errors.New("busy")}}
	s := openToy(t, b)
	if err := s.Close(); err == nil {
		t.Fatal("the first Close succeeded")
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if b.stopped != 2 {
		t.Errorf("stopped %d times", b.stopped)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, ErrSandboxLost) {
		t.Errorf("Ping after Close returned %v", err)
	}
}

func TestCloseLeavesWhatWasDetached(t *testing.T) {
	b := &toy{}
	s := openToy(t, b)
	s.Detach()
	if err := s.Close(); err != nil || b.stopped != 0 {
		t.Errorf("%v, stopped %d times", err, b.stopped)
	}
}

func TestRestoreChecksTheEnvironment(t *testing.T) {
	snap := &Snapshot{Spec: Spec{Env: map[string]string{"A": strings.Repeat("x", v1.MaxEnv/2), "B": "2"}}}
	for name, env := range map[string]map[string]string{
		"too large with the snapshot's": {"C": strings.Repeat("x", v1.MaxEnv/2)},
		"invalid name":                  {"A=B": ""},
		"NUL":                           {"A": "\x00"},
	} {
		if _, err := Restore(t.Context(), &toy{}, snap, RestoreOptions{Env: env}); !errors.Is(err, ErrInvalidSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := &restorer{}
	_, _ = Restore(t.Context(), b, snap, RestoreOptions{Env: map[string]string{"A": strings.Repeat("x", v1.MaxEnv/2)}})
	if !b.called {
		t.Error("a variable that replaces one of the snapshot was rejected")
	}
}

type restorer struct {
	Backend
	called bool
}

func (r *restorer) Restore(context.Context, *Snapshot, RestoreOptions) (Machine, error) {
	r.called = true
	return nil, errors.New("not implemented")
}

func TestOptionsOfAnotherBackendAreRefused(t *testing.T) {
	spec := Spec{Options: map[string]json.RawMessage{"docker": []byte(`{}`)}}
	if err := checkOptions(spec, "docker"); err != nil {
		t.Error(err)
	}
	_, err := Open(t.Context(), &toy{name: "gvisor"}, spec)
	if v1.CodeOf(err) != v1.CodeNotSupported || !strings.Contains(err.Error(), "docker") || !strings.Contains(err.Error(), "gvisor") {
		t.Errorf("%v", err)
	}
}

func TestATerminalHasNoTimeout(t *testing.T) {
	for _, tt := range []struct {
		name    string
		command Command
		want    time.Duration
	}{
		{"command", Command{Args: []string{"true"}}, v1.DefaultTimeout},
		{"terminal", Command{Args: []string{"true"}, PTY: &Size{Rows: 1, Cols: 1}}, 0},
		{"terminal with a timeout", Command{Args: []string{"true"}, PTY: &Size{Rows: 1, Cols: 1}, RunOptions: RunOptions{Timeout: time.Minute}}, time.Minute},
	} {
		req, err := (&Sandbox{}).exec(t.Context(), tt.command)
		if err != nil || time.Duration(req.Options.TimeoutNs) != tt.want {
			t.Errorf("%s: %v, timeout %s, want %s", tt.name, err, time.Duration(req.GetOptions().GetTimeoutNs()), tt.want)
		}
	}
}
