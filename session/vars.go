package session

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Limits of a session's variables.
const (
	MaxVars      = 1000
	MaxVarLength = 1 << 20
)

// checkVar rejects an invalid variable.
func checkVar(name, value string) error {
	if err := checkName("variable", name); err != nil {
		return invalid("set variable", "invalid variable name %.140q", name)
	}
	if len(value) > MaxVarLength {
		return &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "set variable",
			Message: fmt.Sprintf("%d bytes exceed the limit of %d", len(value), MaxVarLength),
			Remedy:  "write it to a file in the session",
		}
	}
	return nil
}

// Vars returns the variables of the session, which are kept in the store. It does not count as use.
func (s *Session) Vars(ctx context.Context) (map[string]string, error) {
	if err := s.checkLive(); err != nil {
		return nil, err
	}
	return s.m.store.Vars(ctx, s.id)
}

// Var returns one variable.
func (s *Session) Var(ctx context.Context, name string) (string, error) {
	vars, err := s.Vars(ctx)
	if err != nil {
		return "", err
	}
	v, ok := vars[name]
	if !ok {
		return "", unknownVar(name)
	}
	return v, nil
}

// SetVar sets one variable.
func (s *Session) SetVar(ctx context.Context, name, value string) error {
	if err := checkVar(name, value); err != nil {
		return err
	}
	vars, err := s.Vars(ctx)
	if err != nil {
		return err
	}
	if _, known := vars[name]; !known && len(vars) >= MaxVars {
		return &v1.Error{
			Code:    v1.CodeSessionLimit,
			Op:      "set variable",
			Message: fmt.Sprintf("limit of %d variables reached", MaxVars),
			Remedy:  "delete one",
		}
	}
	if err := s.m.store.SetVars(ctx, s.id, map[string]string{name: value}); err != nil {
		return err
	}
	s.varChanged(name, "set")
	return nil
}

// DeleteVar removes one variable.
func (s *Session) DeleteVar(ctx context.Context, name string) error {
	if err := s.checkLive(); err != nil {
		return err
	}
	found, err := s.m.store.DeleteVar(ctx, s.id, name)
	if err != nil {
		return err
	}
	if !found {
		return unknownVar(name)
	}
	s.varChanged(name, "deleted")
	return nil
}

func unknownVar(name string) error {
	return &v1.Error{Code: v1.CodeVarNotFound, Op: "read variable", Message: fmt.Sprintf("no variable %.140q", name)}
}

func (s *Session) varChanged(name, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Used, s.dirty = time.Now(), true
	s.emit(Event{Kind: "var", Reason: what, Attrs: map[string]string{"name": name}}, true)
}
