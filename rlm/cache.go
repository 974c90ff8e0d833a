package rlm

import (
	"container/list"
	"context"
	"sync"

	"github.com/recluse-dev/recluse/llm"
)

// DefaultCacheBytes is the default size of a cache in memory.
const DefaultCacheBytes = 32 << 20

// Cache stores the replies to sub-calls, so that equal calls of the same model are paid once. If equal calls are made
// concurrently, all wait for the first. Engines may share a cache. It is safe for concurrent use.
type Cache struct {
	limit int64
	disk  *cacheDir // nil: in memory only

	mu       sync.Mutex
	size     int64                    // guarded by mu
	order    *list.List               // guarded by mu; of *cached, most recently used first
	items    map[string]*list.Element // guarded by mu
	inFlight map[string]chan struct{} // guarded by mu; closed when the call in flight has ended
}

type cached struct {
	key   string
	reply llm.Reply
}

// NewCache returns a cache in memory for the given number of bytes; 0: DefaultCacheBytes.
func NewCache(bytes int64) *Cache {
	return &Cache{
		limit:    or(bytes, DefaultCacheBytes),
		order:    list.New(),
		items:    map[string]*list.Element{},
		inFlight: map[string]chan struct{}{},
	}
}

// get returns the cached reply. If there is none, it returns nil: the caller must then make the call and pass the
// outcome to put. If an equal call is in flight, get waits for it.
func (c *Cache) get(ctx context.Context, key string) (*llm.Reply, error) {
	for {
		c.mu.Lock()
		if e, ok := c.items[key]; ok {
			c.order.MoveToFront(e)
			r := e.Value.(*cached).reply
			c.mu.Unlock()
			return &r, nil
		}
		wait, ok := c.inFlight[key]
		if !ok {
			c.inFlight[key] = make(chan struct{})
			c.mu.Unlock()
			r := c.disk.get(key)
			if r != nil {
				c.finishCall(key, r)
			}
			return r, nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// put ends a call that get started, and stores its reply. With a nil reply nothing is stored, and the next get returns
// nil.
func (c *Cache) put(key string, r *llm.Reply) {
	if r != nil {
		c.disk.put(key, r)
	}
	c.finishCall(key, r)
}

// finishCall ends a call that get started, and stores its reply in memory unless it is nil.
func (c *Cache) finishCall(key string, r *llm.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.inFlight[key])
	delete(c.inFlight, key)
	if r != nil {
		c.insert(key, r)
	}
}

// add stores a reply in memory that was not requested through get.
func (c *Cache) add(key string, r *llm.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(key, r)
}

// insert stores a reply in memory, and evicts the least recently used ones if the cache is full.
//
// Preconditions: c.mu is held.
func (c *Cache) insert(key string, r *llm.Reply) {
	if _, known := c.items[key]; known || int64(len(r.Text)) > c.limit/4 {
		return
	}
	c.items[key] = c.order.PushFront(&cached{key, *r})
	for c.size += int64(len(r.Text)); c.size > c.limit; {
		last := c.order.Back()
		old := c.order.Remove(last).(*cached)
		delete(c.items, old.key)
		c.size -= int64(len(old.reply.Text))
	}
}
