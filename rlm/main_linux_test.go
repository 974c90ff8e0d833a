//go:build linux

package rlm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

var (
	boxes   *gvisor.Backend
	boxesAt string
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	engine, guest, err := testbin.Programs()
	if err == nil {
		err = errors.Join(os.Setenv("RECLUSE_ENGINE", engine.Path), os.Setenv("RECLUSE_GUEST", guest.Path))
	}
	if err == nil {
		boxesAt = os.Getenv(stateEnv)
		if boxesAt == "" {
			boxesAt, err = os.MkdirTemp("", "recluse-rlm-")
			defer func() { _ = os.RemoveAll(boxesAt) }()
		}
	}
	if err == nil {
		boxes, err = gvisor.New(gvisor.Options{DataDir: boxesAt})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxes for tests:", err)
		return 1
	}
	if os.Getenv(stateEnv) != "" {
		return victim()
	}
	code := m.Run()
	if left, err := boxes.List(context.Background()); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "sandboxes left behind:", left, err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// sandboxes returns real sandboxes. The tests run in parallel.
func sandboxes(t testing.TB) Sandboxes {
	t.Helper()
	testneed.Sandboxes(t)
	testneed.Parallel(t)
	return FromBackend(boxes)
}

// fake is a model whose replies come from a function.
type fake struct {
	name   string
	window int64
	output int64
	price  *llm.Price
	// answer gets the request and its number, from 1 on.
	answer func(ctx context.Context, n int, req llm.Request) (string, error)

	mu    sync.Mutex
	calls int
	total llm.Usage
	most  int // maximum of concurrent calls
	now   int
	asked []llm.Request
}

func (f *fake) Info() llm.Info {
	return llm.Info{Name: or(f.name, "fake/root"), Window: or(f.window, 200_000), Output: or(f.output, 8192), Price: f.price, Local: f.price == nil}
}

func (f *fake) Count(text string) int64 { return int64(len(text)+3) / 4 }

func (f *fake) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	f.mu.Lock()
	f.calls++
	n := f.calls
	f.now++
	f.most = max(f.most, f.now)
	f.asked = append(f.asked, req)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now--
		f.mu.Unlock()
	}()
	text, err := f.answer(ctx, n, req)
	if err != nil {
		return nil, err
	}
	finish := llm.FinishStop
	if req.Delta != nil {
		// Stream the reply in small pieces, as providers do.
		for at := 0; at < len(text); at += 7 {
			end := min(len(text), at+7)
			if !req.Delta(text[at:end]) {
				text, finish = text[:end], llm.FinishCut
				break
			}
		}
	}
	if req.MaxTokens > 0 && f.Count(text) > req.MaxTokens {
		text, finish = text[:req.MaxTokens*4-3], llm.FinishLength
	}
	u := llm.Usage{Calls: 1, Output: f.Count(text)}
	for _, m := range req.Messages {
		u.Input += f.Count(m.Content)
	}
	if f.price != nil {
		u.Cost = (float64(u.Input)*f.price.Input + float64(u.Output)*f.price.Output) / 1e6
	}
	f.mu.Lock()
	f.total = f.total.Add(u)
	f.mu.Unlock()
	return &llm.Reply{Text: text, Model: f.Info().Name, Finish: finish, Usage: u}, nil
}

// script answers the n-th request with the n-th text, and repeats the last.
func script(texts ...string) func(context.Context, int, llm.Request) (string, error) {
	return func(_ context.Context, n int, _ llm.Request) (string, error) {
		return texts[min(n, len(texts))-1], nil
	}
}

// rounds blocks calls until a given number of them waits, and then releases all of them; again and again.
type rounds struct {
	of int

	mu   sync.Mutex
	here int           // guarded by mu; calls that wait
	gate chan struct{} // guarded by mu; closed to release the calls that wait
}

func (r *rounds) meet(ctx context.Context) error {
	r.mu.Lock()
	if r.here == 0 {
		r.gate = make(chan struct{})
	}
	gate := r.gate
	if r.here++; r.here == r.of {
		time.Sleep(20 * time.Millisecond) // time for one call too many to arrive
		r.here = 0
		close(gate)
	}
	r.mu.Unlock()
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await waits until a condition is met, and fails the test if it is not.
func await(ctx context.Context, it <-chan struct{}) error {
	select {
	case <-it:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Second):
		return errors.New("waited in vain")
	}
}

func block(code string) string { return "```repl\n" + strings.TrimSpace(code) + "\n```\n" }

// desk is an engine with its models for one test.
type desk struct {
	t    *testing.T
	root *fake
	sub  *fake
	opts Options
}

// newDesk returns a desk whose root model replies with the texts one after the other, and whose sub-model repeats the
// beginning of its prompt.
func newDesk(t *testing.T, texts ...string) *desk {
	t.Helper()
	d := &desk{t: t, root: &fake{name: "fake/root", answer: script(texts...)}}
	d.sub = &fake{name: "fake/sub", answer: func(_ context.Context, _ int, req llm.Request) (string, error) {
		text := req.Messages[len(req.Messages)-1].Content
		return "read: " + text[:min(len(text), 20)], nil
	}}
	l := DefaultLimits()
	l.Tokens, l.Time = new(int64(10_000_000)), new(v1.Duration(2*time.Minute))
	d.opts = Options{
		Models: func(depth int, name string) (llm.Model, error) {
			if name != "" && name != "fake/sub" {
				return nil, fmt.Errorf("there is no model %q", name)
			}
			if depth == 0 {
				return d.root, nil
			}
			return d.sub, nil
		},
		Sandboxes: sandboxes(t), Limits: l, Dir: t.TempDir(), PlainBelow: -1,
		AcceptUnread: true, // most tests are not about how a model works
	}
	return d
}

func (d *desk) engine() *Engine {
	d.t.Helper()
	e, err := New(d.opts)
	if err != nil {
		d.t.Fatal(err)
	}
	return e
}

func (d *desk) run(q Question) (*Result, error) {
	d.t.Helper()
	res, err := d.engine().Run(d.t.Context(), q)
	if err != nil {
		d.t.Logf("%v", err)
	}
	return res, err
}

// answered runs a question that must be answered.
func (d *desk) answered(q Question) *Result {
	d.t.Helper()
	res, err := d.run(q)
	if err != nil {
		d.t.Fatalf("%v\n%+v", err, res)
	}
	if res.Reason != v1.ReasonAnswered || res.Partial {
		d.t.Fatalf("ended by %s: %+v", res.Reason, res)
	}
	return res
}

// seen returns the last message to the root model.
func (d *desk) seen() string {
	d.root.mu.Lock()
	defer d.root.mu.Unlock()
	m := d.root.asked[len(d.root.asked)-1].Messages
	return m[len(m)-1].Content
}
