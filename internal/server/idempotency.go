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
	// replyTTL is how long the answer to a request with an idempotency key is stored.
	replyTTL = 24 * time.Hour
	// trimInterval is the time between two removals of expired answers.
	trimInterval   = time.Hour
	maxKeyLength   = 255     // bytes of an idempotency key
	maxStoredReply = 1 << 20 // bytes of an answer
)

// headerReplayed marks the stored answer of an earlier request.
const headerReplayed = "Idempotency-Replayed"

// idempotency answers repeated requests with the same Idempotency-Key with the first answer.
type idempotency struct {
	store store.Access

	mu      sync.Mutex
	running map[string]chan struct{} // guarded by mu; closed when the first request is done
	trimmed time.Time                // guarded by mu
}

func newIdempotency(st store.Access) *idempotency {
	return &idempotency{store: st, running: map[string]chan struct{}{}}
}

// once answers a request with do, or with the stored answer of an earlier request with the same key. Only success is
// stored, so failed requests can be retried.
func (r *idempotency) once(c *call, do func() error) error {
	key := c.r.Header.Get(v1.HeaderIdempotency)
	if key == "" {
		return do()
	}
	if len(key) > maxKeyLength {
		return invalid("%s is longer than %d bytes", v1.HeaderIdempotency, maxKeyLength)
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
				Code:    v1.CodeIdempotency,
				Op:      "check idempotency key",
				Message: "the key was used for another request",
				Remedy:  "use a new key for each request",
			}
		}
		if old.Done {
			return replay(c, old)
		}
		// No request of this server is working on it, or enter would have waited. Either its caller disconnected, or
		// the previous server ended during the request. The handler finds what the request created by its id, or
		// creates it.
		c.repeated, claim.Created = true, old.Created
	}
	c.request = requestID(claim)
	return r.answer(c, claim, do)
}

// requestID returns an id that all requests with the same key share while the key is stored.
func requestID(claim store.Reply) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%x\x00%d",
		claim.Tenant, claim.Key, claim.Request, claim.Created.UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// beforeStore is called after a request has done its work and before its answer is stored. Tests replace it to kill the
// server at this point.
var beforeStore = func() {}

// answer calls do and stores its answer.
func (r *idempotency) answer(c *call, claim store.Reply, do func() error) error {
	ctx := context.WithoutCancel(c.ctx())
	rec := &bodyRecorder{ResponseWriter: c.w.ResponseWriter}
	c.w.ResponseWriter = rec
	keepClaim := false
	defer func() {
		c.w.ResponseWriter = rec.ResponseWriter
		if keepClaim {
			return
		}
		if err := r.store.DropReply(ctx, claim.Tenant, claim.Key); err != nil {
			c.logger().Warn("an idempotency key could not be released", "error", err)
		}
	}()
	if err := do(); err != nil {
		// Work that continues without its caller, or without this server, is found by a repeated request.
		keepClaim = c.ctx().Err() != nil || c.s.draining() && v1.CodeOf(err) == v1.CodeUnavailable
		return err
	}
	if code := c.w.problem.Code; code != "" { // the problem was sent as an event
		keepClaim = c.s.draining() && code == v1.CodeUnavailable
		return nil
	}
	if c.w.status >= 300 {
		return nil
	}
	claim.Done, claim.Status, claim.Body = true, c.w.status, rec.body.Bytes()
	claim.Header = map[string]string{
		"Content-Type": c.w.Header().Get("Content-Type"),
		"Location":     c.w.Header().Get("Location"),
	}
	if rec.tooLarge { // the success must be stored all the same, or the request would be executed twice
		claim.Body, claim.Header = nil, map[string]string{notKept: "true"}
	}
	beforeStore()
	keepClaim = true
	if err := r.store.EndReply(ctx, claim); err != nil { // the claim stays; a repeated request finds what was created
		c.logger().Warn("an answer could not be stored for its idempotency key", "error", err)
	}
	return nil
}

// notKept marks an answer that was too large to store.
const notKept = "Recluse-Not-Kept"

// replay sends the stored answer of an earlier request.
func replay(c *call, old store.Reply) error {
	if old.Header[notKept] != "" {
		return &v1.Error{
			Code:    v1.CodeNotKept,
			Op:      "repeat answer",
			Message: "the request has succeeded, but its answer was too large to store",
			Remedy:  "list what the request created; for a cell or command, list the operations",
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

// enter waits until no other request with the same key is running. The caller must call release.
func (r *idempotency) enter(ctx context.Context, key string) (release func(), err error) {
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

// trim removes expired answers, at most once in trimInterval.
func (r *idempotency) trim(ctx context.Context) {
	r.mu.Lock()
	due := time.Since(r.trimmed) > trimInterval
	if due {
		r.trimmed = time.Now()
	}
	r.mu.Unlock()
	if due {
		_, _ = r.store.TrimReplies(ctx, time.Now().Add(-replyTTL)) // if this fails, the next trim retries
	}
}

// bodyRecorder copies the body of an answer, up to maxStoredReply.
type bodyRecorder struct {
	http.ResponseWriter
	body     bytes.Buffer
	tooLarge bool
}

// Write implements http.ResponseWriter.
func (r *bodyRecorder) Write(b []byte) (int, error) {
	if r.body.Len()+len(b) > maxStoredReply {
		r.tooLarge = true
	} else {
		r.body.Write(b)
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is used by http.ResponseController.
func (r *bodyRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
