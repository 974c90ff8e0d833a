package egress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	idleBuffer = 4 << 10  // held by a connection that waits
	fullBuffer = 64 << 10 // held while more arrives at once
	headBuffer = 16 << 10 // of the client's requests on port 80
	// fullBuffers bounds the large buffers of a gateway: a connection whose receiver has stopped reading keeps its
	// buffer. Without one, a connection uses its small buffer.
	fullBuffers = 64
)

// buffers are the large buffers of a gateway.
type buffers struct {
	free sync.Pool // of *[fullBuffer]byte
	used atomic.Int32
}

// get returns a buffer, or nil if too many are in use.
func (b *buffers) get() *[fullBuffer]byte {
	if b.used.Add(1) > fullBuffers {
		b.used.Add(-1)
		return nil
	}
	if full, ok := b.free.Get().(*[fullBuffer]byte); ok {
		return full
	}
	return new([fullBuffer]byte)
}

func (b *buffers) put(full *[fullBuffer]byte) {
	b.free.Put(full)
	b.used.Add(-1)
}

// splice copies in both directions until both are closed, and inspects what the client sends first.
func (c *connection) splice(up upstream) error {
	c.touch()
	stopIdle := c.watchIdle()
	defer stopIdle()
	// Everything that ends the connection early cancels ctx, which ends all reads and writes.
	stop := context.AfterFunc(c.ctx, func() {
		if cause, ok := errors.AsType[*Refusal](context.Cause(c.ctx)); ok && cause.Kind == RefusedMismatch {
			up.Close() // the client still receives the reason
			time.AfterFunc(wordsTimeout, func() { c.client.Close() })
			return
		}
		up.Close()
		c.client.Close()
	})
	defer stop()
	status := newFirstBytes(c.request.Port)
	sent := make(chan error, 1)
	go func() {
		err := c.send(up, status)
		if err == nil {
			err = up.CloseWrite()
		}
		if err != nil {
			c.cancel(err)
		}
		sent <- err
	}()
	err := c.receive(up, status)
	status.end()
	if refusal := c.cause(); refusal != nil && refusal.Kind == RefusedMismatch {
		<-sent
		if c.down.Load() == 0 {
			c.words(refusal, nil)
		}
		return refusal
	}
	if err == nil {
		err = c.client.CloseWrite()
	}
	if err != nil {
		c.cancel(err)
	}
	if upErr := <-sent; err == nil {
		err = upErr
	}
	if cause := context.Cause(c.ctx); cause != nil { // the first error, not those of the closed ends
		err = cause
	}
	return err
}

// cause returns why the gateway ends the connection; nil: it does not.
func (c *connection) cause() *Refusal {
	refusal, _ := errors.AsType[*Refusal](context.Cause(c.ctx))
	return refusal
}

func (c *connection) touch() { c.lastUse.Store(int64(time.Since(c.started))) }

