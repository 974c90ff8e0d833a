//go:build linux

package agent

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// joined gives two ends of a socket.
func joined(t *testing.T) (here, there *net.UnixConn) {
	t.Helper()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if there, err = net.DialUnix("unix", nil, addr); err != nil {
		t.Fatal(err)
	}
	if here, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

func TestTheLatestBridgeFencesOutThoseBefore(t *testing.T) {
	var d currentBridge
	first, _ := joined(t)
	second, far := joined(t)
	third, _ := joined(t)
	if !d.replace(first, 1) || !d.replace(third, 3) {
		t.Fatal("a newer one was not let in")
	}
	if _, err := first.Write([]byte("x")); err == nil {
		t.Error("the first one can still be written to")
	}
	if d.replace(second, 2) {
		t.Error("one that came before was let in after it")
	}
	if _, err := far.Write([]byte("x")); err != nil {
		t.Errorf("one that was not let in is its caller's to close: %v", err)
	}
	if _, err := third.Write([]byte("x")); err != nil {
		t.Errorf("the latest one: %v", err)
	}
}

func TestWhoIsThereIsToldByTheKernel(t *testing.T) {
	here, _ := joined(t)
	who, err := peer(here)
	if err != nil || int(who.Uid) != os.Getuid() || int(who.Pid) != os.Getpid() {
		t.Errorf("%+v, %v", who, err)
	}
}
