package sandbox

import (
	"context"
	"path"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Package backend declares the optional interfaces of backends: Pauser, Sharer, IncidentReporter and others. It
// imports this package, so this file cannot name them and checks for the methods by their signature.

// SharedDir is the directory inside that shows shared files, read-only. Every sandbox has it. It is empty at first.
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

// Share shows a regular file of the host inside the sandbox, as name below SharedDir, and returns its path there. The
// name may contain directories.
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
		return "", &v1.Error{
			Code:    v1.CodePathInvalid,
			Op:      "share a file",
			Message: "the name inside must be a clean relative path",
		}
	}
	if err := p.Share(ctx, s.ID(), file, name); err != nil {
		return "", err
	}
	return path.Join(SharedDir, name), nil
}

// Frozen returns an error if another program has paused the sandbox, and nil otherwise. Nothing in a frozen sandbox
// makes progress, although it has not ended. New cells and commands are rejected with this error. All other calls wait
// until the sandbox continues.
func (s *Sandbox) Frozen() error {
	if f, ok := s.machine.(interface{ Frozen() error }); ok {
		return f.Frozen()
	}
	return nil
}

// Cost returns what the sandbox has cost until now, in dollars, estimated; 0: it costs nothing.
func (s *Sandbox) Cost() float64 {
	if c, ok := s.machine.(interface{ Cost() float64 }); ok {
		return c.Cost()
	}
	return 0
}

// OnIncident sets the function that receives incidents. It is never called if the backend cannot notice incidents.
func (s *Sandbox) OnIncident(f func(Incident)) {
	if w, ok := s.machine.(interface{ OnIncident(f func(Incident)) }); ok {
		w.OnIncident(f)
	}
}

func (s *Sandbox) notSupported(op, remedy string) error {
	return &v1.Error{
		Code:    v1.CodeNotSupported,
		Op:      op,
		Message: "the " + s.backend.Name() + " backend does not support this",
		Remedy:  remedy,
	}
}
