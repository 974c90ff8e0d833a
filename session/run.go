package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// Cell runs code in one of the session's interpreters, after all earlier cells of that interpreter.
func (s *Session) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	begun := time.Now()
	j, err := s.judge(ctx, gate.Request{Language: gate.Python, Code: c.Code})
	var v *sandbox.Verdict
	if err == nil {
		v, err = s.cell(ctx, c)
	}
	s.reportState(v)
	j.addWarning(v)
	s.recordRun(ctx, "cell", c.Code, j, begun, v, err)
	return v, err
}

func (s *Session) cell(ctx context.Context, c sandbox.Cell) (v *sandbox.Verdict, err error) {
	if err := s.awaitCreated(ctx); err != nil {
		return nil, err
	}
	if err := s.beginUse(true, true); err != nil {
		return nil, err
	}
	defer func() { s.endUse(true, outputBytes(v)) }()
	name := c.Context
	if name == "" {
		name = defaultContext
	}
	if err := s.frozen(); err != nil { // otherwise the cell would wait in the queue until the sandbox is resumed
		return nil, err
	}
	leave, err := s.enterQueue(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	sb, err := s.awaitSandbox(ctx)
	if err != nil {
		return nil, err
	}
	v, err = sb.Cell(ctx, c)
	return v, s.explain(sb, err)
}

// Run runs a command, waits until it has ended, and returns its verdict.
func (s *Session) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	begun := time.Now()
	j, err := s.judgeCommand(ctx, c)
	var v *sandbox.Verdict
	if err == nil {
		v, err = s.run(ctx, c)
	}
	s.reportState(v)
	j.addWarning(v)
	s.recordRun(ctx, "command", commandLine(c), j, begun, v, err)
	return v, err
}

func (s *Session) run(ctx context.Context, c sandbox.Command) (v *sandbox.Verdict, err error) {
	if err := s.awaitCreated(ctx); err != nil {
		return nil, err
	}
	if err := s.beginUse(true, true); err != nil {
		return nil, err
	}
	defer func() { s.endUse(true, outputBytes(v)) }()
	sb, err := s.awaitSandbox(ctx)
	if err != nil {
		return nil, err
	}
	v, err = sb.Run(ctx, c)
	return v, s.explain(sb, err)
}

// Start runs a command in the background and returns its id. The command counts as use as long as it runs.
func (s *Session) Start(ctx context.Context, c sandbox.Command) (string, error) {
	begun := time.Now()
	j, err := s.judgeCommand(ctx, c)
	var id string
	if err == nil {
		id, err = s.start(ctx, c, origin{actor: actor(ctx), detail: commandLine(c), gate: j.action})
	}
	s.audit(ctx, Entry{
		Time:     begun,
		Action:   actionStart,
		Detail:   commandLine(c),
		Op:       id,
		Gate:     j.action,
		Error:    errorCode(err),
		Duration: time.Since(begun),
	})
	return id, err
}

func (s *Session) start(ctx context.Context, c sandbox.Command, from origin) (string, error) {
	if err := s.awaitCreated(ctx); err != nil {
		return "", err
	}
	if err := s.beginUse(true, true); err != nil {
		return "", err
	}
	defer s.endUse(true, 0)
	sb, err := s.awaitSandbox(ctx)
	if err != nil {
		return "", err
	}
	id, err := sb.Start(ctx, c)
	if err != nil {
		return "", s.explain(sb, err)
	}
	s.mu.Lock()
	s.track(sb, id, from)
	s.mu.Unlock()
	return id, nil
}

func outputBytes(v *sandbox.Verdict) int64 {
	if v == nil {
		return 0
	}
	return v.Stdout.Produced + v.Stderr.Produced
}

// commandLine returns a command as a person would type it.
func commandLine(c sandbox.Command) string {
	switch {
	case c.Python != "":
		return c.Python
	case c.Shell != "":
		return c.Shell
	}
	return strings.Join(c.Args, " ")
}

// Keys of a verdict's metadata. They report that the session does not have the state that the caller left.
const (
	MetaStateFrom = "recluse.state_from"       // the session was restored: time of its state, RFC 3339
	MetaRestored  = "recluse.restored"         // how often the session was restored so far
	MetaPrevious  = "recluse.previous_session" // the session is new: how the previous session of that name ended
)

// reportState adds to a verdict that the session does not have the state that the caller left. It does so for the first
// verdict of a session that replaces an ended one, and for the first verdict after a lost session was restored.
func (s *Session) reportState(v *sandbox.Verdict) {
	if v == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.StateFrom == nil && s.rec.Previous == nil {
		return
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if s.rec.StateFrom != nil {
		v.Metadata[MetaStateFrom] = s.rec.StateFrom.UTC().Format(time.RFC3339Nano)
		v.Metadata[MetaRestored] = fmt.Sprint(s.rec.Restored)
	}
	if s.rec.Previous != nil {
		v.Metadata[MetaPrevious] = s.rec.Previous.String()
	}
	s.rec.StateFrom, s.rec.Previous, s.dirty = nil, nil, true
}
