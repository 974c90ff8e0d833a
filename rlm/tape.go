package rlm

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// tape is what models said to an earlier program in the same run.
type tape struct {
	// fresh says that the run is told anew, as in a replay: what is on the tape becomes events again.
	fresh bool
	only  bool // ask no model; what is not on the tape is an error

	mu       sync.Mutex
	calls    map[string][]*heard       // guarded by mu
	asked    map[string]string         // guarded by mu; the models of calls, by their ids
	turns    map[string]int            // guarded by mu; the last turn of each node that had begun
	children map[string]*v1.ChildEnded // guarded by mu
	tools    map[string][]*v1.ToolUsed // guarded by mu
}

// heard is one reply.
type heard struct {
	*v1.CallEnded
	asked string // the model that was asked, which may have handed the call on
	turn  int    // of the root
	// dropped says that the run was resumed behind this failure: it went on as if nobody had asked.
	dropped bool
}

// rootTurn is the turn of the root in which something happened. The names of nodes tell.
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

func tapeKey(node string, turn int, call, key string) string {
	return fmt.Sprintf("%s\x00%d\x00%s\x00%s", node, turn, call, key)
}

func newTape(only bool) *tape {
	return &tape{
		only:     only,
		calls:    map[string][]*heard{},
		asked:    map[string]string{},
		turns:    map[string]int{},
		children: map[string]*v1.ChildEnded{},
		tools:    map[string][]*v1.ToolUsed{},
	}
}

// add records an event, if it is one of those that matter.
func (t *tape) add(e *v1.RunEvent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case v1.KindCallStarted:
		c := &v1.CallStarted{}
		if err := e.Decode(c); err != nil {
			return err
		}
		t.asked[c.ID] = c.Model // a later program counts from the beginning, so an id means the latest call
	case v1.KindCallEnded:
		c := &v1.CallEnded{}
		if err := e.Decode(c); err != nil {
			return err
		}
		if c.Error == nil || t.only { // what failed then may go well now
			k := tapeKey(e.Node, e.Turn, c.Call, c.Key)
			t.calls[k] = append(t.calls[k], &heard{CallEnded: c, asked: t.asked[c.ID], turn: rootTurn(e.Node, e.Turn)})
		}
	case v1.KindTurnStarted:
		t.turns[e.Node] = max(t.turns[e.Node], e.Turn)
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
		if c.Error == nil {
			t.children[c.Node] = c
		}
	case v1.KindTool:
		u := &v1.ToolUsed{}
		if err := e.Decode(u); err != nil {
			return err
		}
		k := tapeKey(e.Node, e.Turn, u.Name, string(u.Args))
		t.tools[k] = append(t.tools[k], u)
	default: // the other events do not matter here
	}
	return nil
}

// pop takes the first value of a queue.
func pop[T any](queues map[string][]*T, key string) *T {
	q := queues[key]
	if len(q) == 0 {
		return nil
	}
	queues[key] = q[1:]
	return q[0]
}

// take returns a recorded reply, each once.
func (t *tape) take(node string, turn int, call, key string) *heard {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := tapeKey(node, turn, call, key)
	for len(t.calls[k]) > 1 && t.calls[k][0].dropped {
		pop(t.calls, k)
	}
	return pop(t.calls, k)
}

// beyond reports whether a replayed run had gone on behind a turn: then it does so again, whatever had stopped it there for a time.
func (t *tape) beyond(node string, turn int) bool {
	if t == nil || !t.only {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turns[node] > turn
}

// child gives the recorded end of a child run.
func (t *tape) child(node string) *v1.ChildEnded {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.children[node]
}

// tool gives the recorded use of a tool, each once.
func (t *tape) tool(node string, turn int, name, args string) *v1.ToolUsed {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return pop(t.tools, tapeKey(node, turn, name, args))
}

// has reports whether a call that is named by its place was made.
func (t *tape) has(node string, turn int, call string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.calls[tapeKey(node, turn, call, call)]) > 0
}

// strict says that no model may be asked.
func (t *tape) strict() bool { return t != nil && t.only }
