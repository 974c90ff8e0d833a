//go:build linux

package user

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFind(t *testing.T) {
	table := filepath.Join(t.TempDir(), "passwd")
	text := "root:x:0:0:root:/root:/bin/sh\nbroken:x:1\nodd:x:-1:9999999999::/:\nbob:x:1001:1002:Bob:/home/bob:/bin/sh\n"
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	bob := User{UID: 1001, GID: 1002, Name: "bob", Home: "/home/bob"}
	for text, want := range map[string]User{
		"bob":       bob,
		"1001:1002": bob,
		"1001":      {UID: 1001, GID: 1001, Name: "bob", Home: "/home/bob"},
		"2000":      {UID: 2000, GID: 2000},
		"2000:5":    {UID: 2000, GID: 5},
		"root":      {Name: "root", Home: "/root"},
	} {
		if got, err := find(text, table); got != want || err != nil {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"alice", "odd", "broken", "bob:1002", "1:x", "1:", "-1", "01", "2147483647", "1:2:3"} {
		if got, err := find(text, table); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestATableThatIsNone(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{filepath.Join(dir, "none"), dir, fifo} {
		if _, err := find("bob", table); err == nil {
			t.Errorf("bob was found in %s", table)
		}
		if got, err := find("7", table); err != nil || !got.Same(User{UID: 7, GID: 7}) || got.Dir() != "/" {
			t.Errorf("%s: %+v, %v", table, got, err)
		}
	}
}
