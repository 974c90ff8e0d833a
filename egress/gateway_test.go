package egress

import (
	"bytes"
	"io"
	"net"
	"testing"
)

func TestAnAllowedConnectionIsCarried(t *testing.T) {
	f := newFixture(t, allow("allow db.acme.org:*"), nil)
	f.resolver.table["db.acme.org"] = []string{"127.0.0.1"}
	port := serve(t, "127.0.0.1:0", echo)
	c := f.open("DB.acme.org.", port)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	go func() {
		c.Write(data)
		c.CloseWrite()
	}()
	if got := c.all(t); got != string(data) {
		t.Errorf("received %d bytes, want %d", len(got), len(data))
	}
	if err := c.wait(t); err != nil {
		t.Error(err)
	}
	e := f.waitEvent(func(e Event) bool { return e.Kind == EventClosed })
	if e.Up != int64(len(data)) || e.Down != int64(len(data)) || e.Request.Name != "db.acme.org" || e.Err != nil {
		t.Errorf("event: %+v", e)
	}
	e = f.waitEvent(func(e Event) bool { return e.Kind == EventConnected })
	if e.Address.Port() != port || e.Decision.Rule != "allow db.acme.org:*" {
		t.Errorf("event: %+v", e)
	}
}

func TestHalfCloseInBothDirections(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*"), nil)
	f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
	received := make(chan string, 1)
	port := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		io.WriteString(c, "hello") // the server closes first, and still reads
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		received <- string(b)
	})
	c := f.open("a.acme.org", port)
	if got := c.all(t); got != "hello" {
		t.Errorf("received %q", got)
	}
	io.WriteString(c, "late")
	c.CloseWrite()
	if got := <-received; got != "late" {
		t.Errorf("the server received %q", got)
	}
	if err := c.wait(t); err != nil {
		t.Error(err)
	}
}
