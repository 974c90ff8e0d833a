package sandbox

import (
	"context"
	"path"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Package backend declares the optional interfaces of backends: Pauser, Sharer, Witness and others. It
// imports this package, so the methods are looked up here by their signature.

// SharedDir is where shared files appear inside, read-only. Each sandbox is born with it, empty.
const SharedDir = "/shared"

// Pause freezes the sandbox in memory. Calls wait until Resume.
func (s *Sandbox) Pause(ctx context.Context) error {
	p, ok := s.backend.(interface {
		Pause(ctx context.Context, id string) error
	})
	if !ok {
		return s.notSupported("pause", "")
	}
	return p.Pause(ctx, s.ID())
}

// Resume undoes Pause.
func (s *Sandbox) Resume(ctx context.Context) error {
	p, ok := s.backend.(interface {
		Resume(ctx context.Context, id string) error
	})
	if !ok {
		return s.notSupported("resume", "")
	}
	return p.Resume(ctx, s.ID())
}

// Share shows a regular file of the host inside and returns its path there. The name may contain directories.
func (s *Sandbox) Share(ctx context.Context, file, name string) (string, error) {
	p, ok := s.backend.(interface {
		Share(ctx context.Context, id, file, name string) error
	})
	if !ok {
		return "", s.notSupported("share a file", "write it with Files")
	}
	clean := path.Clean(name)
	if clean != name || path.IsAbs(name) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") ||
		strings.ContainsRune(name, 0) {
		return "", &v1.Error{Code: v1.CodePathInvalid, Op: "share a file", Message: "the name inside must be a clean relative path"}
	}
	if err := p.Share(ctx, s.ID(), file, name); err != nil {
		return "", err
	}
	return path.Join(SharedDir, name), nil
}

// Frozen returns why nothing in the sandbox makes progress at the moment, although it has not ended: somebody else has paused it. Calls wait
// until it goes on, except new cells and commands, which are refused with this error.
func (s *Sandbox) Frozen() error {
	if f, ok := s.machine.(interface{ Frozen() error }); ok {
		return f.Frozen()
	}
	return nil
}

// OnIncident sets the function that receives incidents. It is never called where the backend notices none.
func (s *Sandbox) OnIncident(f func(Incident)) {
	if w, ok := s.machine.(interface{ OnIncident(f func(Incident)) }); ok {
		w.OnIncident(f)
	}
}

func (s *Sandbox) notSupported(op, remedy string) error {
	return &v1.Error{
		Code: v1.CodeNotSupported, Op: op, Message: "the " + s.backend.Name() + " backend cannot do this", Remedy: remedy,
	}
}
