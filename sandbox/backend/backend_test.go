package backend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestNotSupported(t *testing.T) {
	err := NotSupported("local", "snapshot", "use gvisor")
	if !errors.Is(err, sandbox.ErrNotSupported) || err.Error() != "snapshot: the local backend does not support this (use gvisor)" {
		t.Errorf("%v", err)
	}
}

func TestAnUnavailableBackendSaysWhy(t *testing.T) {
	why := &v1.Error{Code: v1.CodeEngineMissing, Op: "find engine", Message: "none", Remedy: "build it", Err: io.EOF}
	b := Unavailable("x", why)
	if h := b.Health(t.Context()); h.OK || h.Reason != "find engine: none: EOF" || h.Remedy != "build it" {
		t.Errorf("%+v", h)
	}
	if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{}); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	if _, err := b.List(t.Context()); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	never := Unavailable("x", NotSupported("x", "run on plan9", ""))
	if all, err := never.List(t.Context()); all != nil || err != nil || never.Stop(t.Context(), "id") != nil {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := never.Attach(t.Context(), "id"); !errors.Is(err, sandbox.ErrNotSupported) {
		t.Errorf("%v", err)
	}
	if h := Unavailable("x", io.EOF).Health(t.Context()); h.Reason != "EOF" {
		t.Errorf("%+v", h)
	}
}

// able has every optional interface and records which of its methods were called.
type able struct {
	sandbox.Backend
	sandbox.Machine
	stream io.ReadWriteCloser
	called []string
}

var (
	_ Pauser           = (*able)(nil)
	_ Sharer           = (*able)(nil)
	_ IncidentReporter = (*able)(nil)
	_ FreezeReporter   = (*able)(nil)
)

func (a *able) note(what string) error {
	a.called = append(a.called, what)
	return nil
}

func (a *able) Pause(context.Context, string) error                 { return a.note("pause") }
func (a *able) Resume(context.Context, string) error                { return a.note("resume") }
func (a *able) Share(context.Context, string, string, string) error { return a.note("share") }
func (a *able) Frozen() error                                       { return a.note("frozen") }
func (a *able) OnIncident(func(sandbox.Incident))                   { _ = a.note("incident") }
func (a *able) Stop(context.Context, string) error                  { return nil }
func (a *able) Name() string                                        { return "able" }
func (a *able) ID() string                                          { return "able" }
func (a *able) Spec() sandbox.Spec                                  { return sandbox.Spec{} }
func (a *able) Stream() io.ReadWriteCloser                          { return a.stream }
func (a *able) Token() []byte                                       { return bytes.Repeat([]byte{7, 9}, wire.TokenSize/2) }
func (a *able) Generation() string                                  { return "1" }
func (a *able) Gone() <-chan struct{}                               { return nil }

func (a *able) Start(context.Context, sandbox.Spec) (sandbox.Machine, error) {
	ours, theirs := net.Pipe()
	a.stream = ours
	go func() {
		link, err := wire.NewLink(theirs, theirs, a.Token()).Accept(func(*wire.Hello) *wire.Welcome { return &wire.Welcome{Protocol: wire.Protocol} })
		if err == nil {
			wire.NewSession(link, theirs, false).Serve(func(*wire.Stream, *wire.Request) bool { return false })
		}
	}()
	return a, nil
}

// Package sandbox finds the optional methods by their signatures, which package backend declares.
func TestASandboxFindsTheOptionalMethods(t *testing.T) {
	a := &able{}
	s, err := sandbox.Open(t.Context(), a, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.OnIncident(func(sandbox.Incident) {})
	_, shared := s.Share(t.Context(), "/file", "name")
	if err := errors.Join(s.Pause(t.Context()), s.Resume(t.Context()), s.Frozen(), shared); err != nil {
		t.Error(err)
	}
	if len(a.called) != 5 {
		t.Errorf("called were %q", a.called)
	}
}
