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

// Cassette is a recording of model calls: a JSON Lines file with one call per line. It can be replayed without a model.
// A replay is strict: for a request that is not recorded, it returns an error that shows the difference from the
// nearest recorded request.
//
// A call is found by its request, not by its position, so concurrent calls can be replayed concurrently. A request that
// is recorded several times gets the recorded replies in order, each of them once.
type Cassette struct {
	path string

	mu     sync.Mutex
	file   *os.File                   // guarded by mu; nil when replaying
	unused map[string][]*recordedCall // guarded by mu; by requestKey, in recorded order
	order  []*recordedCall            // fixed after opening
	next   int64                      // guarded by mu; number of the next recorded call
}

// recordedCall is one recorded call: a line of the file.
type recordedCall struct {
	N       int64      `json:"n"` // counts calls in the order in which they began
	Model   Info       `json:"model"`
	Request Request    `json:"request"`
	Reply   *Reply     `json:"reply,omitempty"`
	Pieces  []int      `json:"pieces,omitempty"` // bytes of each piece that Delta received
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

// Record opens a cassette for recording. New calls are appended to an existing file. An incomplete line at its end,
// left by a program that died while it wrote, is removed. The caller must close the cassette.
func Record(path string) (*Cassette, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cassetteError("open", path, err)
	}
	calls, size, err := readCalls(f)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, cassetteError("open", path, err)
	}
	c := &Cassette{path: path, file: f, next: 1}
	if n := len(calls); n > 0 {
		c.next = calls[n-1].N + 1
	}
	return c, nil
}

// Replay opens a cassette for replay.
func Replay(path string) (*Cassette, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cassetteError("open", path, err)
	}
	defer f.Close()
	calls, _, err := readCalls(f)
	if err != nil {
		return nil, cassetteError("open", path, err)
	}
	c := &Cassette{path: path, unused: map[string][]*recordedCall{}, order: calls}
	for _, t := range calls {
		k := requestKey(t.Model.Name, t.Request)
		c.unused[k] = append(c.unused[k], t)
	}
	return c, nil
}

func cassetteError(verb, path string, err error) error {
	return &v1.Error{Code: v1.CodeModelCassette, Op: verb + " cassette " + path, Err: err}
}

// readCalls reads a cassette. It returns the calls in the order in which they began, and the size of the file without
// an incomplete last line.
func readCalls(r io.Reader) ([]*recordedCall, int64, error) {
	var calls []*recordedCall
	var size int64
	in := bufio.NewReader(r)
	for line := 1; ; line++ {
		data, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			sortCalls(calls)
			return calls, size, nil // data after the last newline is an incomplete line
		}
		if err != nil {
			return nil, 0, err
		}
		t := &recordedCall{}
		if err := json.Unmarshal(data, t); err != nil {
			return nil, 0, fmt.Errorf("invalid line %d: %w", line, err)
		}
		if t.Model.Name == "" || (t.Reply == nil && t.Error == nil) {
			return nil, 0, fmt.Errorf("invalid line %d: not a recorded call", line)
		}
		size += int64(len(data))
		calls = append(calls, t)
	}
}

// Close closes the file of a recording. It does nothing for a replay.
func (c *Cassette) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	if err != nil {
		return cassetteError("close", c.path, err)
	}
	return nil
}

// Unused returns the number of recorded calls that were not replayed yet.
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

// Recorded returns a model that calls m and records each call. A call that its caller cancels is not recorded.
func (c *Cassette) Recorded(m Model) Model { return &recordingModel{cassette: c, model: m} }

// Model returns a recorded model by its name.
func (c *Cassette) Model(name string) (Model, error) {
	for _, t := range c.order {
		if t.Model.Name == name {
			return &replayModel{cassette: c, info: t.Model}, nil
		}
	}
	return nil, &v1.Error{
		Code:    v1.CodeModelUnknown,
		Op:      "replay " + c.path,
		Message: "no recorded calls of " + name,
	}
}

// Models returns all recorded models, in the order of their first calls.
func (c *Cassette) Models() []Model {
	var all []Model
	seen := map[string]bool{}
	for _, t := range c.order {
		if !seen[t.Model.Name] {
			seen[t.Model.Name] = true
			all = append(all, &replayModel{cassette: c, info: t.Model})
		}
	}
	return all
}

