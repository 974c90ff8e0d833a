//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/files"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Where a container engine starts us nobody holds our descriptors for long, but it can start another process beside us. Such a
// process, a bridge, joins its own stdin and stdout to a socket of ours: each bridge is one attachment, and the latest one fences
// out those before.
const (
	// helloWait is how long a bridge may stay without its host's hello.
	helloWait = 30 * time.Second
	// bridgeWait is how long a bridge looks for a guest that is only being started, and bridgePause how often.
	bridgeWait  = 20 * time.Second
	bridgePause = 2 * time.Millisecond
	// bridgeThreads is what a bridge may come to need; once code has used up the container's processes there are none to be had.
	bridgeThreads = 12
	// guestPID is the guest's where bridges are: it is the container's first process.
	guestPID = 1
)

// verbs are what the guest's binary does besides being the guest.
var verbs = map[string]func(args []string) error{launch.BridgeArg: bridge, launch.PackArg: pack}

// door is who is attached.
type door struct {
	mu      sync.Mutex
	conn    *net.UnixConn // guarded by mu
	current uint64        // guarded by mu; epoch of conn
}

// enter makes c the attachment of now, unless a newer one is there already.
func (d *door) enter(c *net.UnixConn, epoch uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if epoch < d.current {
		return false
	}
	if d.conn != nil {
		_ = d.conn.Close() // its bridge ends, and its host knows
	}
	d.conn, d.current = c, epoch
	return true
}

// listen serves bridges for as long as the sandbox lives. The socket is one without a file, which code of our own user could put
// another in place of.
func (a *Agent) listen(name string, token []byte) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return fmt.Errorf("await bridges: %w", err)
	}
	var d door
	for epoch := uint64(1); ; {
		c, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENFILE) {
				time.Sleep(bridgePause) // it passes
				continue
			}
			return fmt.Errorf("await bridges: %w", err)
		}
		if who, err := peer(c); err != nil || int(who.Uid) != a.cfg.Peer {
			_ = c.Close() // code of the sandbox: it has nothing to say here
			continue
		}
		go a.host(&d, c, token, epoch)
		epoch++
	}
}

// peer is who is at the other end, as the kernel knows it.
func peer(c *net.UnixConn) (who *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return nil, e
	}
	return who, err
}

// host serves one attachment, from its hello to its end.
func (a *Agent) host(d *door, c *net.UnixConn, token []byte, epoch uint64) {
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(helloWait)); err != nil {
		return
	}
	entered := false
	at, err := wire.NewLinkAfter(c, c, token, epoch-1).Accept(func(h *wire.Hello) *wire.Welcome {
		if entered = d.enter(c, epoch); !entered {
			_ = c.Close() // the answer then fails, and with it this attachment
			return &wire.Welcome{}
		}
		return a.welcome(h)
	})
	if err != nil || !entered || c.SetReadDeadline(time.Time{}) != nil {
		return
	}
	a.attend(at)
}

// bridge joins stdin and stdout to the guest's socket until either side ends.
func bridge(args []string) error {
	// A bridge sees the token go by.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	nanny.KeepThreads(bridgeThreads)
	c, err := reach(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	// The host's first words are the token, which is for the guest alone.
	who, err := peer(c)
	if err != nil {
		return err
	}
	if who.Pid != guestPID {
		return fmt.Errorf("not the guest is there, but process %d", who.Pid)
	}
	ended := make(chan error, 2)
	join := func(w io.Writer, r io.Reader) {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 256<<10))
		ended <- err
	}
	go join(c, os.Stdin)
	go join(os.Stdout, c)
	<-ended // whichever it was, the attachment is over
	return nil
}

// reach connects to a guest that may only be starting.
func reach(name string) (*net.UnixConn, error) {
	for end := time.Now().Add(bridgeWait); ; time.Sleep(bridgePause) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
		if err == nil {
			return c, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the guest is not there: %w", err)
		}
	}
}

// pack writes an archive of directories to stdout, with the rights of whoever calls it.
func pack(args []string) error {
	_, err := files.New(files.Options{}).TarOut(context.Background(), "/", args, os.Stdout, files.TarOptions{})
	return err
}

// unpack puts back what pack has written.
func (a *Agent) unpack(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = a.files.TarIn(context.Background(), "/", "/", f, files.TarOptions{})
	return err
}
