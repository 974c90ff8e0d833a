package llm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Cassette is a recording of model calls: a file of JSON Lines, one call each. What is recorded can be replayed without a model, and
// a replay is strict: a request that was not recorded is an error that shows how it differs from what was.
//
// Calls are found by what they ask, not by their order, so calls that ran at once replay at once. The same request asked several
// times gets the recorded replies one after the other, each of them once.
type Cassette struct {
	path string

	mu     sync.Mutex
	file   *os.File           // guarded by mu; nil when replaying
	unused map[string][]*take // guarded by mu; by key, in recorded order
	order  []*take            // fixed after opening
	next   int64              // guarded by mu; number of the next recorded call
}

// take is one recorded call: a line of the file.
type take struct {
	N       int64      `json:"n"` // in the order in which calls began
	Model   Info       `json:"model"`
	Request Request    `json:"request"`
	Reply   *Reply     `json:"reply,omitempty"`
	Pieces  []int      `json:"pieces,omitempty"` // bytes of each piece that a listener heard
	Error   *callError `json:"error,omitempty"`

	used bool // guarded by Cassette.mu
}

// callError is an error in a recording or a script.
type callError struct {
	Code    v1.Code `json:"code" yaml:"code"`
	Op      string  `json:"op,omitempty" yaml:"-"`
	Message string  `json:"message,omitempty" yaml:"message"`
	Remedy  string  `json:"remedy,omitempty" yaml:"remedy"`
	Retry   bool    `json:"retry,omitempty" yaml:"retry"`
}

func (e *callError) err() *v1.Error {
	return &v1.Error{Code: e.Code, Op: e.Op, Message: e.Message, Remedy: e.Remedy, Retry: e.Retry}
}

// Record opens a cassette to record on. One that exists is gone on with; half a line at its end, left by a program that died while it wrote, is
// taken off. Close it.
func Record(path string) (*Cassette, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cassetteError(path, err)
	}
	takes, whole, err := readTakes(f)
	if err == nil {
		err = f.Truncate(whole)
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, cassetteError(path, err)
	}
	c := &Cassette{path: path, file: f, next: 1}
	if n := len(takes); n > 0 {
		c.next = takes[n-1].N + 1
	}
	return c, nil
}

// Replay opens a cassette to replay.
func Replay(path string) (*Cassette, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cassetteError(path, err)
	}
	defer f.Close()
	takes, _, err := readTakes(f)
	if err != nil {
		return nil, cassetteError(path, err)
	}
	c := &Cassette{path: path, unused: map[string][]*take{}, order: takes}
	for _, t := range takes {
		k := takeKey(t.Model.Name, t.Request)
		c.unused[k] = append(c.unused[k], t)
	}
	return c, nil
}

func cassetteError(path string, err error) error {
	return &v1.Error{Code: v1.CodeModelCassette, Op: "open cassette " + path, Err: err}
}

// readTakes reads the lines of a cassette in the order in which their calls began, and tells where the whole lines end.
func readTakes(r io.Reader) ([]*take, int64, error) {
	var takes []*take
	var whole int64
	in := bufio.NewReader(r)
	for line := 1; ; line++ {
		data, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			sortTakes(takes)
			return takes, whole, nil // what stands behind the last line end was never written whole
		}
		if err != nil {
			return nil, 0, err
		}
		t := &take{}
		if err := json.Unmarshal(data, t); err != nil {
			return nil, 0, fmt.Errorf("line %d is damaged: %w", line, err)
		}
		if t.Model.Name == "" || (t.Reply == nil && t.Error == nil) {
			return nil, 0, fmt.Errorf("line %d is no recorded call", line)
		}
		whole += int64(len(data))
		takes = append(takes, t)
	}
}

// Close ends a recording.
func (c *Cassette) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	if err != nil {
		return cassetteError(c.path, err)
	}
	return nil
}

// Unused tells how many recorded calls were not replayed yet.
func (c *Cassette) Unused() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, t := range c.order {
		if !t.used {
			n++
		}
	}
	return n
}

// Recorded makes a model that asks m and writes down what was asked and said. A call that its caller gave up is not written.
func (c *Cassette) Recorded(m Model) Model { return &recorded{cassette: c, model: m} }

// Model gives a recorded model by its name.
func (c *Cassette) Model(name string) (Model, error) {
	for _, t := range c.order {
		if t.Model.Name == name {
			return &replayed{cassette: c, info: t.Model}, nil
		}
	}
	return nil, &v1.Error{Code: v1.CodeModelUnknown, Op: "replay " + c.path, Message: fmt.Sprintf("nothing of %s is recorded", name)}
}

// Models gives every recorded model, in the order of their first calls.
func (c *Cassette) Models() []Model {
	var all []Model
	seen := map[string]bool{}
	for _, t := range c.order {
		if !seen[t.Model.Name] {
			seen[t.Model.Name] = true
			all = append(all, &replayed{cassette: c, info: t.Model})
		}
	}
	return all
}

