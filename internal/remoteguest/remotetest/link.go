//go:build linux

package remotetest

import (
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link is a link to the service that is slow, or breaks.
type Link struct {
	Delay time.Duration
	Cut   func() int64 // bytes until a connection breaks; nil: never
	Cuts  atomic.Int64
}

// Listen starts the link and returns the address of its near end.
func (l *Link) Listen(t *testing.T, to string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	near, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
	}
	t.Cleanup(func() {
		_ = near.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := near.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", u.Host)
			if err != nil {
				_ = c.Close()
				continue
			}
			keep(c)
			keep(far)
			left := &atomic.Int64{}
			left.Store(1 << 60)
			if l.Cut != nil {
				left.Store(l.Cut())
			}
			wg.Go(func() { l.pass(c, far, left) })
			wg.Go(func() { l.pass(far, c, left) })
		}
	})
	return "http://" + near.Addr().String()
}

// pass copies with the delay, until the connection breaks.
func (l *Link) pass(to, from net.Conn, left *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	type chunk struct {
		b   []byte
		due time.Time
	}
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				chunks <- chunk{b[:n], time.Now().Add(l.Delay / 2)}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for c := range chunks {
		if broken {
			continue
		}
		time.Sleep(time.Until(c.due))
		n := int64(len(c.b))
		if rest := left.Add(-n); rest < 0 {
			c.b = c.b[:max(0, n+rest)]
			broken = true
			l.Cuts.Add(1)
		}
		if _, err := to.Write(c.b); err != nil {
			broken = true
		}
		if broken {
			_ = to.Close()
			_ = from.Close()
		}
	}
}

// Between returns a random number.
func Between(low, high int64) func() int64 {
	return func() int64 { return low + rand.Int64N(high-low) }
}
