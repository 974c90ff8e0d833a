//go:build linux

package network

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The rules of iptables, in the binary form of the kernel (linux/netfilter_ipv4/ip_tables.h): no program inside is
// needed for them, and there may be none. They are replaced as a whole:
//
//	nat     OUTPUT  tcp, not to 127.0.0.0/8         to the listener
//	nat     OUTPUT  udp to port 53, not to 127/8    to our own DNS server
//	filter  OUTPUT  to our own address              accepted: ICMP errors go there
//	filter  OUTPUT  udp, not to 127.0.0.0/8         rejected: port unreachable
//	filter  OUTPUT  icmp, not to 127.0.0.0/8        rejected: port unreachable
const (
	iptSetReplace, iptGetInfo = 64, 64

	hookPrerouting, hookInput, hookForward, hookOutput, hookPostrouting, hooks = 0, 1, 2, 3, 4, 5

	sizeEntry, sizeHead = 112, 32 // struct ipt_entry; struct xt_entry_match and xt_entry_target

	invertDestination = 0x10   // IPT_INV_DSTIP
	accept            = -1 - 1 // -NF_ACCEPT - 1
	natPort           = 2      // NF_NAT_RANGE_PROTO_SPECIFIED
	rejectPort        = 3      // IPT_ICMP_PORT_UNREACHABLE, the only answer that gVisor can give
)

// setTables replaces the tables nat and filter.
func setTables(port int) error {
	// The options of iptables are set on a raw socket.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, t := range tables(port) {
		old, err := entries(fd, t.name)
		if err == nil {
			err = unix.SetsockoptString(fd, unix.SOL_IP, iptSetReplace, string(t.bytes(old)))
		}
		if err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
	}
	return nil
}

// entries returns the number of entries of an existing table. Linux refuses to replace a table without room for as many
// counters; gVisor does not count.
func entries(fd int, name string) (uint32, error) {
	var info struct { // struct ipt_getinfo
		name         [32]byte
		hooks        uint32
		first, last  [hooks]uint32
		number, size uint32
	}
	copy(info.name[:], name)
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, iptGetInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	if info.number > maxEntries {
		return 0, fmt.Errorf("it has %d entries", info.number)
	}
	return info.number, nil
}

// tables returns the tables that redirect connections to a port.
func tables(port int) []table {
	nat := table{name: "nat", hooks: []int{hookPrerouting, hookInput, hookOutput, hookPostrouting}}
	nat.output = [][]byte{
		outside(unix.IPPROTO_TCP, nil, redirect(port)),
		outside(unix.IPPROTO_UDP, udpTo(dnsPort), redirect(dnsPort)),
	}
	filter := table{name: "filter", hooks: []int{hookInput, hookForward, hookOutput}}
	filter.output = [][]byte{
		toOwn(),
		outside(unix.IPPROTO_UDP, nil, reject(rejectPort)),
		outside(unix.IPPROTO_ICMP, nil, reject(rejectPort)),
	}
	return []table{nat, filter}
}

// maxEntries is the largest number of entries that a table to be replaced may have.
const maxEntries = 64

// counters receives the counters of the replaced table, which nothing reads.
var counters [16 * maxEntries]byte

// table is a table of iptables whose only chain with rules is OUTPUT. The other chains accept.
type table struct {
	name   string
	hooks  []int
	output [][]byte // entries
}

// bytes returns the table as struct ipt_replace. It replaces a table with old entries.
func (t table) bytes(old uint32) []byte {
	var entries []byte
	var first, last [hooks]uint32 // offsets of the first entry and of the policy of each chain
	count, valid := 0, uint32(0)
	for _, h := range t.hooks {
		valid |= 1 << h
		first[h] = uint32(len(entries))
		if h == hookOutput {
			for _, e := range t.output {
				entries = append(entries, e...)
				count++
			}
		}
		last[h] = uint32(len(entries))
		entries = append(entries, entry([sizeIP]byte{}, nil, standard(accept))...)
		count++
	}
	entries = append(entries, entry([sizeIP]byte{}, nil, target("ERROR", append([]byte("ERROR"), make([]byte, 27)...)))...)
	count++
	out := make([]byte, 32, 1<<10)
	copy(out, t.name)
	for _, v := range []uint32{valid, uint32(count), uint32(len(entries))} {
		out = binary.NativeEndian.AppendUint32(out, v)
	}
	for _, offsets := range [][hooks]uint32{first, last} {
		for _, v := range offsets {
			out = binary.NativeEndian.AppendUint32(out, v)
		}
	}
	out = binary.NativeEndian.AppendUint32(out, old) // counters, which the kernel writes
	out = binary.NativeEndian.AppendUint64(out, uint64(uintptr(unsafe.Pointer(&counters))))
	return append(out, entries...)
}

// sizeIP is the size of struct ipt_ip.
const sizeIP = 84

// outside returns an entry for packets of a protocol that do not go to 127.0.0.0/8.
func outside(protocol int, match, target []byte) []byte {
	var ip [sizeIP]byte
	ip[4], ip[12] = 127, 255 // destination and its mask
	binary.NativeEndian.PutUint16(ip[80:], uint16(protocol))
	ip[83] = invertDestination
	return entry(ip, match, target)
}

// toOwn returns an entry that accepts packets to the address of lo.
func toOwn() []byte {
	var ip [sizeIP]byte
	copy(ip[4:], own.AsSlice())
	copy(ip[12:], []byte{255, 255, 255, 255})
	return entry(ip, nil, standard(accept))
}

// entry returns a struct ipt_entry with its match and target.
func entry(ip [sizeIP]byte, match, target []byte) []byte {
	out := make([]byte, sizeEntry, sizeEntry+len(match)+len(target))
	copy(out, ip[:])
	binary.NativeEndian.PutUint16(out[88:], uint16(sizeEntry+len(match)))
	binary.NativeEndian.PutUint16(out[90:], uint16(sizeEntry+len(match)+len(target)))
	return append(append(out, match...), target...)
}

// target returns a struct xt_entry_target or xt_entry_match: the head, and data padded to 8 bytes.
func target(name string, data []byte) []byte {
	size := (sizeHead + len(data) + 7) &^ 7
	out := make([]byte, size)
	binary.NativeEndian.PutUint16(out, uint16(size))
	copy(out[2:], name)
	copy(out[sizeHead:], data)
	return out
}

func standard(verdict int32) []byte {
	return target("", binary.NativeEndian.AppendUint32(nil, uint32(verdict)))
}

// redirect returns a target that leads to a port of 127.0.0.1.
func redirect(port int) []byte {
	data := binary.NativeEndian.AppendUint32(nil, 1) // one range
	data = binary.NativeEndian.AppendUint32(data, natPort)
	data = append(data, make([]byte, 8)...) // addresses
	data = binary.BigEndian.AppendUint16(data, uint16(port))
	return target("REDIRECT", binary.BigEndian.AppendUint16(data, uint16(port)))
}

func reject(with uint32) []byte {
	return target("REJECT", binary.NativeEndian.AppendUint32(nil, with))
}

// udpTo returns a match for a destination port: struct xt_udp.
func udpTo(port uint16) []byte {
	var data []byte
	for _, p := range []uint16{0, 1<<16 - 1, port, port} {
		data = binary.NativeEndian.AppendUint16(data, p)
	}
	return target("udp", append(data, 0, 0)) // no inversion
}
