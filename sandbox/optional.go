package sandbox

import (
	"context"
	"path"
	"strings"
)

// What follows not every backend can do. Sandbox and session ask by a type assertion and refuse with ErrNotSupported.

// Pauser freezes a sandbox in memory.
type Pauser interface {
	// Pause stops everything inside until Resume. Pausing twice is no error.
	Pause(ctx context.Context, id string) error
	// Resume lets a paused sandbox go on. One that runs is left alone.
	Resume(ctx context.Context, id string) error
}

// Answerer says what can be known without making a sandbox.
type Answerer interface {
	// Answers is Health without a trial.
	Answers(ctx context.Context) Health
}

// Labeler changes the labels of a sandbox that exists: one from a pool gets its owner's.
type Labeler interface {
	// Label sets the labels that List gives back.
	Label(ctx context.Context, id string, labels map[string]string) error
}

// Sharer shows single files of the host inside, without a copy where the file systems allow it.
type Sharer interface {
	// Share makes a regular file of the host readable inside under SharedDir, by a link to it if that can be, else by a copy on the
	// host's disk. The file must not be changed in place while the sandbox lives.
	Share(ctx context.Context, id, file, name string) error
}

// SharedDir is where shared files appear inside, read-only. Each sandbox is born with it, empty.
const SharedDir = "/shared"

// Pause freezes the sandbox in memory. Calls wait until Resume.
func (s *Sandbox) Pause(ctx context.Context) error {
	p, ok := s.backend.(Pauser)
	if !ok {
		return NotSupported(s.backend.Name(), "pause", "")
	}
	return p.Pause(ctx, s.ID())
}

// Resume undoes Pause.
func (s *Sandbox) Resume(ctx context.Context) error {
	p, ok := s.backend.(Pauser)
	if !ok {
		return NotSupported(s.backend.Name(), "resume", "")
	}
	return p.Resume(ctx, s.ID())
}

// Share shows a regular file of the host inside and gives its path there. The name may have directories in it.
func (s *Sandbox) Share(ctx context.Context, file, name string) (string, error) {
	p, ok := s.backend.(Sharer)
	if !ok {
		return "", NotSupported(s.backend.Name(), "share a file", "write it with Files")
	}
	clean := path.Clean(name)
	if clean != name || path.IsAbs(name) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(name, 0) {
		return "", &Error{Code: CodePathInvalid, Op: "share a file", Message: "the name inside must be a clean relative path"}
	}
	if err := p.Share(ctx, s.ID(), file, name); err != nil {
		return "", err
	}
	return path.Join(SharedDir, name), nil
}
