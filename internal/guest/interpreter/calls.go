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
	// maxCalls is the number of concurrent calls to the host in a sandbox.
	maxCalls = 64
	// maxWaiting is the number of calls that wait for them, and maxWaitingBytes bounds their payloads; more calls are
	// refused.
	maxWaiting      = 1024
	maxWaitingBytes = 64 << 20
	// maxRefused is the number of refusals that wait until the interpreter reads them. Python code waits for each of
	// its calls, so only forged calls can exceed it; an interpreter that sends them is killed.
	maxRefused = 4096
)

// hostCall starts one call to the host. Its reply is sent while the cell continues.
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
		return fmt.Errorf("more than %d refused calls to the host", maxRefused)
	}
}

func (i *interpreter) reply(call int, reply []byte, bad *wire.Error) {
	header := map[string]any{"call": call, "ok": bad == nil}
	if bad != nil {
		header["error"] = map[string]string{"code": bad.Code, "message": bad.Message}
	}
	if hd, err := withHeader(header, reply); err == nil {
		_ = i.send(kernel.TypeReply, hd...) // ignore a dead interpreter
	}
}

// sendRefusals sends the replies to refused calls. The goroutine that reads the frames of the interpreter cannot do it:
// an interpreter that does not read would block it, and with it the end of the cell.
func (i *interpreter) sendRefusals() {
	for {
		select {
		case call := <-i.refused:
			i.reply(call, nil, wire.Errorf("too_many",
				"%d calls to the host are running and %d are waiting", maxCalls, maxWaiting))
		case <-i.gone:
			return
		}
	}
}

// callQueue bounds the resources that code can use by calling the host: each running call is a stream and two
// goroutines.
type callQueue struct {
	mu      sync.Mutex
	running int           // guarded by mu
	waiting []waitingCall // guarded by mu
	bytes   int           // guarded by mu; total size of the waiting calls
}

type waitingCall struct {
	bytes int
	run   func()
}

// add runs a call as soon as fewer than maxCalls are running. It returns false if the queue is full.
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

// work runs a call, and then waiting calls until there is none.
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
