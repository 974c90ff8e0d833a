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

// joined returns the two ends of a socket.
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
		t.Fatal("a newer attachment was rejected")
	}
	if _, err := first.Write([]byte("x")); err == nil {
		t.Error("the first connection can still be written to")
	}
	if d.replace(second, 2) {
		t.Error("an older attachment replaced a newer one")
	}
	if _, err := far.Write([]byte("x")); err != nil {
		t.Errorf("a rejected connection was closed, which is up to the caller: %v", err)
	}
	if _, err := third.Write([]byte("x")); err != nil {
		t.Errorf("the latest connection: %v", err)
	}
}

func TestWhoIsThereIsToldByTheKernel(t *testing.T) {
	here, _ := joined(t)
	who, err := peer(here)
	if err != nil || int(who.Uid) != os.Getuid() || int(who.Pid) != os.Getpid() {
		t.Errorf("%+v, %v", who, err)
	}
}
