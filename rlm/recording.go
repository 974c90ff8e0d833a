package rlm

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// recording is the recorded replies of models and tools, for a run that is resumed or replayed. A nil *recording is
// empty.
type recording struct {
	// emitAgain is set in a replay: recorded calls become events of the new run.
	emitAgain bool
	noModels  bool // set in a replay: a call that is not recorded is an error

	mu       sync.Mutex
	calls    map[string][]*recordedCall // guarded by mu
	modelOf  map[string]string          // guarded by mu; the requested model of each call, by call ID
	lastTurn map[string]int             // guarded by mu; the last turn that started, by node
	children map[string]*v1.ChildEnded  // guarded by mu
	tools    map[string][]*v1.ToolUsed  // guarded by mu
}

// recordedCall is the recorded reply to a model call.
type recordedCall struct {
	*v1.CallEnded
	requested string // the requested model; a fallback model may have answered
	turn      int    // of the root node
	// dropped is set for a failed call after which the run was resumed, as if the call had not been made.
	dropped bool
}

// rootTurn returns the turn of the root node in which a turn of the given node happened. It is part of the node's ID.
func rootTurn(node string, turn int) int {
	_, rest, ok := strings.Cut(node, "/")
	if !ok {
		return turn
	}
	text, _, _ := strings.Cut(rest, "-")
	n, err := strconv.Atoi(text)
	if err != nil {
		return turn
	}
	return n
}

func recordingKey(node string, turn int, call, key string) string {
	return fmt.Sprintf("%s\x00%d\x00%s\x00%s", node, turn, call, key)
}

func newRecording(only bool) *recording {
	return &recording{
		noModels: only,
		calls:    map[string][]*recordedCall{},
		modelOf:  map[string]string{},
		lastTurn: map[string]int{},
		children: map[string]*v1.ChildEnded{},
		tools:    map[string][]*v1.ToolUsed{},
	}
}

// add adds an event. It ignores events that are not needed for a replay.
func (t *recording) add(e *v1.RunEvent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case v1.KindCallStarted:
		c := &v1.CallStarted{}
		if err := e.Decode(c); err != nil {
			return err
		}
		// A program that resumes the run numbers its calls from the beginning. An ID means the latest call.
		t.modelOf[c.ID] = c.Model
	case v1.KindCallEnded:
		c := &v1.CallEnded{}
		if err := e.Decode(c); err != nil {
			return err
		}
		if c.Error == nil || t.noModels { // a resumed run repeats failed calls
			k := recordingKey(e.Node, e.Turn, c.Call, c.Key)
			t.calls[k] = append(t.calls[k], &recordedCall{
				CallEnded: c,
				requested: t.modelOf[c.ID],
				turn:      rootTurn(e.Node, e.Turn),
			})
		}
	case v1.KindTurnStarted:
		t.lastTurn[e.Node] = max(t.lastTurn[e.Node], e.Turn)
	case v1.KindResumed:
		r := &v1.Resumed{}
		if err := e.Decode(r); err != nil {
			return err
		}
		for _, q := range t.calls {
			for _, h := range q {
				h.dropped = h.dropped || h.Error != nil && h.turn > r.Turn-r.Rerun
			}
		}
	case v1.KindChildEnded:
		c := &v1.ChildEnded{}
		if err := e.Decode(c); err != nil {
			return err
		}
		if c.Error == nil || c.Partial {
			t.children[c.Node] = c
		}
	case v1.KindTool:
		u := &v1.ToolUsed{}
		if err := e.Decode(u); err != nil {
			return err
		}
		k := recordingKey(e.Node, e.Turn, u.Name, string(u.Args))
		t.tools[k] = append(t.tools[k], u)
	default: // the other events do not matter here
	}
	return nil
}

// pop removes and returns the first value of a queue, or returns nil if the queue is empty.
func pop[T any](queues map[string][]*T, key string) *T {
	q := queues[key]
	if len(q) == 0 {
		return nil
	}
	queues[key] = q[1:]
	return q[0]
}

// takeCall returns the next recorded reply to a call, or nil. Each is returned once.
func (t *recording) takeCall(node string, turn int, call, key string) *recordedCall {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := recordingKey(node, turn, call, key)
	for len(t.calls[k]) > 1 && t.calls[k][0].dropped {
		pop(t.calls, k)
	}
	return pop(t.calls, k)
}

// continuedAfter reports whether the recorded run of a replay continued after the turn. Then the replay also continues,
// even if a limit stopped the recorded run at that turn before it was resumed.
func (t *recording) continuedAfter(node string, turn int) bool {
	if t == nil || !t.noModels {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastTurn[node] > turn
}

// child returns the recorded end of a child run, or nil.
func (t *recording) child(node string) *v1.ChildEnded {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.children[node]
}

// takeTool returns the next recorded call of a tool, or nil. Each is returned once.
func (t *recording) takeTool(node string, turn int, name, args string) *v1.ToolUsed {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return pop(t.tools, recordingKey(node, turn, name, args))
}

// has reports whether a call other than a sub-call is recorded in a turn.
func (t *recording) has(node string, turn int, call string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.calls[recordingKey(node, turn, call, call)]) > 0
}

// strict reports whether no model may be called, because this is a replay.
func (t *recording) strict() bool { return t != nil && t.noModels }
