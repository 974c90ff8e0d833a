package docker

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// done returns the operations of the Docker engine on each container of an instance since a moment, by container name.
func done(t *testing.T, b *Backend, since time.Time) map[string][]events.Action {
	t.Helper()
	stamp := func(at time.Time) string { return strconv.FormatFloat(float64(at.UnixNano())/1e9, 'f', 9, 64) }
	all := map[string][]events.Action{}
	for line := range strings.Lines(docker(t, "events", "--since", stamp(since), "--until", stamp(time.Now()), "--filter", "type=container", "--format", "{{json .}}")) {
		var e events.Message
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if b.mine(e.Actor.Attributes) {
			name := e.Actor.Attributes["name"]
			all[name] = append(all[name], e.Action)
		}
	}
	return all
}

// times counts an operation on all containers.
func times(all []events.Action, what events.Action) (n int) {
	for _, a := range all {
		if a == what || strings.HasPrefix(string(a), string(what)+":") {
			n++
		}
	}
	return n
}

func TestACallCostsNoExec(t *testing.T) {
	b := newBackend(t, nil)
	began := time.Now()
	sb := open(t, b, sandbox.Spec{})
	use := func(sb *sandbox.Sandbox) {
		t.Helper()
		for range 3 {
			shell(t, sb, "true")
			if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1 + 1"}); err != nil || v.Result.Text() != "2" {
				t.Fatal(v, err)
			}
		}
		if _, err := sb.Files().Write(t.Context(), v1.DefaultHome+"/file", strings.NewReader("text"), sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	name := containerName(sb.ID())
	use(sb)
	if all := done(t, b, began)[name]; times(all, events.ActionExecCreate) != 1 {
		t.Errorf("with one attachment: %q", all)
	}
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Detach()
	use(again)
	if all := done(t, b, began)[name]; times(all, events.ActionExecCreate) != 2 {
		t.Errorf("with two attachments: %q", all)
	}
}

func TestArchivesGoOnlyIntoContainersThatNeverStart(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.GuestPath = guestCopy(t) }) // a new guest, so that it must be copied
	began := time.Now()
	t.Cleanup(func() { removeGuest(t, b) })
	sb := open(t, b, sandbox.Spec{Dir: "/workspace"}) // the image lacks this directory
	for _, dir := range []string{v1.DefaultHome, "/workspace"} {
		if _, err := sb.Files().Write(t.Context(), dir+"/file", strings.NewReader("text in "+dir), sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	copied, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, copied, "cat ~/file; echo; cat file"); got != "text in /home/user\ntext in /workspace" {
		t.Errorf("the copy contains %q", got)
	}
	for _, err := range []error{copied.Close(), b.DeleteSnapshot(t.Context(), snap.ID), sb.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	brought := 0
	for name, all := range done(t, b, began) {
		in, out, starts := times(all, events.ActionExtractToDir), times(all, events.ActionArchivePath)+times(all, events.ActionCopy), times(all, events.ActionStart)
		brought += in
		if out > 0 || in > 0 && starts > 0 || strings.Contains(name, "carrier") == (starts > 0) {
			t.Errorf("%s: %q", name, all)
		}
		if slices.Contains(all, events.ActionCommit) && starts > 0 {
			t.Errorf("%s was committed while it ran: %q", name, all)
		}
	}
	if brought != 2 {
		t.Errorf("%d archives were copied, for a guest and a snapshot", brought)
	}
}

// removeGuest removes the volume of a guest that only one test uses.
func removeGuest(t *testing.T, b *Backend) {
	t.Helper()
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	guest, err := b.guestProgram(t.Context(), f.Arch)
	if err != nil {
		t.Fatal(err)
	}
	docker(t, "volume", "rm", "recluse-guest-"+guest.Hash[:16]+"-"+f.Arch)
}