// recorded is a model whose calls are written down.
type recorded struct {
	cassette *Cassette
	model    Model
}

// Info implements Model.
func (r *recorded) Info() Info { return r.model.Info() }

// Count implements Model.
func (r *recorded) Count(text string) int64 { return r.model.Count(text) }

// Complete implements Model. A call that cannot be written down fails: a recording with a hole would be found out much later.
func (r *recorded) Complete(ctx context.Context, req Request) (*Reply, error) {
	t := &take{N: r.cassette.number(), Model: r.model.Info(), Request: req}
	if listener := req.Delta; listener != nil {
		req.Delta = func(text string) bool {
			t.Pieces = append(t.Pieces, len(text))
			return listener(text)
		}
	}
	reply, err := r.model.Complete(ctx, req)
	if err != nil && (ctx.Err() != nil || v1.CodeOf(err) == v1.CodeCancelled) {
		return reply, err
	}
	t.Reply = reply
	if err != nil {
		t.Error = &callError{Code: v1.CodeOf(err), Message: err.Error()}
		if e, ok := errors.AsType[*v1.Error](err); ok {
			t.Error = &callError{Code: e.Code, Op: e.Op, Message: e.Message, Remedy: e.Remedy, Retry: e.Retry}
			if e.Err != nil {
				t.Error.Message = fmt.Sprintf("%s: %v", e.Message, e.Err)
			}
		}
	}
	if werr := r.cassette.write(t); werr != nil {
		return reply, werr
	}
	return reply, err
}

// number gives a call its place.
func (c *Cassette) number() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.next
	c.next++
	return n
}

// write appends one line and waits until it is on disk.
func (c *Cassette) write(t *take) error {
	line, err := json.Marshal(t)
	if err != nil {
		return cassetteError(c.path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return cassetteError(c.path, os.ErrClosed)
	}
	if _, err := c.file.Write(append(line, '\n')); err != nil {
		return cassetteError(c.path, err)
	}
	if err := c.file.Sync(); err != nil {
		return cassetteError(c.path, err)
	}
	return nil
}

// replayed is a model that says what was recorded.
type replayed struct {
	cassette *Cassette
	info     Info
}

// Info implements Model.
func (r *replayed) Info() Info { return r.info }

// Count implements Model.
func (r *replayed) Count(text string) int64 { return Count(text) }

// Complete implements Model. A listener hears the pieces of the recording, and may cut earlier than it did then.
func (r *replayed) Complete(ctx context.Context, req Request) (*Reply, error) {
	start := time.Now()
	if ctx.Err() != nil {
		return nil, cancelled(ctx, r.info.Name)
	}
	t, err := r.cassette.take(r.info.Name, req)
	if err != nil {
		return nil, err
	}
	var reply *Reply
	if t.Reply != nil {
		said := *t.Reply
		reply = &said
		if req.Delta != nil {
			t.tell(ctx, req, reply)
		}
		reply.Wall = time.Since(start)
	}
	if ctx.Err() != nil && reply != nil && reply.Finish == FinishCut && reply.Text != t.Reply.Text {
		return reply, cancelled(ctx, r.info.Name)
	}
	if t.Error != nil {
		return reply, t.Error.err()
	}
	return reply, nil
}

// tell lets a listener hear a reply as it was recorded. When it cuts earlier, the reply is what it has heard.
func (t *take) tell(ctx context.Context, req Request, reply *Reply) {
	rest, heard := reply.Text, 0
	for _, n := range append(append([]int{}, t.Pieces...), len(reply.Text)) {
		n = min(n, len(rest))
		if n <= 0 {
			continue
		}
		more := req.Delta(rest[:n])
		rest, heard = rest[n:], heard+n
		if rest == "" {
			return
		}
		if !more || ctx.Err() != nil {
			reply.Text, reply.Finish = reply.Text[:heard], FinishCut
			reply.Usage.Output, reply.Usage.Estimated = min(reply.Usage.Output, Count(reply.Text)), true
			return
		}
	}
}

// take finds the recording of a request and uses it up.
func (c *Cassette) take(model string, req Request) (*take, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := takeKey(model, req)
	left := c.unused[key]
	if len(left) > 0 {
		t := left[0]
		c.unused[key] = left[1:]
		t.used = true
		return t, nil
	}
	return nil, &v1.Error{
		Code: v1.CodeModelCassette, Op: "replay " + c.path, Message: c.difference(model, key, req),
		Remedy: "record again, or undo what changed the request",
	}
}

// takeKey is what a request is found by: everything that a provider would see.
func takeKey(model string, req Request) string {
	var schema bytes.Buffer
	if len(req.Schema) > 0 && json.Compact(&schema, req.Schema) == nil {
		req.Schema = schema.Bytes()
	}
	b, err := json.Marshal(req)
	if err != nil {
		b = fmt.Appendf(nil, "%v: %+v", err, req.Messages) // a schema that is no JSON: it is found by nothing that was recorded
	}
	return model + "\n" + string(b)
}
