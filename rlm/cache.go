package rlm

import (
	"container/list"
	"context"
	"sync"

	"github.com/recluse-dev/recluse/llm"
)

// DefaultCacheBytes bounds the replies that a cache keeps.
const DefaultCacheBytes = 32 << 20

// Cache keeps the replies to sub-calls, so that the same question to the same model is paid once. Equal questions that come at the same
// time wait for the first. It may be shared by engines; its methods may be called from several goroutines.
type Cache struct {
	limit int64
	disk  *cacheDir // nil: none

	mu    sync.Mutex
	size  int64                    // guarded by mu
	order *list.List               // guarded by mu; of *cached, the one used last in front
	items map[string]*list.Element // guarded by mu
	asked map[string]chan struct{} // guarded by mu; closed when the call under way has ended
}

type cached struct {
	key   string
	reply llm.Reply
}

// NewCache makes a cache that keeps so many bytes of replies; 0: DefaultCacheBytes.
func NewCache(bytes int64) *Cache {
	return &Cache{limit: or(bytes, DefaultCacheBytes), order: list.New(), items: map[string]*list.Element{}, asked: map[string]chan struct{}{}}
}

// get gives a kept reply, or makes the caller the one who asks: then put or drop must follow.
func (c *Cache) get(ctx context.Context, key string) (*llm.Reply, error) {
	for {
		c.mu.Lock()
		if e, ok := c.items[key]; ok {
			c.order.MoveToFront(e)
			r := e.Value.(*cached).reply
			c.mu.Unlock()
			return &r, nil
		}
		wait, ok := c.asked[key]
		if !ok {
			c.asked[key] = make(chan struct{})
			c.mu.Unlock()
			r := c.disk.get(key)
			if r != nil {
				c.settle(key, r)
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

// put keeps a reply; nil says that there is none, and the next who wants it asks himself.
func (c *Cache) put(key string, r *llm.Reply) {
	if r != nil {
		c.disk.put(key, r)
	}
	c.settle(key, r)
}

// settle ends a call, and keeps its reply in memory.
func (c *Cache) settle(key string, r *llm.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.asked[key])
	delete(c.asked, key)
	if r != nil {
		c.keep(key, r)
	}
}

// learn keeps a reply for which nobody had to ask.
func (c *Cache) learn(key string, r *llm.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(key, r)
}

// keep keeps a reply in memory. Preconditions: mu is held.
func (c *Cache) keep(key string, r *llm.Reply) {
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
