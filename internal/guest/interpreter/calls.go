//go:build linux

package interpreter

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// maxCalls is how many calls to the host are under way at once in a sandbox.
	maxCalls = 64
	// maxWaiting is how many wait behind them, and maxWaitingBytes what they may carry; more are refused.
	maxWaiting      = 1024
	maxWaitingBytes = 64 << 20
	// maxRefused is how many refusals wait until the interpreter reads them. Python code waits for each of its calls, so that only
	// forged ones can be more; an interpreter that sends them is killed.
	maxRefused = 4096
)

// hostCall makes one call to the host, and sends its reply, beside the cell.
func (r *cellRun) hostCall(p []byte) error {
	h, body, err := kernel.Header(p)
	if err != nil {
		return err
	}
	var head struct {
		Call int    `json:"call"`
		Name string `json:"name"`
	}
	if err := json.Unmarshal(h, &head); err != nil {
		return err
	}
	payload := append([]byte(nil), body...)
	i := r.interp
	if r.contexts.calls.add(len(payload), func() {
		reply, bad := r.contexts.cfg.Call(r.op, head.Name, payload)
		i.reply(head.Call, reply, bad)
	}) {
		return nil
	}
	select {
	case i.refused <- head.Call:
		return nil
	default:
		return fmt.Errorf("more than %d calls to the host that there is no room for", maxRefused)
	}
}

func (i *interpreter) reply(call int, reply []byte, bad *wire.Error) {
	header := map[string]any{"call": call, "ok": bad == nil}
	if bad != nil {
		header["error"] = map[string]string{"code": bad.Code, "message": bad.Message}
	}
	if hd, err := withHeader(header, reply); err == nil {
		_ = i.send(kernel.TypeReply, hd...) // a dead interpreter needs no reply
	}
}

// refuse answers calls that there is no room for. The goroutine that reads the interpreter's frames cannot do it: an interpreter that
// does not read would hold it up, and with it the end of the cell.
func (i *interpreter) refuse() {
	for {
		select {
		case call := <-i.refused:
			i.reply(call, nil, wire.Errorf("too_many", "%d calls to the host are under way and %d wait", maxCalls, maxWaiting))
		case <-i.gone:
			return
		}
	}
}

// callQueue bounds what code can make us do by calling the host: each call under way is a stream and two goroutines.
type callQueue struct {
	mu      sync.Mutex
	running int           // guarded by mu
	waiting []waitingCall // guarded by mu
	bytes   int           // guarded by mu; of what waits
}

type waitingCall struct {
	bytes int
	run   func()
}

// add runs a call as soon as there is room, and reports whether there will be.
func (q *callQueue) add(bytes int, run func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running >= maxCalls {
		if len(q.waiting) >= maxWaiting || q.bytes+bytes > maxWaitingBytes {
			return false
		}
		q.waiting = append(q.waiting, waitingCall{bytes, run})
		q.bytes += bytes
		return true
	}
	q.running++
	go q.work(run)
	return true
}

// work runs a call, and then those that wait.
func (q *callQueue) work(run func()) {
	for {
		run()
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.running--
			q.waiting = nil
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting[0] = waitingCall{}
		q.waiting = q.waiting[1:]
		q.bytes -= next.bytes
		q.mu.Unlock()
		run = next.run
	}
}
