package rlm

import (
	"context"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
)

// Watchers get the text of a reply, the output of a cell and the coverage while they arrive. The model and the sub-call
// wait for the watcher.
func TestProgressReachesWatchers(t *testing.T) {
	d := newDesk(t)
	text, output := make(chan struct{}), make(chan struct{})
	started := make(chan struct{})
	d.root.answer = func(ctx context.Context, n int, req llm.Request) (string, error) {
		if n > 1 {
			return block("FINAL('done')"), nil
		}
		if err := await(ctx, started); err != nil {
			return "", err
		}
		for _, part := range []string{"<think>secretly</think>", "First I ", "look."} {
			req.Delta(part)
		}
		return block("print('a line')\nllm_query(context[:500])\nprint('the next', flush=True)\nllm_query('wait')"), await(ctx, text)
	}
	d.sub.answer = func(ctx context.Context, _ int, req llm.Request) (string, error) {
		if req.Messages[len(req.Messages)-1].Content == "wait" {
			return "ok", await(ctx, output)
		}
		return "read", nil
	}
	r, err := d.engine().Start(t.Context(), Question{Query: "Q?", Inputs: []Input{Text(prose(1000, 1))}})
	if err != nil {
		t.Fatal(err)
	}
	var seen v1.Progress
	reports := 0
	go func() {
		if testneed.Eventually(r.log.Watched) {
			close(started)
		}
	}()
	for e, err := range r.Watch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != v1.KindProgress {
			continue
		}
		if err := e.Decode(&seen); err != nil || e.Seq != 0 || e.Node != "0" {
			t.Fatalf("%+v %v", e, err)
		}
		reports++
		if strings.Contains(seen.Text, "secretly") {
			t.Errorf("reasoning in the text: %q", seen.Text)
		}
		closeOnce(text, seen.Call == "c1" && seen.Text == "First I look.")
		closeOnce(output, seen.Output == "a line\nthe next\n" && seen.Bytes == 1000 && seen.Read == 500)
	}
	if res, err := r.Wait(); err != nil || res.Answer != "done" {
		t.Errorf("%+v %v", res, err)
	}
	if reports < 2 || reports > 20 {
		t.Errorf("%d reports", reports)
	}
}

// closeOnce closes a channel that is open, if a condition is met.
func closeOnce(c chan struct{}, met bool) {
	if !met {
		return
	}
	select {
	case <-c:
	default:
		close(c)
	}
}
