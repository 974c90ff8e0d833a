package e2b

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// testDomain is the domain of the sandboxes. dns.mjs leads all its names to this machine.
const testDomain = "sandbox.test"

// authority makes a certificate authority and a certificate for the names below testDomain, and returns their files.
func authority(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	sign := func(c, parent *x509.Certificate, by *ecdsa.PrivateKey) (der []byte, own *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = own
		}
		if der, err = x509.CreateCertificate(rand.Reader, c, parent, own.Public(), by); err != nil {
			t.Fatal(err)
		}
		return der, own
	}
	of := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    time.Now().Add(-time.Hour),
			NotAfter:     time.Now().Add(24 * time.Hour),
		}
	}
	root := of(1, "test authority")
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	rootDER, rootKey := sign(root, root, nil)
	leaf := of(2, testDomain)
	leaf.DNSNames, leaf.ExtKeyUsage = []string{"*." + testDomain}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leafDER, leafKey := sign(leaf, root, rootKey)
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "EC PRIVATE KEY", keyDER)
}

func TestHostNamesWithACertificate(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	ca, cert, key := authority(t)
	s := serve(t, "RECLUSE_SERVER_TLS_CERT="+cert, "RECLUSE_SERVER_TLS_KEY="+key, "RECLUSE_SERVER_PORTS_DOMAIN=https://"+testDomain)
	if len(s.vars) != 2 || !strings.HasPrefix(s.vars["E2B_DOMAIN"], testDomain+":") {
		t.Fatalf("%q", s.vars)
	}
	s.node(sdk, "main.mjs", "NODE_EXTRA_CA_CERTS="+ca, "NODE_OPTIONS=--import=./dns.mjs")
	s.node(sdk, "domain.mjs", "NODE_EXTRA_CA_CERTS="+ca, "NODE_OPTIONS=--import=./dns.mjs")
}
