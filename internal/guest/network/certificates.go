//go:build linux

package network

import (
	"bytes"
	"encoding/pem"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxBundle bounds the certificates of an image. The bundle of Mozilla has 0.2 MB.
const maxBundle = 4 << 20

// imageBundles are the places where images have the certificates that they trust.
var imageBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // Alpine
}

// WriteCertificates writes the certificates that the image trusts, and those of the host that it lacks, to a file.
// first is a bundle that the image has configured; empty: none.
func WriteCertificates(path, first string, host []byte) error {
	bundles := imageBundles
	if first != "" {
		bundles = append([]string{first}, bundles...)
	}
	var image []byte
	for _, b := range bundles {
		if image = readBundle(b); image != nil {
			break
		}
	}
	merged := mergeCertificates(image, host)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, merged) {
		return nil
	}
	temporary := path + ".new" // so that no program reads half of it
	if err := os.WriteFile(temporary, merged, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// readBundle returns the content of a bundle, or nil if it is missing or unusable. The image may be hostile.
func readBundle(path string) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block otherwise
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxBundle {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBundle))
	if err != nil || len(text) == 0 {
		return nil
	}
	return text
}

// mergeCertificates adds the certificates that image lacks.
func mergeCertificates(image, host []byte) []byte {
	known := map[string]bool{}
	for b, rest := pem.Decode(image); b != nil; b, rest = pem.Decode(rest) {
		known[string(b.Bytes)] = true
	}
	out := bytes.NewBuffer(bytes.Clone(image))
	if len(image) > 0 && image[len(image)-1] != '\n' {
		out.WriteByte('\n')
	}
	for b, rest := pem.Decode(host); b != nil; b, rest = pem.Decode(rest) {
		if b.Type == "CERTIFICATE" && !known[string(b.Bytes)] {
			known[string(b.Bytes)] = true
			_ = pem.Encode(out, &pem.Block{Type: b.Type, Bytes: b.Bytes}) // writing to a buffer never fails
		}
	}
	return out.Bytes()
}
