package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
)

const (
	// repeatsKept is how long the answer to an idempotency key is remembered.
	repeatsKept = 24 * time.Hour
	// repeatsTrim is how often old ones are removed.
	repeatsTrim = time.Hour
	maxIdemKey  = 255
	maxKept     = 1 << 20 // bytes of an answer
)

// headerReplayed marks an answer that was given before.
const headerReplayed = "Idempotency-Replayed"

// repeats gives the first answer again to whoever repeats a request under one Idempotency-Key.
type repeats struct {
	store store.Access

	mu      sync.Mutex
	running map[string]chan struct{} // guarded by mu; closed when the first request is done
	trimmed time.Time                // guarded by mu
}

func newRepeats(st store.Access) *repeats {
	return &repeats{store: st, running: map[string]chan struct{}{}}
}

// once answers with do, or with what do answered the first time. Only success is remembered: what failed may be tried again.
func (r *repeats) once(c *call, do func() error) error {
	key := c.r.Header.Get(v1.HeaderIdempotency)
	if key == "" {
		return do()
	}
	if len(key) > maxIdemKey {
		return invalid("%s is longer than %d bytes", v1.HeaderIdempotency, maxIdemKey)
	}
	read := func() ([]byte, func(), error) { b, err := c.readBody(); return b, func() {}, err }
	if c.route.large {
		read = c.readLarge
	}
	body, release, err := read()
	defer release()
	if err != nil {
		return err
	}
	c.repeatable = &body // for the handler
	h := sha256.New()
	_, _ = io.WriteString(h, c.r.Method+" "+c.r.URL.EscapedPath()+"?"+c.r.URL.RawQuery+"\n")
	_, _ = h.Write(body)
	claim := store.Reply{Tenant: c.who.tenant, Key: key, Request: h.Sum(nil), Created: time.Now()}

	leave, err := r.enter(c.ctx(), c.who.tenant+"\x00"+key)
	if err != nil {
		return err
	}
	defer leave()
	r.trim(c.ctx())
	old, claimed, err := r.store.BeginReply(c.ctx(), claim)
	if err != nil {
		return err
	}
	if !claimed {
		if !bytes.Equal(old.Request, claim.Request) {
			return &v1.Error{
				Code: v1.CodeIdempotency, Op: "check idempotency key", Message: "the key was used for another request", Remedy: "take a new key for each request",
			}
		}
		if old.Done {
			return replay(c, old)
		}
		// Nobody of this server answers it, or enter would have waited: its caller has gone, or the server before this one ended over it. What it
		// has made is found by its id, or made now.
		c.again, claim.Created = true, old.Created
	}
	c.request = requestOf(claim)
	return r.first(c, claim, do)
}

// requestOf gives an id that a request has under its key for as long as the key is remembered.
func requestOf(claim store.Reply) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%x\x00%d", claim.Tenant, claim.Key, claim.Request, claim.Created.UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// answered is called between what a request does and the note of its answer. Tests replace it to die there.
var answered = func() {}

// first answers, and remembers the answer.
func (r *repeats) first(c *call, claim store.Reply, do func() error) error {
	ctx := context.WithoutCancel(c.ctx())
	kept := &keeper{ResponseWriter: c.w.ResponseWriter}
	c.w.ResponseWriter = kept
	done := false
	defer func() {
		c.w.ResponseWriter = kept.ResponseWriter
		if done {
			return
		}
		if err := r.store.DropReply(ctx, claim.Tenant, claim.Key); err != nil {
			c.logger().Warn("an idempotency key could not be given up", "error", err)
		}
	}()
	if err := do(); err != nil {
		// What goes on without its caller, or its server, is found by whoever repeats.
		done = c.ctx().Err() != nil || c.s.draining() && v1.CodeOf(err) == v1.CodeUnavailable
		return err
	}
	if code := c.w.problem.Code; code != "" { // told as an event
		done = c.s.draining() && code == v1.CodeUnavailable
		return nil
	}
	if c.w.status >= 300 {
		return nil
	}
	claim.Done, claim.Status, claim.Body = true, c.w.status, kept.body.Bytes()
	claim.Header = map[string]string{"Content-Type": c.w.Header().Get("Content-Type"), "Location": c.w.Header().Get("Location")}
	if kept.over { // that it was done must be known, or it would be done twice
		claim.Body, claim.Header = nil, map[string]string{notKept: "true"}
	}
	answered()
	done = true
	if err := r.store.EndReply(ctx, claim); err != nil { // the claim stays, and whoever repeats finds what was made
		c.logger().Warn("an answer could not be kept for its idempotency key", "error", err)
	}
	return nil
}

// notKept marks an answer that was too large to keep.
const notKept = "Recluse-Not-Kept"

func replay(c *call, old store.Reply) error {
	if old.Header[notKept] != "" {
		return &v1.Error{
			Code: v1.CodeNotKept, Op: "repeat answer", Message: "the request has succeeded, and its answer was too large to keep", Remedy: "look for what it made; a cell or command is among the operations",
		}
	}
	for k, v := range old.Header {
		if v != "" {
			c.w.Header().Set(k, v)
		}
	}
	c.w.Header().Set(headerReplayed, "true")
	c.w.WriteHeader(old.Status)
	_, _ = c.w.Write(old.Body)
	return nil
}

// enter waits until nobody else answers the same key.
func (r *repeats) enter(ctx context.Context, key string) (release func(), err error) {
	for {
		r.mu.Lock()
		wait := r.running[key]
		if wait == nil {
			mine := make(chan struct{})
			r.running[key] = mine
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				delete(r.running, key)
				r.mu.Unlock()
				close(mine)
			}, nil
		}
		r.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *repeats) trim(ctx context.Context) {
	r.mu.Lock()
	due := time.Since(r.trimmed) > repeatsTrim
	if due {
		r.trimmed = time.Now()
	}
	r.mu.Unlock()
	if due {
		_, _ = r.store.TrimReplies(ctx, time.Now().Add(-repeatsKept)) // tried again in an hour
	}
}

// keeper keeps the answer that goes through it.
type keeper struct {
	http.ResponseWriter
	body bytes.Buffer
	over bool // too large to keep
}

// Write implements http.ResponseWriter.
func (k *keeper) Write(b []byte) (int, error) {
	if k.body.Len()+len(b) > maxKept {
		k.over = true
	} else {
		k.body.Write(b)
	}
	return k.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController through.
func (k *keeper) Unwrap() http.ResponseWriter { return k.ResponseWriter }
