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

// Each use renews the idle timeout of a session. The next session of the name reports that the previous one has
// expired.
func TestUseKeepsASessionAndItsEndIsAnnounced(t *testing.T) {
	w := newWorld(t)
	w.must("session", "open", "quiet", "--idle", "1s", "--on-idle", "end")
	w.must("session", "open", "brief", "--expires", "1s")
	w.must("session", "open", "busy", "--idle", "1h", "--on-idle", "end", "--label", "team=web")
	idleAt := func() time.Time {
		var i session.Info
		decodeJSON(t, w.must("session", "show", "busy", "--json"), &i)
		return *i.IdleAt
	}
	before := idleAt()
	for n := 1; n <= 3; n++ {
		code := "n = globals().get('n', 0) + 1; n"
		if r := w.run("", "exec", "--session", "busy", "--python", code); r.stdout != strconv.Itoa(n)+"\n" || strings.Contains(r.stderr, "new") {
			t.Fatalf("call %d prints %q %q", n, r.stdout, r.stderr)
		}
		now := idleAt()
		if !now.After(before) || idleAt() != now { // showing a session is not a use
			t.Errorf("call %d moved the idle end from %s to %s", n, before, now)
		}
		before = now
	}
	if out := w.must("session", "list", "--label", "team=web"); !strings.Contains(out, "busy") {
		t.Errorf("by its label: %s", out)
	}
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
	gone("quiet")
	if r := w.run("", "exec", "--session", "quiet", "--python", "1"); r.stdout != "1\n" || !strings.Contains(r.stderr, "this session is new; the previous one of its name expired at") {
		t.Errorf("%q %q", r.stdout, r.stderr)
	}
	if r := w.run("", "exec", "--session", "quiet", "--python", "1"); r.stderr != "" {
		t.Errorf("it is said again: %q", r.stderr)
	}
}

// Copies and restored snapshots that take the name of an earlier session report it.
func TestCopiesOfAReusedNameAreAnnounced(t *testing.T) {
	w := newWorld(t)
	w.must("session", "open", "work")
	w.must("snapshot", "save", "work", "warm")
	const said = "the previous one of its name ended at"
	copies := func() result { return w.run("", "fork", "work", "--name", "left") }
	restored := func() result { return w.run("", "snapshot", "restore", "work@warm", "--as", "again") }
	for _, create := range []func() result{copies, restored} {
		if r := create(); r.status != 0 || r.stderr != "" {
			t.Fatalf("%+v", r)
		}
	}
	w.must("session", "end", "left", "again")
	if r := copies(); r.stdout != "left\n" || !strings.Contains(r.stderr, "session left is new; "+said) {
		t.Errorf("fork: %+v", r)
	}
	if r := restored(); r.status != 0 || !strings.Contains(r.stderr, "this session is new; "+said) {
		t.Errorf("snapshot restore: %+v", r)
	}
	w.must("session", "end", "left")
	var infos []session.Info
	decodeJSON(t, w.must("fork", "work", "--name", "left", "--json"), &infos)
	if len(infos) != 1 || infos[0].Previous == nil {
		t.Errorf("fork --json: %+v", infos)
	}
	w.must("snapshot", "delete", "work@warm")
}
