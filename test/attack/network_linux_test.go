package attack

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/dockertest"
)

// TestNoNetwork tries every way out. The host listens on all of its loopback addresses and on an abstract socket; no
// connection may arrive.
func TestNoNetwork(t *testing.T) {
	sb := shared(t)
	visitors := make(chan string, 16)
	ports := map[string]int{}
	abstract := fmt.Sprintf("recluse-attack-%d", os.Getpid())
	for _, l := range []struct{ network, address string }{{"tcp4", "127.0.0.1:0"}, {"tcp4", "0.0.0.0:0"}, {"tcp6", "[::1]:0"}, {"unix", "@" + abstract}, {"unix", "/tmp/" + abstract + ".sock"}} {
		ln, err := net.Listen(l.network, l.address)
		if err != nil {
			t.Logf("%s %s: %v", l.network, l.address, err)
			continue
		}
		t.Cleanup(func() { _ = ln.Close() })
		if a, ok := ln.Addr().(*net.TCPAddr); ok {
			ports[l.address] = a.Port
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				visitors <- l.network + " " + l.address
				_ = c.Close()
			}
		}()
	}
	// The listeners work.
	c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", ports["127.0.0.1:0"]), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	<-visitors

	hostAddrs := []string{}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				hostAddrs = append(hostAddrs, n.IP.String())
			}
		}
	}
	out := py(t, sb, fmt.Sprintf(`
import socket, errno
def dial(family, address):
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(1)
    try: s.connect(address); return 'CONNECTED'
    finally: s.close()
def datagram(family, address):
    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(1)
    try: s.sendto(b'x', address); s.recv(1); return 'ANSWERED'
    finally: s.close()
def raw(kind, proto): socket.socket(kind, socket.SOCK_RAW, proto).close(); return 'OPENED'
tries = []
for a in ['8.8.8.8', '1.1.1.1', '169.254.169.254', '2852039166', '0xA9FEA9FE', '0251.0376.0251.0376', '0xa9.254.169.254', '10.0.0.1', '172.17.0.1', '192.168.0.1', '100.100.100.200', '127.0.0.1', '127.1', '0', '0.0.0.0'] + %s:
    for p in (80, 443, 53, 22, %d, %d):
        # The guest itself answers DNS on port 53 of the sandbox's loopback; its answers are tried below.
        inside = a.startswith('127.') or a in ('0', '0.0.0.0')
        if ':' not in a and not (inside and p == 53): tries.append((a, p, lambda a=a, p=p: dial(socket.AF_INET, (a, p))))
for a in ['2001:4860:4860::8888', 'fd00:ec2::254', '::1', '::ffff:127.0.0.1', '::ffff:169.254.169.254', '::ffff:a9fe:a9fe', 'fe80::1']:
    for p in (80, %d, %d): tries.append((a, p, lambda a=a, p=p: dial(socket.AF_INET6, (a, p))))
for a in ['\0%s', '/tmp/%s.sock', '/run/docker.sock', '/var/run/docker.sock', '\0/tmp/.X11-unix/X0', '/run/systemd/private']:
    tries.append((a, 0, lambda a=a: dial(socket.AF_UNIX, a)))
for a in ['8.8.8.8', '127.0.0.53', '169.254.169.253']: tries.append((a, 53, lambda a=a: datagram(socket.AF_INET, (a, 53))))
for n in ['example.com', 'metadata.google.internal', 'host.docker.internal', 'localhost.localdomain']:
    tries.append((n, 'dns', lambda n=n: 'RESOLVED %%s' %% socket.getaddrinfo(n, 80)))
for k in (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET): 
    for proto in (1, 6, 255, 3): tries.append((k, 'raw %%d' %% proto, lambda k=k, proto=proto: raw(k, proto)))
tries.append(('vsock', 0, lambda: dial(40, (2, 1024))))
import time
began = time.time()
for name, port, f in tries:
    try: r = f()
    except Exception as e: r = type(e).__name__ + ' ' + str(e)
    print(repr(name), port, r)
print('tried', len(tries), 'in', round(time.time() - began, 1))
`, strings.ReplaceAll(fmt.Sprintf("%q", hostAddrs), " ", ","), ports["127.0.0.1:0"], ports["0.0.0.0:0"], ports["127.0.0.1:0"], ports["[::1]:0"], abstract, abstract))
	t.Log(out)
	lacks(t, out, "CONNECTED", "ANSWERED", "RESOLVED", "OPENED")
	contains(t, out, "tried ")
	select {
	case v := <-visitors:
		t.Errorf("a connection from the sandbox to %s", v)
	case <-time.After(200 * time.Millisecond): // a connection in progress would have arrived
	}
	interfaces := sh(t, sb, "ls /sys/class/net; cat /proc/net/dev /proc/net/route /proc/net/tcp /proc/net/unix /etc/resolv.conf")
	lacks(t, interfaces, "eth", "ens", "docker", abstract)
	if !dockertest.Chosen() { // a Docker engine always writes one
		lacks(t, interfaces, "nameserver")
	}
	if text, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		for _, word := range strings.Fields(string(text)) {
			if net.ParseIP(word) != nil && !net.ParseIP(word).IsLoopback() {
				lacks(t, interfaces, word)
			}
		}
	}
}

// TestNeighboursDoNotMeet checks that two sandboxes share neither abstract sockets nor shared memory, loopback nor
// PIDs.
func TestNeighboursDoNotMeet(t *testing.T) {
	a, b := shared(t), neighbour(t)
	py(t, a, `
import socket, os, ctypes
_meet = socket.socket(socket.AF_UNIX); _meet.bind('\0recluse-meet'); _meet.listen()
_tcp = socket.socket(); _ok = True
try: _tcp.bind(('127.0.0.1', 7777)); _tcp.listen()
except OSError: pass
open('/dev/shm/recluse-meet', 'w').write('x')
open('/tmp/recluse-meet', 'w').write('x')
ctypes.CDLL(None).shmget(0x1234, 4096, 0o1666)`)
	out := py(t, b, `
import socket, os, ctypes
for family, address in ((socket.AF_UNIX, '\0recluse-meet'), (socket.AF_INET, ('127.0.0.1', 7777))):
    try: socket.socket(family).connect(address); print('MET', address)
    except OSError as e: print(e)
print(['MET ' + p for p in ('/dev/shm/recluse-meet', '/tmp/recluse-meet') if os.path.exists(p)])
print('MET shm' if ctypes.CDLL(None).shmget(0x1234, 4096, 0) >= 0 else 'no shm')`)
	lacks(t, out, "MET")
	py(t, a, "_meet.close(); _tcp.close(); os.unlink('/dev/shm/recluse-meet'); os.unlink('/tmp/recluse-meet')")
}
