package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// A session in constant use keeps its state, however short its idle time is. One that has expired is announced by its successor.
func TestUseKeepsASessionAndItsEndIsAnnounced(t *testing.T) {
	w := newWorld(t)
	w.must("session", "open", "busy", "--idle", "3s", "--on-idle", "end", "--label", "team=web")
	begun := time.Now()
	for n := 1; n <= 5 || time.Since(begun) < 5*time.Second; n++ {
		code := "n = globals().get('n', 0) + 1; n"
		if r := w.run("", "exec", "--session", "busy", "--python", code); r.stdout != strconv.Itoa(n)+"\n" || strings.Contains(r.stderr, "new") {
			t.Fatalf("call %d prints %q %q", n, r.stdout, r.stderr)
		}
	}
	if out := w.must("session", "list", "--label", "team=web"); !strings.Contains(out, "busy") {
		t.Errorf("by its label: %s", out)
	}
	w.must("session", "open", "brief", "--expires", "1s")
	gone := func(name string) {
		w.await(name+" is over", func() bool { return w.run("", "session", "show", name).status != 0 })
	}
	gone("brief")
	var v v1.Verdict
	if err := json.Unmarshal([]byte(w.must("exec", "--json", "--session", "brief", "--python", "1")), &v); err != nil {
		t.Fatal(err)
	}
	if said := v.Metadata[session.MetaPrevious]; !strings.Contains(said, "expired at") || !strings.Contains(said, "its lifetime ended at") {
		t.Errorf("the verdict says %q", said)
	}
	gone("busy")
	if r := w.run("", "exec", "--session", "busy", "--python", "'n' in globals()"); r.stdout != "False\n" || !strings.Contains(r.stderr, "this session is new; the previous one of its name expired at") {
		t.Errorf("%q %q", r.stdout, r.stderr)
	}
	if r := w.run("", "exec", "--session", "busy", "--python", "1"); r.stderr != "" {
		t.Errorf("it is said again: %q", r.stderr)
	}
}
