package docker

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// newsCutter is a proxy of the Docker engine of the tests that can drop only the event streams.
type newsCutter struct {
	joined sync.WaitGroup

	mu   sync.Mutex
	all  map[net.Conn]bool // guarded by mu; true: an event stream
	over bool              // guarded by mu
}

// cutNews starts a newsCutter at a socket.
func cutNews(t *testing.T, path string) *newsCutter {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &newsCutter{all: map[net.Conn]bool{}}
	p.joined.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.joined.Go(func() { p.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.over = true
		for c := range p.all {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.joined.Wait()
	})
	return p
}

func (p *newsCutter) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	e, err := net.Dial("unix", strings.TrimPrefix(engineHost, "unix://"))
	if err != nil {
		return
	}
	p.mu.Lock()
	if p.over {
		_ = c.Close()
	}
	p.all[c] = false
	p.mu.Unlock()
	p.joined.Go(func() {
		defer func() { _ = e.Close() }()
		p.copy(e, c, func(request []byte) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.all[c] = bytes.Contains(request, []byte("/events?"))
		})
	})
	p.copy(c, e, func([]byte) {})
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, c)
}

func (p *newsCutter) copy(to, from net.Conn, look func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			look(buf[:n])
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// drop closes the event streams, and reports whether there were any.
func (p *newsCutter) drop() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	dropped := false
	for c, news := range p.all {
		if news {
			_ = c.Close()
			delete(p.all, c)
			dropped = true
		}
	}
	return dropped
}

func TestDroppedStreamsOfNewsDoNotEndASandbox(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	p := cutNews(t, path)
	sb := open(t, newBackend(t, func(o *Options) { o.Host = "unix://" + path }), sandbox.Spec{})
	for n := range 2*engineTries + 1 {
		for end := time.Now().Add(20 * time.Second); !p.drop(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no new event stream after %d dropped streams", n)
			}
		}
	}
	if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "6 * 7"}); err != nil || v.Result.Text() != "42" {
		t.Errorf("afterwards: %v, %v", v, err)
	}
	select {
	case <-sb.Gone():
		t.Error("the sandbox is reported as gone")
	default:
	}
}
