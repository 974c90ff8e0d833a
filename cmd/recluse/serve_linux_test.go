package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// certificate writes a TLS certificate for 127.0.0.1.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestServeWithTLSTracesAndAServiceManager(t *testing.T) {
	t.Parallel()
	traced := make(chan string, 64)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case traced <- r.URL.Path:
		default:
		}
	}))
	defer collector.Close()
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	hear := func(want string) {
		t.Helper()
		buf := make([]byte, 100)
		if err := told.SetReadDeadline(time.Now().Add(patienceOf)); err != nil {
			t.Fatal(err)
		}
		if n, err := told.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("told %q, %v; want %q", buf[:n], err, want)
		}
	}
	w := newWorld(t, "RECLUSE_TELEMETRY_TRACES="+collector.URL, "OTEL_BSP_SCHEDULE_DELAY=100")
	secret := strings.TrimSpace(w.must("key", "create", "ci"))
	cert, key := certificate(t)
	env := w.env
	w.env = append(env, "NOTIFY_SOCKET="+told.LocalAddr().String())
	cmd, errs := w.serveByHand("--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
	w.env = env
	hear("READY=1")
	_, rest, _ := strings.Cut(errs.String(), "listening on ")
	url, _, _ := strings.Cut(rest, "\n")
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("%q", errs)
	}
	far := &world{t: t, data: w.data, env: append(env, "RECLUSE_CLIENT_URL="+url, "RECLUSE_CLIENT_KEY="+secret, "SSL_CERT_FILE="+cert)}
	far.expect("42\n", "exec", "--session", "far", "--python", "6 * 7")
	if got := <-traced; got != "/v1/traces" {
		t.Errorf("traces came to %s", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hear("STOPPING=1")
	if got := status(t, cmd.Wait()); got != 0 {
		t.Errorf("status %d: %s", got, errs)
	}
}

func TestSecondSignalLeavesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_SERVER_DRAIN=10m")
	w.must("exec", "--session", "work", "--python", "x = 41")
	server, errs := w.serveByHand()
	// A request that does not end delays the exit.
	cmd := w.command("exec", "--session", "work", "--json", "--", "sh", "-c", "touch up; sleep 600")
	cmd.Stdin = nil
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.await("it runs", func() bool { return w.run("", "exec", "--session", "work", "--", "test", "-e", "up").status == 0 })
	for range 2 {
		if err := server.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		errs.await(t, `"msg":"exiting`) // two signals sent at once may arrive as one
	}
	if got := status(t, server.Wait()); got != 143 {
		t.Errorf("status %d: %s", got, errs)
	}
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if got := status(t, cmd.Wait()); got != 130 {
		t.Errorf("status %d", got)
	}
}
