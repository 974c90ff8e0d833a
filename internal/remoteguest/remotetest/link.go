//go:build linux

// Package remotetest has what tests and benchmarks of backends over services share.
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

// Link is a link to a service that is slow, or breaks.
type Link struct {
	Delay time.Duration // added to each round trip
	Rate  float64       // bytes per second in each direction of a connection; 0: unlimited
	Cut   func() int64  // bytes until a connection breaks; nil: never
	Cuts  atomic.Int64
	Sent  atomic.Int64 // bytes to the service
}

// Listen starts the link for a test, and returns the address of its near end.
func (l *Link) Listen(t testing.TB, to string) string {
	t.Helper()
	near, stop, err := l.Start(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return near
}

// Start starts the link to a URL, and returns that of its near end.
func (l *Link) Start(to string) (near string, stop func(), err error) {
	u, err := url.Parse(to)
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	closed := false
	keep := func(conns ...net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			open[c] = true
			if closed {
				_ = c.Close()
			}
		}
	}
	stop = func() {
		_ = listener.Close()
		mu.Lock()
		closed = true
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	}
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", u.Host)
			if err != nil {
				_ = c.Close()
				continue
			}
			keep(c, far)
			left := &atomic.Int64{}
			left.Store(1 << 60)
			if l.Cut != nil {
				left.Store(l.Cut())
			}
			wg.Go(func() { l.pass(c, far, left, nil) })
			wg.Go(func() { l.pass(far, c, left, &l.Sent) })
		}
	})
	return "http://" + listener.Addr().String(), stop, nil
}

// pass copies with the delay, until the connection breaks.
func (l *Link) pass(to, from net.Conn, left, count *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	type chunk struct {
		b   []byte
		due time.Time
	}
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		var free time.Time // when the link has sent what it has
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				now := time.Now()
				if free.Before(now) {
					free = now
				}
				if l.Rate > 0 {
					free = free.Add(time.Duration(float64(n) / l.Rate * float64(time.Second)))
				}
				chunks <- chunk{b[:n], free.Add(l.Delay / 2)}
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
		if count != nil {
			count.Add(int64(len(c.b)))
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
	return func() int64 { return low + rand.Int64N(high-low) } //nolint:gosec // nobody guesses it
}
