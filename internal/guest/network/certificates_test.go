//go:build linux

package network

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func bundle(certificates ...string) []byte {
	var out bytes.Buffer
	for _, c := range certificates {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(c)})
	}
	return out.Bytes()
}

func TestCertificatesAreMerged(t *testing.T) {
	for name, c := range map[string]struct{ image, host, want []byte }{
		"the image has none":     {nil, bundle("a", "b"), bundle("a", "b")},
		"both have some":         {bundle("i", "a"), bundle("a", "b", "b"), bundle("i", "a", "b")},
		"the image has comments": {append([]byte("# mine\n"), bundle("i")...), bundle("i"), append([]byte("# mine\n"), bundle("i")...)},
		"no final newline":       {bytes.TrimSpace(bundle("i")), bundle("a"), bundle("i", "a")},
		"a key of the host":      {bundle("i"), append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("k")}), bundle("a")...), bundle("i", "a")},
		"the host has nothing":   {bundle("i"), []byte("nonsense"), bundle("i")},
	} {
		if got := mergeCertificates(c.image, c.host); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestBundlesOfAHostileImage(t *testing.T) {
	dir := t.TempDir()
	fifo, large, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "large"), filepath.Join(dir, "out")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxBundle+1); err != nil {
		t.Fatal(err)
	}
	for _, first := range []string{fifo, large, dir, "/nowhere"} {
		if readBundle(first) != nil {
			t.Errorf("%s was read", first)
		}
	}
	own := filepath.Join(dir, "own")
	if err := os.WriteFile(own, bundle("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteCertificates(file, own, bundle("a")); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, bundle("own", "a")) {
		t.Errorf("%s, %v", got, err)
	}
}
