//go:build linux

package gvisor

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// site is the servers that real programs in a sandbox use, on an address of this test. All names below site.test lead
// there.
type site struct {
	addr netip.Addr
	dir  string
}

func (s *site) LookupNetIP(_ context.Context, network, name string) ([]netip.Addr, error) {
	if name = strings.TrimSuffix(name, "."); strings.HasSuffix(name, ".site.test") {
		return []netip.Addr{s.addr}, nil
	}
	return net.DefaultResolver.LookupNetIP(context.Background(), network, name)
}

// newSite starts a web server with TLS, and returns what a sandbox needs to trust it.
func newSite(t *testing.T) (s *site, ca []byte) {
	t.Helper()
	s = &site{addr: netip.AddrFrom4([4]byte{127, byte(1 + mathrand.IntN(200)), byte(mathrand.IntN(256)), 30}), dir: t.TempDir()}
	cert, ca := certificate(t)
	s.repository(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s", r.Host) })
	mux.Handle("/git/", &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Root: "/git",
		Env:  []string{"GIT_PROJECT_ROOT=" + s.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	})
	mux.HandleFunc("/simple/tiny/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>`)
	})
	mux.HandleFunc("/tiny-1.0-py3-none-any.whl", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel(t)) })
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close()
	var err error
	if server.Listener, err = net.Listen("tcp4", netip.AddrPortFrom(s.addr, 443).String()); err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return s, ca
}

// certificate returns a certificate for names below site.test, and that of its authority.
func certificate(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test"},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := *authority
	leaf.SerialNumber, leaf.IsCA, leaf.DNSNames = big.NewInt(2), false, []string{"*.site.test"}
	leaf.Subject.CommonName, leaf.KeyUsage = "site", x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &leaf, authority, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca
}