// recordingModel is a model whose calls are recorded.
type recordingModel struct {
	cassette *Cassette
	model    Model
}

// Info implements Model.
func (r *recordingModel) Info() Info { return r.model.Info() }

// Count implements Model.
func (r *recordingModel) Count(text string) int64 { return r.model.Count(text) }

// Complete implements Model. A call that cannot be recorded fails, because a missing call would be noticed only when
// the cassette is replayed.
func (r *recordingModel) Complete(ctx context.Context, req Request) (*Reply, error) {
	t := &recordedCall{N: r.cassette.nextNumber(), Model: r.model.Info(), Request: req}
	if delta := req.Delta; delta != nil {
		req.Delta = func(text string) bool {
			t.Pieces = append(t.Pieces, len(text))
			return delta(text)
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

// nextNumber returns the number of a call that begins.
func (c *Cassette) nextNumber() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.next
	c.next++
	return n
}

// write appends a call to the file and syncs it.
func (c *Cassette) write(t *recordedCall) error {
	line, err := json.Marshal(t)
	if err != nil {
		return cassetteError("write", c.path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return cassetteError("write", c.path, os.ErrClosed)
	}
	if _, err := c.file.Write(append(line, '\n')); err != nil {
		return cassetteError("write", c.path, err)
	}
	if err := c.file.Sync(); err != nil {
		return cassetteError("write", c.path, err)
	}
	return nil
}

// replayModel is a model that returns recorded replies.
type replayModel struct {
	cassette *Cassette
	info     Info
}

// Info implements Model.
func (r *replayModel) Info() Info { return r.info }

// Count implements Model.
func (r *replayModel) Count(text string) int64 { return Count(text) }

// Complete implements Model. req.Delta receives the same pieces as in the recording, and may stop the reply earlier.
func (r *replayModel) Complete(ctx context.Context, req Request) (*Reply, error) {
	start := time.Now()
	if ctx.Err() != nil {
		return nil, cancelled(ctx, r.info.Name)
	}
	t, err := r.cassette.consume(r.info.Name, req)
	if err != nil {
		return nil, err
	}
	var reply *Reply
	if t.Reply != nil {
		copied := *t.Reply
		reply = &copied
		if req.Delta != nil {
			t.stream(ctx, req, reply)
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

// stream sends a reply to req.Delta in the recorded pieces. If Delta stops it early, stream cuts the reply to what
// Delta has received.
func (t *recordedCall) stream(ctx context.Context, req Request, reply *Reply) {
	rest, sent := reply.Text, 0
	for _, n := range append(append([]int{}, t.Pieces...), len(reply.Text)) {
		n = min(n, len(rest))
		if n <= 0 {
			continue
		}
		more := req.Delta(rest[:n])
		rest, sent = rest[n:], sent+n
		if rest == "" {
			return
		}
		if !more || ctx.Err() != nil {
			reply.Text, reply.Finish = reply.Text[:sent], FinishCut
			reply.Usage.Output, reply.Usage.Estimated = min(reply.Usage.Output, Count(reply.Text)), true
			return
		}
	}
}

// consume returns the next unused recording of a request and marks it as used.
func (c *Cassette) consume(model string, req Request) (*recordedCall, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := requestKey(model, req)
	left := c.unused[key]
	if len(left) > 0 {
		t := left[0]
		c.unused[key] = left[1:]
		t.used = true
		return t, nil
	}
	return nil, &v1.Error{
		Code:    v1.CodeModelCassette,
		Op:      "replay " + c.path,
		Message: c.explainMismatch(model, key, req),
		Remedy:  "record again, or undo the change of the request",
	}
}

// requestKey returns the key by which a request is found: the model and everything that a provider would receive.
func requestKey(model string, req Request) string {
	var schema bytes.Buffer
	if len(req.Schema) > 0 && json.Compact(&schema, req.Schema) == nil {
		req.Schema = schema.Bytes()
	}
	b, err := json.Marshal(req)
	if err != nil {
		b = fmt.Appendf(nil, "%v: %+v", err, req.Messages) // an invalid schema, which no recorded request has
	}
	return model + "\n" + string(b)
}
