//go:build linux

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's buffers of a connection inside, as {least, first, most}: those that neither side reads hold no more than
// the first size. While programs read, gVisor makes them larger, up to the last size. It begins with 1 MB, so that a
// thousand connections could hold more than the sandbox may use.
const (
	receiveBuffers = "4096 32768 65536"
	sendBuffers    = "4096 32768 65536"
)

// limitBuffers sets the sizes of buffers of sockets that are made from now on. Where it is not permitted, the kernel is
// one that counts the buffers as memory of the sandbox and keeps them small when memory is short.
func limitBuffers() {
	_ = os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte(receiveBuffers), 0)
	_ = os.WriteFile("/proc/sys/net/ipv4/tcp_wmem", []byte(sendBuffers), 0)
}

// configure gives lo an address and a default route, and redirects connections to the port. It may be called
// again.
func configure(port int) error {
	if err := setTables(port); err != nil { // first, because nothing is changed if this is not permitted
		return fmt.Errorf("redirect connections: %w", err)
	}
	if err := addAddress(); err != nil {
		return fmt.Errorf("add the address of the network: %w", err)
	}
	if err := addRoute(); err != nil {
		return fmt.Errorf("add the route of the network: %w", err)
	}
	return nil
}

// loIndex is the index of lo in every network namespace.
const loIndex = 1

// addAddress adds the address that programs need to ask for IPv4 addresses at all (AI_ADDRCONFIG): with 127.0.0.1
// alone, glibc believes that there is no IPv4.
func addAddress() error {
	a := own.AsSlice()
	msg := binary.NativeEndian.AppendUint32([]byte{unix.AF_INET, byte(own.BitLen()), 0, unix.RT_SCOPE_UNIVERSE}, loIndex)
	msg = appendAttr(msg, unix.IFA_LOCAL, a)
	msg = appendAttr(msg, unix.IFA_ADDRESS, a)
	return netlink(unix.RTM_NEWADDR, msg)
}

func addRoute() error {
	msg := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST}
	msg = binary.NativeEndian.AppendUint32(msg, 0)
	msg = appendAttr(msg, unix.RTA_DST, make([]byte, 4)) // gVisor wants a destination or a gateway
	msg = appendAttr(msg, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loIndex))
	return netlink(unix.RTM_NEWROUTE, msg)
}

func appendAttr(msg []byte, typ uint16, data []byte) []byte {
	msg = binary.NativeEndian.AppendUint16(msg, uint16(unix.SizeofRtAttr+len(data)))
	msg = binary.NativeEndian.AppendUint16(msg, typ)
	return append(msg, data...)
}

// netlink sends one request that creates something. That it exists already is no error.
func netlink(typ uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, typ)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg = append(msg, make([]byte, 8)...) // sequence number and pid
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, os.Getpagesize())
	k, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil {
		return err
	}
	if k < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(reply[4:]) != unix.NLMSG_ERROR {
		return errors.New("unexpected reply from the kernel")
	}
	code := int32(binary.NativeEndian.Uint32(reply[unix.SizeofNlMsghdr:]))
	if code == 0 || unix.Errno(-code) == unix.EEXIST {
		return nil
	}
	return unix.Errno(-code)
}

// originalDestination returns the address that a redirected connection was for.
func originalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var to unix.RawSockaddrInet4
	var got error
	err = raw.Control(func(fd uintptr) {
		size := uint32(unsafe.Sizeof(to))
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_IP, unix.SO_ORIGINAL_DST,
			uintptr(unsafe.Pointer(&to)), uintptr(unsafe.Pointer(&size)), 0)
		if e != 0 {
			got = e
		}
	})
	if err := errors.Join(err, got); err != nil {
		return netip.AddrPort{}, err
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&to.Port))[:])
	return netip.AddrPortFrom(netip.AddrFrom4(to.Addr), port), nil
}
