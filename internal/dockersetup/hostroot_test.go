package dockersetup

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnImageFromThisMachineHasNothingOfItsUsers(t *testing.T) {
	var buf bytes.Buffer
	err := WriteHostRoot(t.Context(), &buf)
	if errors.Is(err, sandbox.ErrNotSupported) { // not Linux
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	r := tar.NewReader(&buf)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := "/" + strings.TrimSuffix(h.Name, "/")
		have[name] = true
		if h.Mode&0o6000 != 0 {
			t.Errorf("%s has set-uid", name)
		}
		for _, secret := range []string{"/etc/shadow", "/root/", "/home/user/", "/etc/ssh", "/etc/ssl/private"} {
			if strings.HasPrefix(name, secret) {
				t.Errorf("%s is in it", name)
			}
		}
	}
	for _, name := range []string{"/usr/bin/bash", "/usr/bin/python3", "/etc/passwd", "/home/user", "/tmp"} {
		if !have[name] {
			t.Errorf("%s is not in it", name)
		}
	}
}
