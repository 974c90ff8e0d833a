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
	"github.com/recluse-dev/recluse/internal/guest/privilege"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// A container engine does not keep our stdin and stdout open, but it can start another process in the container. Such a
// process, a bridge, connects its stdin and stdout to a socket of the guest. Each bridge is one attachment, and the
// latest one replaces earlier ones.
const (
	// helloWait is how long a bridge may stay connected without a Hello of its host.
	helloWait = 30 * time.Second
	// bridgeWait is how long a bridge tries to connect to a guest that is starting, and bridgePause the time between
	// two attempts.
	bridgeWait  = 20 * time.Second
	bridgePause = 2 * time.Millisecond
	// bridgeThreads is the number of threads that a bridge may need. It creates them at its start, because code may use
	// up the processes of the container later.
	bridgeThreads = 12
	// guestPID is the pid of the guest where there are bridges: it is the first process of the container.
	guestPID = 1
)

// subcommands are the functions of the guest's binary besides being the guest, by their first argument.
var subcommands = map[string]func(args []string) error{launch.BridgeArg: bridge, launch.PackArg: pack}

// hostConn is a connection of one host: to a bridge, or through the vsock of a virtual machine.
type hostConn interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
}

// currentBridge holds the connection of the current attachment.
type currentBridge struct {
	mu    sync.Mutex
	conn  hostConn // guarded by mu
	epoch uint64   // guarded by mu; of conn
}

// replace makes c the current connection and closes the previous one. It returns false if a newer one is attached
// already.
func (d *currentBridge) replace(c hostConn, epoch uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if epoch < d.epoch {
		return false
	}
	if d.conn != nil {
		_ = d.conn.Close() // its bridge ends, and its host notices
	}
	d.conn, d.epoch = c, epoch
	return true
}

// listen serves bridges until the sandbox ends. The socket is abstract (without a file), because code that runs as our
// own user could replace a file.
func (a *Agent) listen(name string, token []byte) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for bridges: %w", err)
	}
	return a.serveConns(token, func() (hostConn, error) {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if cred, err := peer(c); err != nil || int(cred.Uid) != a.cfg.Peer {
			return nil, errors.Join(errStranger, c.Close()) // code in the sandbox must not attach
		}
		return c, nil
	})
}

// errStranger means that a connection does not come from the host.
var errStranger = errors.New("not a connection of the host")

// serveConns serves the connections that accept returns, each as one attachment.
func (a *Agent) serveConns(token []byte, accept func() (hostConn, error)) error {
	var d currentBridge
	for epoch := uint64(1); ; {
		c, err := accept()
		switch {
		case err == nil:
			go a.serveBridge(&d, c, token, epoch)
			epoch++
		case errors.Is(err, errStranger), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENFILE):
			time.Sleep(bridgePause) // temporary
		default:
			return fmt.Errorf("accept a host: %w", err)
		}
	}
}

// listenVsock serves the connections that the host makes through the monitor of a virtual machine, until the machine
// ends. fd is a listening socket. Connections are reset when the machine is restored; the socket stays.
func (a *Agent) listenVsock(fd int, token []byte) error {
	return a.serveConns(token, func() (hostConn, error) {
		c, from, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return nil, err
		}
		if vm, ok := from.(*unix.SockaddrVM); !ok || vm.CID != unix.VMADDR_CID_HOST {
			return nil, errors.Join(errStranger, unix.Close(c)) // code in the machine must not attach
		}
		return os.NewFile(uintptr(c), "vsock"), nil
	})
}

// peer returns the credentials of the peer, as the kernel reports them.
func peer(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return cred, err
}

// serveBridge serves one attachment, from its Hello to its end.
func (a *Agent) serveBridge(d *currentBridge, c hostConn, token []byte, epoch uint64) {
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(helloWait)); err != nil {
		return
	}
	current := false
	at, err := wire.NewLinkAfter(c, c, token, epoch-1).Accept(func(h *wire.Hello) *wire.Welcome {
		if current = d.replace(c, epoch); !current {
			_ = c.Close() // sending the answer then fails, which ends this attachment
			return &wire.Welcome{}
		}
		return a.welcome(h)
	})
	if err != nil || !current || c.SetReadDeadline(time.Time{}) != nil {
		return
	}
	a.serveAttachment(at)
}

// bridge connects stdin and stdout to the guest's socket until one side ends.
func bridge(args []string) error {
	// The token passes through the memory of a bridge.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	nanny.KeepThreads(bridgeThreads)
	c, err := dialGuest(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	// The host sends the token first, and only the guest may receive it.
	cred, err := peer(c)
	if err != nil {
		return err
	}
	if cred.Pid != guestPID {
		return fmt.Errorf("the socket belongs to process %d, not to the guest", cred.Pid)
	}
	ended := make(chan error, 2)
	join := func(w io.Writer, r io.Reader) {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 256<<10))
		ended <- err
	}
	go join(c, os.Stdin)
	go join(os.Stdout, c)
	<-ended // when one direction ends, the attachment is over
	return nil
}

// dialGuest connects to a guest that may still be starting.
func dialGuest(name string) (*net.UnixConn, error) {
	for deadline := time.Now().Add(bridgeWait); ; time.Sleep(bridgePause) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
		if err == nil {
			return c, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("connect to the guest: %w", err)
		}
	}
}

// pack writes an archive of directories to stdout, with the permissions of its caller.
func pack(args []string) error {
	_, err := files.New(files.Options{}).TarOut(context.Background(), "/", args, os.Stdout, files.TarOptions{})
	return err
}

// unpack extracts an archive that pack has written.
func (a *Agent) unpack(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	to, opts := a.files, files.TarOptions{}
	if a.privileges != nil { // code may be root, so files may have any owner
		to, opts.Owners = files.New(files.Options{
			SwitchUser: a.switchesUser(), SetEffective: a.privileges.SetEffective, ForRoot: privilege.ForFiles,
		}), true
	}
	_, err = to.TarIn(context.Background(), "/", "/", f, opts)
	return err
}
