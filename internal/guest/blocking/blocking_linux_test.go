package blocking

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
	})
	return fds[0], fds[1]
}

// unbroken repeats a call that a signal has interrupted; the runtime itself sends such signals.
func unbroken(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func TestPoll(t *testing.T) {
	r, w := pipe(t)
	fds := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
	for _, wait := range []int{0, 5} {
		if n, err := unbroken(func() (int, error) { return Poll(fds, wait) }); n != 0 || err != nil {
			t.Errorf("an empty pipe, %d ms: %d, %v", wait, n, err)
		}
	}
	time.AfterFunc(20*time.Millisecond, func() { _, _ = unix.Write(w, []byte("x")) })
	if n, err := unbroken(func() (int, error) { return Poll(fds, -1) }); n != 1 || err != nil || fds[0].Revents != unix.POLLIN {
		t.Errorf("%d, %v, %+v", n, err, fds)
	}
	if n, err := unbroken(func() (int, error) { return Poll(nil, 1) }); n != 0 || err != nil {
		t.Errorf("no descriptors: %d, %v", n, err)
	}
}

func TestRead(t *testing.T) {
	r, w := pipe(t)
	time.AfterFunc(20*time.Millisecond, func() { _, _ = unix.Write(w, []byte("hello")) })
	p := make([]byte, 100)
	if n, err := unbroken(func() (int, error) { return Read(r, p) }); err != nil || string(p[:n]) != "hello" {
		t.Errorf("%q, %v", p[:max(n, 0)], err)
	}
	if n, err := Read(-1, p); n != -1 || !errors.Is(err, unix.EBADF) {
		t.Errorf("invalid descriptor: %d, %v", n, err)
	}
}

func TestWait4(t *testing.T) {
	child, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "sleep 0.05; exit 7"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	var ru unix.Rusage
	pid, err := unbroken(func() (int, error) { return Wait4(child.Pid, &ws, 0, &ru) })
	if err != nil || pid != child.Pid || ws.ExitStatus() != 7 || ru.Maxrss == 0 {
		t.Errorf("%d %v %v %+v", pid, err, ws, ru)
	}
	if n, err := Wait4(pid, nil, 0, nil); n != -1 || !errors.Is(err, unix.ECHILD) {
		t.Errorf("no child: %d, %v", n, err)
	}
	_ = child.Release()
}

func TestRecvmsg(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	r, _ := pipe(t)
	time.AfterFunc(20*time.Millisecond, func() { _ = unix.Sendmsg(pair[0], []byte("hello"), unix.UnixRights(r), nil, 0) })
	p, oob := make([]byte, 100), make([]byte, unix.CmsgSpace(4))
	oobn := 0
	n, err := unbroken(func() (n int, err error) {
		n, oobn, err = Recvmsg(pair[1], p, oob, unix.MSG_CMSG_CLOEXEC)
		return n, err
	})
	if err != nil || string(p[:n]) != "hello" {
		t.Fatalf("%q, %v", p[:max(n, 0)], err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("%v, %v", msgs, err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%v, %v", fds, err)
	}
	_ = unix.Close(fds[0])
	_ = unix.Close(pair[0])
	if n, _, err := Recvmsg(pair[1], p, oob, 0); n != 0 || err != nil {
		t.Errorf("the end: %d, %v", n, err)
	}
	if n, _, err := Recvmsg(-1, p, nil, 0); n != -1 || !errors.Is(err, unix.EBADF) {
		t.Errorf("no socket: %d, %v", n, err)
	}
}

// With one P, other goroutines and garbage collections run while many goroutines wait, and the memory of the waiting
// calls is not moved.
func TestManyWaitOnOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var all sync.WaitGroup
	var writers []int
	for i := range 50 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, pair[0])
		all.Go(func() {
			defer unix.Close(pair[1])
			var got []byte
			for {
				p := make([]byte, 64)
				n, err := unbroken(func() (int, error) {
					n, _, err := Recvmsg(pair[1], p, nil, 0)
					return n, err
				})
				if n <= 0 {
					if want := strings.Repeat(string(rune('a'+i%26)), 200); err != nil || string(got) != want {
						t.Errorf("%q, %v", got, err)
					}
					return
				}
				got = append(got, p[:n]...)
				deep(100)
			}
		})
	}
	for round := range 20 {
		for i, fd := range writers {
			if _, err := unix.Write(fd, []byte(strings.Repeat(string(rune('a'+i%26)), 10))); err != nil {
				t.Error(err)
			}
		}
		if round%5 == 0 {
			runtime.GC()
		}
		for fd := 0; fd < len(writers); { // until the pipes are empty: then all readers wait again
			if unread, err := unix.IoctlGetInt(writers[fd], unix.SIOCOUTQ); err != nil || unread == 0 {
				fd++
				continue
			}
			runtime.Gosched()
		}
	}
	for _, fd := range writers {
		_ = unix.Shutdown(fd, unix.SHUT_WR)
	}
	all.Wait()
	for _, fd := range writers {
		_ = unix.Close(fd)
	}
}

// deep makes a stack grow.
func deep(n int) int {
	var pad [256]byte
	if n == 0 {
		return os.Getpid() & int(pad[0])
	}
	return deep(n-1) + int(pad[n%256])
}