// repository makes a git repository with one commit.
func (s *site) repository(t *testing.T) {
	t.Helper()
	script := `git init -q -b main work && cd work && echo "kept in git" > file && git add file &&
git -c user.name=t -c user.email=t@site.test commit -qm one && cd .. && git clone -q --bare work repo.git`
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// wheel returns a Python package with one module.
func wheel(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range [][2]string{
		{"tiny.py", "x = 'from a wheel'\n"},
		{"tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"},
		{"tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Error(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Error(err)
	}
	return b.Bytes()
}

// daemon runs a server until the test ends, and waits until it listens.
func (s *site) daemon(t *testing.T, port uint16, as *syscall.Credential, argv ...string) {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		testneed.Lacking(t, argv[0], err)
	}
	cmd := exec.CommandContext(t.Context(), path, argv[1:]...)
	var log bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	testneed.Await(t, argv[0]+" listens", func() bool {
		c, err := net.Dial("tcp4", netip.AddrPortFrom(s.addr, port).String())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// sandboxOf returns a sandbox that may connect as the rules say and trusts the site, and a function that runs a shell
// script in it and wants some output.
func (s *site) sandboxOf(t *testing.T, ca []byte, network v1.Network) (*sandbox.Sandbox, func(name, script, want string)) {
	t.Helper()
	b := testBackend(t)
	b.opts.Network = sandbox.NetworkOptions{Resolver: s, FloorExcept: s.except(t)}
	const file = v1.DefaultHome + "/ca.pem"
	spec := sandbox.Spec{Network: network}
	if ca != nil {
		spec.Env = map[string]string{}
		for _, v := range []string{
			"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "PIP_CERT",
		} {
			spec.Env[v] = file
		}
	}
	sb := open(t, b, spec)
	if ca != nil {
		if _, err := sb.Files().Write(t.Context(), file, bytes.NewReader(ca), sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return sb, func(name, script, want string) {
		t.Run(name, func(t *testing.T) {
			v, err := sb.Run(t.Context(), sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{Timeout: 3 * time.Minute}})
			if err != nil {
				t.Fatal(err)
			}
			if !v.OK() || !strings.Contains(v.Stdout.String(), want) {
				t.Errorf("%s: %v\n%s\n%s\n%+v", script, v, v.Stdout, v.Stderr, v.Network)
			}
		})
	}
}

// except returns what an operator opens in the floor: the address of the site, and those of the registries that this
// host is configured with, which may be special ones.
func (s *site) except(t *testing.T) (list []netip.Prefix) {
	t.Helper()
	list = []netip.Prefix{netip.PrefixFrom(s.addr, 32)}
	for _, name := range []string{npmRegistry(t), aptHost(t)} {
		if name == "" {
			continue
		}
		addrs, _ := net.DefaultResolver.LookupNetIP(t.Context(), "ip", name) // without them the registry is public, or missing
		for _, a := range addrs {
			list = append(list, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		}
	}
	return list
}

func TestProgramsWithTLS(t *testing.T) {
	s, ca := newSite(t)
	sb, want := s.sandboxOf(t, ca, v1.Network{Rules: []v1.NetworkRule{"deny other.site.test", "allow *.site.test"}})
	want("curl", "curl -sS https://web.site.test/", "hello web.site.test")
	want("git over https", "git clone -q https://git.site.test/git/repo.git https && cat https/file", "kept in git")
	want("a denied host is denied in words", "curl -sS http://other.site.test/ https://other.site.test/ 2>&1; true", "alert access denied")
	if !testneed.AllTests() {
		return
	}
	want("node", `node -e 'fetch("https://web.site.test/").then(r => r.text()).then(console.log)'`, "hello web.site.test")
	want("pip", "python3 -m pip install -q --no-cache-dir --break-system-packages --target p --index-url https://pypi.site.test/simple tiny && PYTHONPATH=p python3 -c 'import tiny; print(tiny.x)'", "from a wheel")
	want("pip for all programs", "pip install -q --no-cache-dir --index-url https://pypi.site.test/simple tiny && cd / && python3 -c 'import tiny; print(tiny.x, tiny.__file__)'", "from a wheel /usr/local/lib/")
	want("a websocket", `python3 - <<'END'
import os, socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(('ws.site.test', 443)), server_hostname='ws.site.test')
s.sendall(b'GET /ws HTTP/1.1\r\nHost: ws.site.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
assert b'101' in s.recv(4096)
s.sendall(b'\x81\x85\0\0\0\0hello')
print(s.recv(100))
END`, `b'\x81\x05hello'`)
	program := filepath.Join(t.TempDir(), "load")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/recluse-dev/recluse/bench/load")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := sb.Files().Write(t.Context(), v1.DefaultHome+"/load", f, sandbox.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	// It wants more bytes than the page has, and says how many it got.
	want("a Go program", "./load https://web.site.test connect 1 2>&1; true", "200 OK: 19 bytes")
}

func TestProgramsOfOtherProtocols(t *testing.T) {
	testneed.All(t, "TestProgramsWithTLS and TestNamesAreReachedAsThePolicyAllows use the same connections")
	testneed.Root(t, "a server of ssh")
	s, ca := newSite(t)
	sb, want := s.sandboxOf(t, ca, v1.Network{Rules: []v1.NetworkRule{
		"allow git.site.test:2222", "allow db.site.test:5432", "allow cache.site.test:6379",
	}})
	t.Run("ssh", func(t *testing.T) {
		for _, name := range []string{"host", "user"} {
			out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, name)).CombinedOutput()
			if err != nil {
				testneed.Lacking(t, "ssh-keygen", err, string(out))
			}
		}
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
		s.daemon(t, 2222, nil, "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", filepath.Join(s.dir, "host"), "-o", "ListenAddress="+s.addr.String()+":2222", "-o", "UsePAM=no",
			"-o", "PidFile=none", "-o", "StrictModes=no", "-o", "PermitRootLogin=yes", "-o", "AuthorizedKeysFile="+filepath.Join(s.dir, "user.pub"))
		key, err := os.Open(filepath.Join(s.dir, "user"))
		if err != nil {
			t.Fatal(err)
		}
		defer key.Close()
		if _, err := sb.Files().Write(t.Context(), v1.DefaultHome+"/key", key, sandbox.WriteOptions{Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		want("git", `GIT_SSH_COMMAND='ssh -i key -p 2222 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null' git clone -q root@git.site.test:`+
			filepath.Join(s.dir, "repo.git")+` ssh && cat ssh/file`, "kept in git")
	})
	t.Run("redis", func(t *testing.T) {
		s.daemon(t, 6379, nil, "redis-server", "--bind", s.addr.String(), "--port", "6379", "--save", "", "--protected-mode", "no")
		want("redis-cli", "redis-cli -h cache.site.test set a 41 && redis-cli -h cache.site.test incr a", "42")
	})
	t.Run("postgres", func(t *testing.T) {
		bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
		u, err := user.Lookup("postgres")
		if err != nil || len(bins) == 0 {
			testneed.Lacking(t, "postgresql", err)
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		as := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		dir, err := os.MkdirTemp("", "recluse-postgres-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(bins[0], "initdb"), "-D", dir, "-A", "trust", "-U", "postgres", "--no-sync")
		cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: as}, dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.Chmod(filepath.Dir(s.dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pg_hba.conf"), []byte("host all all 127.0.0.0/8 trust\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		s.dir = dir
		s.daemon(t, 5432, as, filepath.Join(bins[0], "postgres"), "-D", dir, "-h", s.addr.String(), "-p", "5432", "-k", "")
		want("psql", bins[0]+"/psql -h db.site.test -U postgres -Atc 'select 6 * 7'", "42")
	})
}

// npmRegistry returns the registry that npm is configured with.
func npmRegistry(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "npm", "config", "get", "registry").Output()
	if err != nil {
		return ""
	}
	u, err := url.Parse(strings.TrimSpace(string(out)))
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// aptHost returns the host of the packages that apt is configured with.
func aptHost(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "apt-get indextargets --format '$(SITE)' | head -n 1").Output()
	if err != nil {
		return ""
	}
	u, err := url.Parse(strings.TrimSpace(string(out)))
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// TestPackagesFromRegistries installs from the registries that this host is configured with.
func TestPackagesFromRegistries(t *testing.T) {
	testneed.All(t, "TestProgramsWithTLS uses the same connections")
	s, _ := newSite(t)
	npm, apt := npmRegistry(t), aptHost(t)
	if npm == "" || apt == "" {
		testneed.Lacking(t, "npm and apt with a registry")
	}
	_, want := s.sandboxOf(t, nil, v1.Network{Rules: []v1.NetworkRule{v1.NetworkRule("allow " + npm), v1.NetworkRule("allow " + apt)}})
	want("npm", "npm install --no-audit --no-fund left-pad && node -e 'console.log(require(\"left-pad\")(7, 3, 0))'", "007")
	want("npm -g", "npm install -g --no-audit --no-fund left-pad && npm root -g && NODE_PATH=$(npm root -g) node -e 'console.log(require(\"left-pad\")(7, 3, 0))'", "/usr/local/lib/node_modules\n007")
	sources, err := exec.CommandContext(t.Context(), "sh", "-c",
		`apt-get indextargets --format 'deb [trusted=yes] $(SITE) $(RELEASE) $(COMPONENT)' | sort -u | grep -v deb-src | head -n 1`).Output()
	if err != nil || len(sources) == 0 {
		t.Fatal("the sources of apt: ", err)
	}
	want("apt-get", "mkdir -p apt/lists/partial apt/cache/archives/partial && echo '"+strings.TrimSpace(string(sources))+"' > apt/list && "+
		"apt-get -o Dir::Etc::sourcelist=$PWD/apt/list -o Dir::Etc::sourceparts=- -o Dir::State=$PWD/apt -o Dir::State::status=/dev/null -o Dir::Cache=$PWD/apt/cache update", "Get:1")
}

// TestAptInstall installs packages of this host's distribution from the registries that it is configured with.
func TestAptInstall(t *testing.T) {
	testneed.All(t, "TestPackagesFromRegistries uses the same connections, and TestBackendSuite (root) becomes root")
	if aptHost(t) == "" {
		testneed.Lacking(t, "apt with a registry")
	}
	s, _ := newSite(t)
	for name, c := range map[string]struct {
		spec sandbox.Spec
		sudo string
	}{
		"root": {spec: sandbox.Spec{User: "root"}},
		"sudo": {spec: sandbox.Spec{Sudo: true}, sudo: "sudo "},
	} {
		t.Run(name, func(t *testing.T) {
			b := testBackend(t)
			b.opts.Network = sandbox.NetworkOptions{FloorExcept: s.except(t)}
			c.spec.Network = v1.Network{Preset: v1.NetworkPackages}
			sb := open(t, b, c.spec)
			v, err := sb.Run(t.Context(), sandbox.Command{
				Shell: c.sudo + "apt-get update && " + c.sudo + "apt-get install -y --no-install-recommends --reinstall hello && " +
					"/usr/bin/hello && dpkg -s hello | grep ^Status",
				RunOptions: sandbox.RunOptions{Timeout: 5 * time.Minute},
			})
			if err != nil {
				t.Fatal(err)
			}
			if out := v.Stdout.String(); !v.OK() || !strings.HasSuffix(out, "Hello, world!\nStatus: install ok installed\n") {
				t.Errorf("%v\n%s\n%s\n%+v", v, out, v.Stderr, v.Network)
			}
		})
	}
}

// Without a network, package managers fail at once: they look up their registry and do not try again. What they take
// longer than without a look-up is ours.
func TestPackageManagersFailAtOnceWithoutANetwork(t *testing.T) {
	sb := open(t, testBackend(t), sandbox.Spec{})
	fails := func(command, host string) time.Duration {
		t.Helper()
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: command})
		if err != nil {
			t.Fatal(err)
		}
		// The questions for addresses of both families are one look-up.
		if v.OK() || host == "" && len(v.Network) > 0 || host != "" && (len(v.Network) != 1 || v.Network[0].Host != host ||
			v.Network[0].Count > 1 || !strings.Contains(v.Network[0].Reason, "to allow it: --net packages")) {
			t.Errorf("%s: %v\n%s\n%+v", command, v, v.Stderr, v.Network)
		}
		return v.Wall
	}
	const install = "/usr/bin/python3 -m pip install x"
	fails(install, "pypi.org")
	fails("npm install left-pad", strings.TrimSuffix(npmRegistry(t), "."))
	if !testneed.AllTests() {
		return
	}
	fastest := func(command, host string) time.Duration {
		return min(fails(command, host), fails(command, host), fails(command, host))
	}
	alone, with := fastest(install+" --no-index", ""), fastest(install, "pypi.org")
	t.Logf("pip: %s; without an index: %s", with, alone)
	if with > alone+time.Second {
		t.Errorf("pip fails after %s, and without an index after %s", with, alone)
	}
}
