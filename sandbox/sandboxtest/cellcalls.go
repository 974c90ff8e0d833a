package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// cellCalls are the features of calls to the host from cells.
var cellCalls = []feature{
	{"code calls the host", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.libraryPython(t)
		v := cell(t, sb, "import recluse\ntry: recluse.call('echo')\nexcept recluse.CallError as e: print(e.code)")
		same(t, "without a handler", v.Stdout.String(), "host_call_undefined\n")
		sb.OnHostCall(func(_ context.Context, c sandbox.HostCall) ([]byte, error) {
			switch c.Name {
			case "echo":
				return append([]byte(c.Context+":"), c.Payload...), nil
			case "large":
				return make([]byte, 3<<20), nil
			case "typed":
				return nil, &v1.Error{Code: v1.CodeTooMany, Message: "enough for today"}
			}
			return nil, fmt.Errorf("no %s here", c.Name)
		})
		same(t, "a reply", okCell(t, sb, "recluse.call('echo', b'\\x00\\xff')").Result.Text(), `b'default:\x00\xff'`)
		same(t, "JSON", okCell(t, sb, "recluse.call('echo', {'a': 1})").Result.Text(), `b'default:{"a": 1}'`)
		same(t, "a large payload", okCell(t, sb, "len(recluse.call('echo', b'x' * (3 << 20)))").Result.Text(), fmt.Sprint(3<<20+8))
		same(t, "a large reply", okCell(t, sb, "len(recluse.call('large'))").Result.Text(), fmt.Sprint(3<<20))
		v = cell(t, sb, "recluse.call('nothing')")
		if v.Error == nil || !strings.Contains(v.Error.Name, "CallError") || !strings.Contains(v.Error.Value, "no nothing here") {
			t.Errorf("an error of the host: %s", explainError(v))
		}
		same(t, "a typed error", okCell(t, sb, "try: recluse.call('typed')\nexcept recluse.CallError as e: x = e.code\nx").Result.Text(), "'too_many'")
	}},
	{"calls to the host run at once, and end with their cell", inGuest, func(t *testing.T, s *suite) {
		sb := s.libraryPython(t)
		var mu sync.Mutex
		waiting := 0
		all := make(chan struct{})
		ended := make(chan error, 1)
		sb.OnHostCall(func(ctx context.Context, c sandbox.HostCall) ([]byte, error) {
			if c.Name == "hang" {
				<-ctx.Done()
				ended <- ctx.Err()
				return nil, ctx.Err()
			}
			mu.Lock()
			if waiting++; waiting == 8 {
				close(all)
			}
			mu.Unlock()
			select {
			case <-all:
				return c.Payload, nil
			case <-ctx.Done():
				return nil, errors.New("the others did not come")
			}
		})
		v := okCell(t, sb, `
import recluse
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    got = list(pool.map(lambda i: recluse.call("meet", str(i)), range(8)))
got`)
		same(t, "result", v.Result.Text(), `[b'0', b'1', b'2', b'3', b'4', b'5', b'6', b'7']`)
		v = runCell(t, sb, sandbox.Cell{Code: "recluse.call('hang')", RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "state kept", v.StateKept, true)
		_ = await(t, "the end of the call", ended) // its cause does not matter
	}},
	{"more calls to the host than can run at once wait, and a flood of them harms nobody", inGuest, func(t *testing.T, s *suite) {
		sb := s.libraryPython(t)
		var mu sync.Mutex
		running, most := 0, 0
		full := make(chan struct{})
		sb.OnHostCall(func(ctx context.Context, c sandbox.HostCall) ([]byte, error) {
			if c.Name == "hang" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			mu.Lock()
			running++
			if most = max(most, running); running == 64 {
				select {
				case <-full:
				default:
					close(full)
				}
			}
			mu.Unlock()
			defer func() {
				mu.Lock()
				running--
				mu.Unlock()
			}()
			select {
			case <-full:
				return c.Payload, nil
			case <-ctx.Done():
				return nil, errors.New("the others did not come")
			}
		})
		v := okCell(t, sb, `
import recluse
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(150) as pool:
    got = list(pool.map(lambda i: recluse.call("meet", str(i)), range(150)))
got == [str(i).encode() for i in range(150)]`)
		same(t, "all replies", v.Result.Text(), "True")
		same(t, "at once", most, 64)
		v = runCell(t, sb, sandbox.Cell{RunOptions: sandbox.RunOptions{Timeout: 3 * time.Second}, Code: `
k = recluse.call.__globals__
for i in range(4000): k["_send"](k["_headed"](b"C", {"id": 0, "call": 100000 + i, "name": "hang"}, b""))
try: recluse.call("hang")
except recluse.CallError as e: print(e.code)
import time
time.sleep(1000)`})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "stdout", v.Stdout.String(), "too_many\n")
		same(t, "state kept", v.StateKept, true)
		noError(t, sb.Ping(t.Context()))
		same(t, "a call after it", okCell(t, sb, "recluse.call('meet', b'again')").Result.Text(), "b'again'")
	}},
}
