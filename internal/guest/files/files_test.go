//go:build linux

package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testUID = 1000
	testGID = 1000
)

// plain is an FS without the user switch, as in the local backend.
func plain() *FS { return New(Options{}) }

// switched is an FS that acts for uid 1000.
func switched(t testing.TB) *FS {
	t.Helper()
	if os.Getuid() != 0 {
		testneed.Lacking(t, "the user switch needs root")
	}
	return New(Options{UID: testUID, GID: testGID, SwitchUser: true})
}

// dir returns a directory that belongs to the test user where there is one.
func dir(t testing.TB) string {
	t.Helper()
	d := t.TempDir()
	must(t, os.Chmod(filepath.Dir(d), 0o755))
	if os.Getuid() == 0 {
		must(t, os.Chown(d, testUID, testGID))
	}
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(content), 0o644))
	if os.Getuid() == 0 {
		must(t, os.Chown(name, testUID, testGID))
	}
}

func get(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return string(b)
}

func wantKind(t testing.TB, err error, kind Kind) {
	t.Helper()
	if KindOf(err) != kind {
		t.Errorf("kind = %q (%v), want %q", KindOf(err), err, kind)
	}
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Errorf("%T is not an *Error", err)
	}
}

func (f *FS) readString(root, path string, offset, limit int64) (string, error) {
	var b bytes.Buffer
	_, n, err := f.Read(context.Background(), root, path, offset, limit, &b)
	if err == nil && n != int64(b.Len()) {
		err = fmt.Errorf("n = %d, got %d", n, b.Len())
	}
	return b.String(), err
}

func (f *FS) writeString(root, path, content string, opts WriteOptions) error {
	_, err := f.Write(context.Background(), root, path, strings.NewReader(content), opts)
	return err
}

// only checks that a directory contains exactly the given names, and so no temporary files.
func only(t testing.TB, d string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(d)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("%s has %q, want %q", d, got, names)
	}
}
