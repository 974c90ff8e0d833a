package egress

import (
	"os"
	"syscall"
	"testing"
)

// When this program has no descriptors left, a connection is refused, and the next one works when there are some again.
func TestDescriptorsUsedUp(t *testing.T) {
	port := serve(t, "127.0.0.1:0", echo)
	f := newFixture(t, allow("allow *.test:"+portText(port)), nil)
	f.resolver.table = map[string][]string{"a.test": {"127.0.0.1"}}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	start := func() (c *call, begin func()) {
		program, guest := tcpPair(t)
		c = &call{
			TCPConn: program,
			guest:   &guestConn{TCPConn: guest, accepted: make(chan struct{}), refused: make(chan *Refusal, 1)},
			result:  make(chan error, 1),
		}
		return c, func() { c.result <- f.Serve(t.Context(), Request{Name: "a.test", Port: port}, c.guest) }
	}
	without, beginWithout := start()
	with, beginWith := start()
	low := limit
	low.Cur = 128
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	var held []*os.File
	for {
		n, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, n)
	}
	go beginWithout()
	if err := without.wait(t); err == nil {
		t.Error("a connection was opened without a descriptor")
	}
	for _, n := range held {
		_ = n.Close()
	}
	go beginWith()
	if _, err := with.Write([]byte("again")); err != nil {
		t.Fatal(err)
	}
	if err := with.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := with.all(t); got != "again" {
		t.Errorf("afterwards: %q, %v", got, with.wait(t))
	}
}
