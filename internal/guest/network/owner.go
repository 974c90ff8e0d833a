//go:build linux

package network

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// socket is a client's socket, by its local address.
type socket struct {
	network string // tcp or udp
	local   netip.AddrPort
}

// owner returns the process that has a socket, as far as it can be found. The process that opened the last connection
// is tried first: most programs open several.
func (n *Network) owner(s socket) *wire.Owner {
	inode := s.inode()
	if inode == "" {
		return nil
	}
	last := int(n.lastOwner.Load())
	pid := 0
	if last > 0 && holds(last, inode) {
		pid = last
	} else if pids, err := proc.PIDs(); err == nil {
		for _, p := range pids {
			if p != os.Getpid() && holds(p, inode) {
				pid = p
				break
			}
		}
	}
	p, ok := proc.Get(pid)
	if pid == 0 || !ok {
		return nil
	}
	n.lastOwner.Store(int64(pid))
	return &wire.Owner{Op: n.find(pid), Pid: int32(pid), Command: proc.Command(p)}
}

// holds reports whether a process has a socket open.
func holds(pid int, inode string) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	want := "socket:[" + inode + "]"
	for _, e := range entries {
		if link, err := os.Readlink(dir + e.Name()); err == nil && link == want {
			return true
		}
	}
	return false
}

// inode returns the inode of the socket, or "".
func (s socket) inode() string {
	f, err := os.Open("/proc/net/" + s.network)
	if err != nil {
		return ""
	}
	defer f.Close()
	addr := s.local.Addr().Unmap()
	if !addr.Is4() {
		return ""
	}
	a := addr.As4()
	// The file has the bytes of the address in the byte order of the machine.
	exact := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a[:]), s.local.Port())
	anyAddr := fmt.Sprintf("%08X:%04X", 0, s.local.Port()) // of an unconnected UDP socket
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && (fields[1] == exact || s.network == "udp" && fields[1] == anyAddr) {
			return fields[9]
		}
	}
	return ""
}
