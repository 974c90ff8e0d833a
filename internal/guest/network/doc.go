// Package network is the guest's end of the network: code inside uses ordinary sockets, the guest forwards each TCP
// connection to the host on a stream of its own, and the host decides, resolves and dials. The sandbox has no other way
// out: its only interface is lo.
//
// The guest answers DNS on 127.0.0.1:53 and gives every name an address of its own from 198.18.0.0/15. A connection to
// such an address therefore names its destination. The default route leads to lo, and all TCP connections that do not
// go to 127.0.0.0/8 are redirected to one listener, which reads the address that they were for. UDP other than DNS, and
// ICMP, are rejected at once.
//
// Where the guest may not do that (a container without capabilities), names have addresses from 127.64.0.0/10, and the
// guest listens on the ports of the policy at each of them. Other addresses are unreachable. On every backend, an HTTP
// proxy and a SOCKS5 proxy listen on 127.0.0.1.
//
// The table of names is part of a snapshot; interfaces, routes and redirection are not. After a restore they are
// missing until the host attaches and sends wire.Network: until then code sees ENETUNREACH.
package network
