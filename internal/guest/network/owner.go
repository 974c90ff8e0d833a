//go:build linux

package network

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// socket is a client's socket, by its local address.
type socket struct {
	network string // tcp or udp
	local   netip.AddrPort
}

// owners are the questions for the owners of sockets. A search costs a list of all sockets and a list of the
// descriptors of at least one process. Questions that arrive during a search therefore share the next one: otherwise
// code with many connections would keep the guest busy.
type owners struct {
	mu      sync.Mutex
	running bool    // guarded by mu
	next    *search // guarded by mu; has not begun
}

// search is the search for the owners of several sockets.
type search struct {
	found map[socket]*wire.Owner
	done  chan struct{}
}

// owner returns the process that has a socket, as far as it can be found.
func (n *Network) owner(s socket) *wire.Owner {
	o := &n.owners
	o.mu.Lock()
	if o.next == nil {
		o.next = &search{found: map[socket]*wire.Owner{}, done: make(chan struct{})}
	}
	q := o.next
	q.found[s] = nil
	first := !o.running
	o.running = true
	o.mu.Unlock()
	if first && n.searchNext() {
		go func() {
			for n.searchNext() {
			}
		}()
	}
	<-q.done
	return q.found[s]
}

// searchNext answers the questions that wait. It reports whether more have arrived meanwhile.
func (n *Network) searchNext() bool {
	o := &n.owners
	o.mu.Lock()
	q := o.next
	o.next = nil
	o.mu.Unlock()
	n.findOwners(q.found)
	close(q.done)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running = o.next != nil
	return o.running
}

// findOwners sets the owners of sockets. The process that opened the last connection is tried first: most programs open
// several.
func (n *Network) findOwners(found map[socket]*wire.Owner) {
	missing := inodes(found)
	last := int(n.lastOwner.Load())
	if last > 0 {
		n.findIn(last, missing, found)
	}
	if len(missing) == 0 {
		return
	}
	pids, err := proc.PIDs()
	if err != nil {
		return
	}
	for _, pid := range pids {
		if pid != last && pid != os.Getpid() && len(missing) > 0 {
			n.findIn(pid, missing, found)
		}
	}
}

// findIn moves the sockets that a process has open from missing to found.
func (n *Network) findIn(pid int, missing map[string]socket, found map[socket]*wire.Owner) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var owner *wire.Owner
	for _, e := range slices.Backward(entries) { // a new socket tends to have a high number
		link, err := os.Readlink(dir + e.Name())
		s, ok := missing[link]
		if err != nil || !ok {
			continue
		}
		if owner == nil {
			p, ok := proc.Get(pid)
			if !ok {
				return
			}
			owner = &wire.Owner{Op: n.find(pid), Pid: int32(pid), Command: proc.Command(p)}
			n.lastOwner.Store(int64(pid))
		}
		found[s] = owner
		if delete(missing, link); len(missing) == 0 {
			return
		}
	}
}

// inodes returns sockets by what a link to their descriptors says.
func inodes(of map[socket]*wire.Owner) map[string]socket {
	all := map[string]socket{}
	for _, network := range []string{"tcp", "udp"} {
		local := map[string]socket{} // by the column of the address
		for s := range of {
			addr := s.local.Addr().Unmap()
			if s.network != network || !addr.Is4() {
				continue
			}
			// The file has the bytes of the address in the byte order of the machine.
			a := addr.As4()
			local[fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a[:]), s.local.Port())] = s
			if network == "udp" { // unless it is connected
				local[fmt.Sprintf("%08X:%04X", 0, s.local.Port())] = s
			}
		}
		if len(local) > 0 {
			readInodes("/proc/net/"+network, local, all)
		}
	}
	return all
}

// readInodes adds the sockets in a file of /proc/net to all.
func readInodes(name string, local, all map[string]socket) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 64<<10), 64<<10)
	for lines.Scan() {
		_, rest, _ := bytes.Cut(lines.Bytes(), []byte(": "))
		column, _, _ := bytes.Cut(rest, []byte(" "))
		if s, ok := local[string(column)]; ok {
			if fields := bytes.Fields(rest); len(fields) > 8 {
				all["socket:["+string(fields[8])+"]"] = s
			}
		}
	}
}
