//go:build linux

package network

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// maxPorts bounds the ports in a list, because a list must fit into one frame.
	maxPorts = 1024
	// The kernel reports no event when a program begins to listen, so Await polls, first often and then less so.
	firstPoll, lastPoll = 5 * time.Millisecond, 50 * time.Millisecond
)

// listener is a socket that listens.
type listener struct {
	at    netip.AddrPort
	inode string
}

// Ports returns the TCP ports on which programs listen, but not those of the guest.
func Ports(find func(pid int) string) []*wire.Port { return describe(listeningSockets(), find) }

// AwaitPort returns the entries of a port as soon as a program listens on it, or none when ctx ends.
func AwaitPort(ctx context.Context, port uint32, find func(pid int) string) []*wire.Port {
	other := func(l listener) bool { return uint32(l.at.Port()) != port || !local(l.at.Addr()) }
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		if open := slices.DeleteFunc(listeningSockets(), other); len(open) > 0 {
			if found := describe(open, find); len(found) > 0 {
				return found
			}
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// local reports whether Dial reaches a program that listens on the address.
func local(a netip.Addr) bool {
	return a.IsUnspecified() || a == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || a == netip.IPv6Loopback()
}

// describe returns the entries of listeners of programs inside. A sandbox without a kernel or a container of its own
// also has the listeners of its host; only processes below the guest are inside then.
func describe(all []listener, find func(pid int) string) []*wire.Port {
	owners := ownersOf(all)
	self := os.Getpid()
	var out []*wire.Port
	seen := map[netip.AddrPort]bool{}
	for _, l := range all {
		pids := owners[l.inode]
		pid := 0
		switch i := slices.IndexFunc(pids, func(p int) bool { return p != self && below(p, self) }); {
		case i >= 0:
			pid = pids[i]
		case self != 1 || len(pids) > 0: // of the host, or our own
			continue
		}
		if seen[l.at] || len(out) == maxPorts {
			continue
		}
		seen[l.at] = true
		port := &wire.Port{Port: uint32(l.at.Port()), Address: l.at.Addr().String()}
		if p, ok := proc.Get(pid); pid != 0 && ok {
			port.Owner = &wire.Owner{Op: find(pid), Pid: int32(pid), Command: proc.Command(p)}
		}
		out = append(out, port)
	}
	return out
}

// below reports whether a process descends from another one.
func below(pid, root int) bool {
	for pid > 1 {
		p, ok := proc.Get(pid)
		if !ok {
			return false
		}
		if pid = p.PPID; pid == root {
			return true
		}
	}
	return false
}

// ownersOf returns the processes that have each socket open, by inode.
func ownersOf(all []listener) map[string][]int {
	wanted := map[string]bool{}
	for _, l := range all {
		wanted["socket:["+l.inode+"]"] = true
	}
	out := map[string][]int{}
	pids, err := proc.PIDs()
	if err != nil || len(wanted) == 0 {
		return out
	}
	slices.Sort(pids) // the process that opened a socket comes before those that inherited it
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			link, err := os.Readlink(dir + fd.Name())
			if err != nil || !wanted[link] {
				continue
			}
			inode := strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")
			if held := out[inode]; len(held) == 0 || held[len(held)-1] != pid {
				out[inode] = append(held, pid)
			}
		}
	}
	return out
}

// listeningSockets returns the sockets that listen, sorted by port and address.
func listeningSockets() []listener {
	out := append(readListeners("/proc/net/tcp"), readListeners("/proc/net/tcp6")...)
	slices.SortFunc(out, func(a, b listener) int {
		return cmp.Or(cmp.Compare(a.at.Port(), b.at.Port()), a.at.Addr().Compare(b.at.Addr()))
	})
	return out
}

// stateListen is the state of a socket that listens, in /proc/net/tcp.
const stateListen = "0A"

func readListeners(file string) []listener {
	f, err := os.Open(file)
	if err != nil { // there is no IPv6
		return nil
	}
	defer f.Close()
	var out []listener
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		if at, ok := parseAddress(fields[1]); ok {
			out = append(out, listener{at, fields[9]})
		}
	}
	return out
}

// parseAddress parses an address of /proc/net/tcp: words in the byte order of the machine, and the port.
func parseAddress(s string) (netip.AddrPort, bool) {
	addr, number, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(addr)
	port, failed := strconv.ParseUint(number, 16, 16)
	if err != nil || failed != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(port)), ok
}