// watchIdle ends the connection when nothing was carried for the idle timeout.
func (c *connection) watchIdle() (stop func() bool) {
	limit := c.g.options.Idle
	var mu sync.Mutex // the timer may fire before its variable is set
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(limit, func() {
		mu.Lock()
		defer mu.Unlock()
		rest := limit - (time.Since(c.started) - time.Duration(c.lastUse.Load()))
		if rest > 0 {
			timer.Reset(rest)
			return
		}
		c.cancel(refuse(RefusedTimeout, fmt.Sprintf("nothing was sent for %s", limit), "", nil))
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return timer.Stop()
	}
}

// count adds bytes of one direction. It returns an error when the limit is reached.
func (c *connection) count(up bool, n int) error {
	if up {
		c.up.Add(int64(n))
	} else {
		c.down.Add(int64(n))
	}
	c.touch()
	if c.budget != nil {
		if err := c.budget.Count(n); err != nil {
			return overBudget(err)
		}
	}
	if total, limit := c.g.bytes.Add(int64(n)), c.g.options.Limits.Bytes; limit > 0 && total > limit {
		return errBytes
	}
	return nil
}

// receive copies from the destination to the client.
func (c *connection) receive(up io.Reader, status *firstBytes) error {
	return c.copyAll(up, func(b []byte) error {
		status.add(b)
		if err := c.count(false, len(b)); err != nil {
			return err
		}
		_, err := c.client.Write(b)
		return err
	})
}

// copyAll copies from src by write until the end of src. It holds a large buffer only while src fills the small one.
func (c *connection) copyAll(src io.Reader, write func([]byte) error) error {
	small := make([]byte, idleBuffer)
	var full *[fullBuffer]byte
	defer func() {
		if full != nil {
			c.g.buffers.put(full)
		}
	}()
	for {
		b := small
		if full != nil {
			b = full[:]
		}
		n, err := src.Read(b)
		if n > 0 {
			if err := write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case full == nil && n == idleBuffer:
			full = c.g.buffers.get()
		case full != nil && n < idleBuffer:
			c.g.buffers.put(full)
			full = nil
		}
	}
}

// send copies from the client to the destination. On 80 and 443 the client must name the destination.
func (c *connection) send(up io.Writer, status *firstBytes) error {
	write := func(b []byte) error {
		if err := c.count(true, len(b)); err != nil {
			return err
		}
		_, err := up.Write(b)
		return err
	}
	switch c.request.Port {
	case 443:
		return c.sendTLS(write, status)
	case 80:
		return c.sendHTTP(write, status)
	}
	return c.copyAll(c.client, write)
}

// within ends the connection if the client does not name its destination in time.
func (c *connection) within() (stop func() bool) {
	limit := c.g.options.FirstBytes
	timer := time.AfterFunc(limit, func() {
		c.cancel(refuse(RefusedTimeout, fmt.Sprintf("the client sent no complete request within %s", limit), "", nil))
	})
	return timer.Stop
}

// sendTLS copies what the client sends, if its ClientHello has the name of the connection.
func (c *connection) sendTLS(write func([]byte) error, status *firstBytes) error {
	var first []byte
	if c.host.literal() { // any protocol, and the server may be the one to begin
		first = make([]byte, 1)
		if n, err := io.ReadFull(c.client, first); n == 0 || first[0] != recordHandshake {
			if err == nil {
				err = write(first)
			}
			if err != nil {
				return ignoreEOF(err)
			}
			return c.copyAll(c.client, write)
		}
	}
	sent, err := c.sendHello(io.MultiReader(bytes.NewReader(first), c.client), write)
	if err != nil || !sent {
		return err
	}
	return c.sendRecords(write, status)
}

// sendHello copies a ClientHello from r, if its name is that of the connection. It reports false at the end of r.
func (c *connection) sendHello(r io.Reader, write func([]byte) error) (sent bool, err error) {
	stop := c.within()
	raw, hello, err := readHello(r)
	stop()
	if errors.Is(err, io.EOF) && len(raw) == 0 {
		return false, nil
	}
	if err == nil {
		err = c.checkHello(hello)
	}
	if err != nil {
		return false, c.mismatch(err)
	}
	return true, write(raw)
}

// checkHello compares the name of a ClientHello with that of the connection. To a literal address, all names go that
// the policy allows.
func (c *connection) checkHello(hello clientHello) error {
	literal := c.host.literal()
	switch {
	case hello.name == "" && !literal:
		return badRequest("the ClientHello has no server name")
	case hello.name != "" && literal:
		if err := c.nameAllowed(hello.name, "the ClientHello names"); err != nil {
			return err
		}
	case !literal && !strings.EqualFold(hello.name, c.host.name):
		return badRequest(fmt.Sprintf("the ClientHello names %s", printable(hello.name)))
	}
	if hello.ech && c.g.Policy().filtersNames() {
		return badRequest("the ClientHello has an encrypted one (ECH), whose name cannot be checked")
	}
	return nil
}

// sendRecords copies what follows a ClientHello. A server may request a second one (HelloRetryRequest), which must have
// the same name, but not every server compares them. So a second one is inspected as the first, until the server has
// answered with a ServerHello: then it accepts no other.
func (c *connection) sendRecords(write func([]byte) error, status *firstBytes) error {
	r := bufio.NewReaderSize(c.client, idleBuffer)
	for {
		b, err := r.Peek(recordHeader + 1)
		if err != nil || status.servedHello() {
			break
		}
		length := binary.BigEndian.Uint16(b[3:])
		if b[0] != recordHandshake { // early data, for example
			if err := copyBody(r, recordHeader+int64(length), write); err != nil {
				return ignoreEOF(err)
			}
			continue
		}
		if length == 0 || b[recordHeader] == messageHello {
			if _, err := c.sendHello(r, write); err != nil {
				return err
			}
		}
		break
	}
	rest, err := r.Peek(r.Buffered())
	if err != nil {
		return err
	}
	return c.copyAll(io.MultiReader(bytes.NewReader(rest), c.client), write) // without the buffer of r
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// nameAllowed checks a name that a client sends to a literal address.
func (c *connection) nameAllowed(name, what string) error {
	h, err := hostOf(name, c.request.Port)
	if err != nil {
		return c.mismatch(badRequest(fmt.Sprintf("%s %s", what, printable(name))))
	}
	if h == c.host || !h.literal() && c.g.Policy().decide(h, c.host.addr, c.request.Port).Allowed() {
		return nil
	}
	return c.mismatch(badRequest(fmt.Sprintf("%s %s, which the policy does not allow", what, h)))
}

// mismatch returns the refusal for what a client sent, or an error of reading as it is.
func (c *connection) mismatch(err error) error {
	if _, ok := errors.AsType[badRequest](err); !ok {
		return err
	}
	target := hostPort(c.host, c.request.Port)
	return refuse(RefusedMismatch, fmt.Sprintf("the connection to %s is denied: %v", target, err),
		"connect to the host that the request names", err)
}

// sendHTTP copies requests whose Host is that of the connection.
func (c *connection) sendHTTP(write func([]byte) error, status *firstBytes) error {
	r := bufio.NewReaderSize(c.client, headBuffer)
	for first := true; ; first = false {
		if c.host.literal() && first { // any protocol, and the server may be the one to begin
			if b, err := r.Peek(1); err == nil && !looksLikeHTTP(b) {
				return c.copyAll(r, write)
			}
		}
		if !first { // a connection that is kept may wait for the next request
			if _, err := r.Peek(1); errors.Is(err, io.EOF) {
				return nil
			}
		}
		stop := c.within()
		raw, err := readHead(r)
		stop()
		if errors.Is(err, io.EOF) && len(raw) == 0 {
			return nil
		}
		if err != nil {
			return c.mismatch(err)
		}
		head, err := parseHead(raw)
		if err != nil {
			return c.mismatch(err)
		}
		names := []string{head.host}
		if head.target != "" {
			names = append(names, head.target)
		}
		for _, name := range slices.Compact(names) {
			if err := c.hostMatches(name); err != nil {
				return err
			}
		}
		if err := write(head.raw); err != nil {
			return err
		}
		switch {
		case head.length < 0:
			err = copyChunked(r, write)
		case head.length > 0:
			err = copyBody(r, head.length, write)
		}
		if errors.Is(err, errChunk) {
			return c.mismatch(err)
		}
		if err != nil {
			return err
		}
		if head.upgrade && first && status.switched() {
			return c.copyAll(r, write)
		}
	}
}

// hostMatches checks the Host of a request.
func (c *connection) hostMatches(name string) error {
	if c.host.literal() {
		return c.nameAllowed(name, "the request names")
	}
	if h, err := hostOf(name, c.request.Port); err != nil || h != c.host {
		return c.mismatch(badRequest(fmt.Sprintf("the request names %q", printable(name))))
	}
	return nil
}

// firstBytes are the first bytes of what the server sends.
type firstBytes struct {
	mu   sync.Mutex
	most int
	b    []byte // guarded by mu; no more than most
	done bool   // guarded by mu
	full chan struct{}
}

const switching = "HTTP/1.1 101"

func newFirstBytes(port uint16) *firstBytes {
	most := len(switching)
	if port == 443 {
		most = maxServed
	}
	return &firstBytes{most: most, full: make(chan struct{})}
}

func (f *firstBytes) add(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return
	}
	f.b = append(f.b, b[:min(len(b), f.most-len(f.b))]...)
	if len(f.b) == f.most {
		f.done = true
		close(f.full)
	}
}

// end marks the end of the response.
func (f *firstBytes) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done {
		f.done = true
		close(f.full)
	}
}

// switched waits for the beginning of the response and reports whether the protocol changes.
func (f *firstBytes) switched() bool {
	<-f.full
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.b) == switching
}

// servedHello reports whether the server has sent a ServerHello, and thus taken the ClientHello that it has.
func (f *firstBytes) servedHello() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return isServerHello(f.b)
}
