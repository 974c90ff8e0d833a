package main

import (
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestSize(t *testing.T) {
	for in, want := range map[string]int64{
		"1": 1, "512": 512, "64k": 64 << 10, "256m": 256 << 20, "256M": 256 << 20, "256MB": 256 << 20, "256MiB": 256 << 20,
		"1.5g": 3 << 29, "2t": 2 << 40, " 1g ": 1 << 30,
	} {
		var s size
		if err := s.Set(in); err != nil || int64(s) != want {
			t.Errorf("%q: got %d, %v, want %d", in, s, err, want)
		}
	}
	for _, in := range []string{"", "0", "0m", "-1", "-1g", "m", "1x", "nan", "inf", "infg", "99999999t", "1e400", "0.1", "1 2"} {
		var s size
		if err := s.Set(in); err == nil {
			t.Errorf("%q was taken as %d", in, s)
		}
	}
}

func TestSizeIsPrintedAsItIsRead(t *testing.T) {
	for n, want := range map[int64]string{0: "", 1: "1", 1000: "1000", 1 << 10: "1k", 512 << 20: "512m", 3 << 29: "1536m", 1 << 40: "1t"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestTimeout(t *testing.T) {
	for in, want := range map[string]time.Duration{"5s": 5 * time.Second, "5": 5 * time.Second, "0.5": 500 * time.Millisecond, "1m30s": 90 * time.Second} {
		var d v1.Duration
		if err := d.Set(in); err != nil || timeout(d) != want {
			t.Errorf("%q: got %s, %v, want %s", in, timeout(d), err, want)
		}
	}
	for _, in := range []string{"", "0", "0s", "-1s", "soon", "5 s"} {
		var d v1.Duration
		if err := d.Set(in); err == nil {
			t.Errorf("%q was taken as %s", in, timeout(d))
		}
	}
	if got := timeout(0); got != v1.NoLimit {
		t.Errorf("unset: got %s, want none", got)
	}
}

func TestNumbersAboveZero(t *testing.T) {
	for _, in := range []string{"", "0", "-1", "nan", "inf", "x"} {
		var c cpus
		if err := c.Set(in); err == nil {
			t.Errorf("%q cpus were taken as %v", in, c)
		}
		var n count
		if err := n.Set(in); err == nil {
			t.Errorf("%q processes were taken as %d", in, n)
		}
	}
}

func TestMount(t *testing.T) {
	for in, want := range map[string]sandbox.Mount{
		"/a:/b":    {Host: "/a", Path: "/b"},
		"/a:/b:ro": {Host: "/a", Path: "/b"},
		"/a:/b:rw": {Host: "/a", Path: "/b", Writable: true},
	} {
		if got, err := parseMount(in); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "/a", ":/b", "/a:", "/a:/b:", "/a:/b:wr", "/a:/b:/c:rw"} {
		if got, err := parseMount(in); err == nil {
			t.Errorf("%q was taken as %v", in, got)
		}
	}
}

func TestRemotePath(t *testing.T) {
	for in, want := range map[string][2]string{
		"work:/a/b": {"work", "/a/b"}, "work:a": {"work", "a"}, "work:": {"work", ""}, "team:a:/x": {"team:a", "/x"}, "work:a/b:c": {"work", "a/b:c"},
	} {
		if name, file, ok := remotePath(in); !ok || name != want[0] || file != want[1] {
			t.Errorf("%q: %q, %q, %v", in, name, file, ok)
		}
	}
	for _, in := range []string{"a", "./a:b", "/a:b", ":a", "a/b:c", ""} {
		if name, file, ok := remotePath(in); ok {
			t.Errorf("%q was taken as %q, %q", in, name, file)
		}
	}
}
