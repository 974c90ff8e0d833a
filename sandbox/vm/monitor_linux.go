package vm

import (
	"context"
	"net"
	"os"
	"strconv"
)

// monitor is a program that runs a virtual machine. All methods may be called by another program than the one that
// started the machine: what they need is in its directory.
type monitor interface {
	// program returns the path of the monitor.
	program() string
	// version returns the version of the installed program.
	version(ctx context.Context) (string, error)
	// start starts a machine, or continues one from the state in m.From. It returns when the guest has opened its port.
	// began is called with the process at once, so that it is known whatever happens next.
	start(ctx context.Context, m *hardware, began func(pid int) error) error
	// dial connects to the stream.
	dial(ctx context.Context, dir string) (net.Conn, error)
	// pause stops the processors, resume continues them. Both succeed if there is nothing to do.
	pause(ctx context.Context, dir string) error
	resume(ctx context.Context, dir string) error
	// save writes the state of a paused machine to a file.
	save(ctx context.Context, dir string, to *os.File) error
}

// hardware describes a machine to a monitor.
type hardware struct {
	dir       string // private directory of the monitor, with its sockets and configFile
	log       string // file for the messages of the monitor, outside dir
	kernel    string
	initramfs string
	root      string
	memory    int64 // bytes
	cpus      int
	kvm       bool
	uid       int // user of the monitor; 0: that of this program
	from      *os.File
}

// kernelArgs is the command line of the kernel. A kernel that cannot continue ends the machine.
const kernelArgs = "console=ttyS0 quiet loglevel=3 panic=-1 net.ifnames=0 rdinit=/init -- boot"

// configFile is the disk with the guest's configuration, in the directory of the monitor.
const configFile = "config"

// dialIn connects to a socket in a directory. The path of a socket may have only about 100 bytes, so it leads through
// a descriptor of the directory.
func dialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(d.Fd()))+"/"+name)
}
