package sandboxtest

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/recluse-dev/recluse/sandbox"
)

// commandTraces are the features of traces of commands: a command continues the trace of its caller.
var commandTraces = []feature{
	{"a command belongs to its caller's trace", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		ctx, want := withTestTrace(t, 1)
		const script = `printf %s "$TRACEPARENT"`
		v, err := sb.Run(ctx, sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{Metadata: map[string]string{"mine": "1"}}})
		noError(t, err)
		same(t, "its trace", v.Stdout.String(), want)
		same(t, "the trace in the verdict", v.Metadata["traceparent"], want)
		same(t, "the caller's own metadata", v.Metadata["mine"], "1")
		v, err = sb.Run(ctx, sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{Env: map[string]string{"TRACEPARENT": "my own"}}})
		noError(t, err)
		same(t, "a trace that the caller sets", v.Stdout.String(), "my own")
		id, err := sb.Start(ctx, sandbox.Command{Shell: script})
		noError(t, err)
		v, err = sb.Follow(t.Context(), id, sandbox.FollowOptions{})
		noError(t, err)
		same(t, "the trace of a background command", v.Stdout.String(), want)
		same(t, "without a trace", shell(t, sb, script), "")
	}},
}

// cellTraces are the features of traces of cells.
var cellTraces = []feature{
	{"a cell belongs to its caller's trace, and the next one does not", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		const look = "import os; os.environ.get('TRACEPARENT', 'none')"
		ask := func(ctx context.Context, c sandbox.Cell) string {
			t.Helper()
			v, err := sb.Cell(ctx, c)
			noError(t, err)
			return v.Result.Text()
		}
		first, one := withTestTrace(t, 1)
		second, two := withTestTrace(t, 2)
		same(t, "its trace", ask(first, sandbox.Cell{Code: look}), "'"+one+"'")
		same(t, "without a trace", ask(t.Context(), sandbox.Cell{Code: look}), "'none'")
		same(t, "its children's", ask(second, sandbox.Cell{Code: "import subprocess; subprocess.check_output('printf %s \"$TRACEPARENT\"', shell=True).decode()"}), "'"+two+"'")
		v, err := sb.Cell(first, sandbox.Cell{Code: "1/0"})
		noError(t, err)
		same(t, "the trace in the verdict", v.Metadata["traceparent"], one)
		same(t, "after a cell that failed", ask(t.Context(), sandbox.Cell{Code: look}), "'none'")
		same(t, "in another context", ask(t.Context(), sandbox.Cell{Code: look, Context: "other"}), "'none'")
		// Values that the code or the caller sets have precedence.
		same(t, "the caller's own", ask(first, sandbox.Cell{Code: look, RunOptions: sandbox.RunOptions{Env: map[string]string{"TRACEPARENT": "my own"}}}), "'my own'")
		same(t, "in between", ask(second, sandbox.Cell{Code: look}), "'"+two+"'")
		same(t, "put back", ask(t.Context(), sandbox.Cell{Code: look}), "'none'")
		ask(first, sandbox.Cell{Code: "os.environ['TRACEPARENT'] = 'the code\\'s own'"})
		same(t, "the code's own", ask(t.Context(), sandbox.Cell{Code: look}), `"the code's own"`)
		same(t, "an invalid value", ask(t.Context(), sandbox.Cell{Code: look, RunOptions: sandbox.RunOptions{Metadata: map[string]string{"traceparent": "a\x00b"}}}), `"the code's own"`)
	}},
	{"cells that run at once have a trace each", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		first, one := withTestTrace(t, 1)
		second, two := withTestTrace(t, 2)
		// Each cell waits until the other runs.
		code := func(mine, other string) string {
			return fmt.Sprintf("import os, time\nbefore = os.environ['TRACEPARENT']\nopen('%s', 'w').close()\nwhile not os.path.exists('%s'): time.sleep(0.005)\n(before, os.environ['TRACEPARENT'])", mine, other)
		}
		a := inBackground(first, sb.Cell, sandbox.Cell{Code: code("a", "b"), Context: "a"})
		b := inBackground(second, sb.Cell, sandbox.Cell{Code: code("b", "a"), Context: "b"})
		same(t, "the trace of the first", verdictOf(t, a).Result.Text(), fmt.Sprintf("('%s', '%s')", one, one))
		same(t, "the trace of the second", verdictOf(t, b).Result.Text(), fmt.Sprintf("('%s', '%s')", two, two))
	}},
}

// withTestTrace returns a ctx with the trace number n, and the traceparent of that trace.
func withTestTrace(t *testing.T, n byte) (ctx context.Context, traceparent string) {
	t.Helper()
	c := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID:    trace.TraceID{15: n},
		SpanID:     trace.SpanID{7: n},
		TraceFlags: trace.FlagsSampled,
	})
	return trace.ContextWithSpanContext(t.Context(), c), fmt.Sprintf("00-%s-%s-01", c.TraceID(), c.SpanID())
}
