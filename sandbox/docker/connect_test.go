package docker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestTheRuntimeThatIsChosen(t *testing.T) {
	testneed.Sandboxes(t)
	if engineHost == "" {
		t.Skip("SKIPPED: " + noEngine)
	}
	for asked, want := range map[string]string{"": "runc", RuntimeAuto: "runsc", "runc": "runc"} {
		b := newBackend(t, func(o *Options) { o.Runtime = asked })
		c := b.Capabilities(t.Context())
		if notes := strings.Join(c.Notes, "; "); !strings.Contains(notes, "runtime "+want+" of ") || !strings.Contains(notes, "runc, runsc") {
			t.Errorf("%q: %s", asked, notes)
		}
	}
}

// works makes a sandbox and uses it.
func works(t *testing.T, b *Backend) {
	t.Helper()
	sb := open(t, b, sandbox.Spec{})
	if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "print('x' * 1000000)"}); err != nil || !v.OK() || v.Stdout.Produced != 1000001 {
		t.Errorf("%v, %v", v, err)
	}
}

func TestAnEngineOverSSH(t *testing.T) {
	dockertest.Config(t)
	testneed.Sandboxes(t)
	if engineHost == "" {
		t.Skip("SKIPPED: " + noEngine)
	}
	// As an SSH server would: run the command on the machine of the Docker engine.
	bin := t.TempDir()
	program := "#!/bin/sh\nexec docker -H '" + engineHost + "' system dial-stdio\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := newBackend(t, func(o *Options) { o.Host = "ssh://me@elsewhere" })
	if b.Capabilities(t.Context()).Mounts {
		t.Error("mounts are reported as possible with a remote Docker engine")
	}
	works(t, b)
}

func TestAnEngineOverTLS(t *testing.T) {
	dir := dockertest.Config(t)
	testneed.Sandboxes(t)
	if engineHost == "" {
		t.Skip("SKIPPED: " + noEngine)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := "tcp://" + listener.Addr().String()
	keys := dockertest.WriteContext(t, dir, "far", host)
	serve(t, tls.NewListener(listener, certificates(t, keys)))
	works(t, newBackend(t, func(o *Options) { o.Host, o.Context = "", "far" }))

	// Also by the environment variables.
	t.Setenv("DOCKER_HOST", host)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", keys)
	works(t, newBackend(t, func(o *Options) { o.Host = "" }))

	t.Setenv("DOCKER_TLS_VERIFY", "")
	t.Setenv("DOCKER_CERT_PATH", "")
	if h := newBackend(t, func(o *Options) { o.Host = "" }).Health(t.Context()); h.OK {
		t.Error("without a key the engine answers")
	}
}

// serve connects all clients with the Docker engine of the tests, until it is closed.
func serve(t *testing.T, l net.Listener) (cut func()) {
	var joined sync.WaitGroup
	over := make(chan struct{})
	cut = sync.OnceFunc(func() {
		close(over)
		_ = l.Close()
		joined.Wait()
	})
	t.Cleanup(cut)
	pass := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		e, err := net.Dial("unix", strings.TrimPrefix(engineHost, "unix://"))
		if err != nil {
			return
		}
		defer func() { _ = e.Close() }()
		ended := make(chan struct{}, 2)
		for _, way := range [][2]net.Conn{{e, c}, {c, e}} {
			joined.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				ended <- struct{}{}
			})
		}
		select {
		case <-ended:
		case <-over:
		}
	}
	joined.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			joined.Go(func() { pass(c) })
		}
	})
	return cut
}

func TestAnEngineThatGoesAwayIsNamed(t *testing.T) {
	b := newBackend(t, nil)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cut := serve(t, l)
	away := newBackend(t, func(o *Options) { o.Host, o.Dir, o.Instance = "unix://"+path, b.dir, b.instance })
	sb, err := sandbox.Open(t.Context(), away, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "x = 42"}); err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	cut()
	await(t, "the news", sb.Gone())
	if err := sb.Ping(t.Context()); v1.CodeOf(err) != CodeEngineLost {
		t.Errorf("reported as %v", err)
	}
	if err := sb.Close(); v1.CodeOf(err) != v1.CodeBackendMissing {
		t.Errorf("closing it: %v", err)
	}
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if v, err := again.Cell(t.Context(), sandbox.Cell{Code: "x"}); err != nil || v.Result.Text() != "42" {
		t.Errorf("its state: %v, %v", v, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// certificates makes a certificate authority with one key for both sides in dir, and returns the configuration of the
// server.
func certificates(t *testing.T, dir string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "engine"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, private := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	for name, text := range map[string][]byte{"ca.pem": cert, "cert.pem": cert, "key.pem": private} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
}
