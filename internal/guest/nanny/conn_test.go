//go:build linux

package nanny

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A late signal and the start of the next command may arrive in one read.
func TestFilesGoWithTheirOwnMessage(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	here, there := conn{fd: pair[0]}, conn{fd: pair[1]}
	defer unix.Close(here.fd)
	defer unix.Close(there.fd)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, m := range []struct {
		req   request
		files []int
	}{
		{request{Signal: 9, Of: 1, Tree: true}, nil},
		{request{Start: &Start{Path: []byte("one"), Files: 2}}, []int{int(r.Fd()), int(w.Fd())}},
		{request{List: true}, nil},
		{request{Start: &Start{Path: []byte("two"), Files: 1}}, []int{int(r.Fd())}},
	} {
		if err := here.send(&m.req, m.files); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	for range 4 {
		var req request
		if err := there.receive(&req); err != nil {
			t.Fatal(err)
		}
		n := 0
		if req.Start != nil {
			fds := there.take(req.Start.Files)
			n = len(fds)
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}
		got = append(got, n)
	}
	if want := []int{0, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("files of the messages: %v, want %v", got, want)
	}
	if len(there.fds) > 0 {
		t.Errorf("%d files are left over", len(there.fds))
	}
}

// A nanny that dies may or may not have started the process. Only a process that certainly did not run may be started
// again.
func TestWhatMayHaveRunIsNotCalledDead(t *testing.T) {
	for name, c := range map[string]struct {
		read, tell bool
		want       error
	}{
		"it never read the start":                   {false, false, ErrDead},
		"it read it":                                {true, false, ErrLost},
		"it read it, and not what came behind":      {true, true, ErrLost},
		"it read neither, which nobody can be sure": {false, true, ErrLost},
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		n, there := &Nanny{conn: conn{fd: pair[0]}}, conn{fd: pair[1]}
		if err := n.Begin(&Start{Mute: true}, nil); err != nil {
			t.Fatal(err)
		}
		if c.read {
			if err := there.receive(&request{}); err != nil {
				t.Fatal(err)
			}
		}
		if n.QueueEmpty() != c.read {
			t.Errorf("%s: queue empty: %v", name, !c.read)
		}
		if c.tell {
			if err := n.RequestPID(); err != nil {
				t.Fatal(err)
			}
		}
		_ = unix.Close(there.fd)
		_, err = n.Next()
		if err = n.StartError(err); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		_ = unix.Close(n.conn.fd)
	}
}
