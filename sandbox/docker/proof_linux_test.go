package docker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// made returns the containers that an instance has made since a moment. The events are filtered here, because Podman
// supports only whole seconds, and does not find them by these labels.
func made(t *testing.T, b *Backend, since time.Time) []string {
	t.Helper()
	until := time.Now()
	if b.cli.IsPodman(t.Context()) {
		until = until.Add(time.Second)
	}
	stamp := func(at time.Time) string {
		return strconv.FormatFloat(float64(at.UnixNano())/1e9, 'f', 9, 64)
	}
	var names []string
	for line := range strings.Lines(docker(t, "events", "--since", stamp(since), "--until", stamp(until), "--format", "{{json .}}")) {
		var e events.Message
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.Type == events.ContainerEventType && e.Action == events.ActionCreate && e.TimeNano >= since.UnixNano() && b.mine(e.Actor.Attributes) {
			names = append(names, e.Actor.Attributes["name"])
		}
	}
	return names
}

func TestWhatWorkedForOneProgramIsNotTriedByTheNext(t *testing.T) {
	b := newBackend(t, nil)
	well := func(b *Backend) {
		t.Helper()
		h := b.Health(t.Context())
		for h.OK && strings.Contains(h.Reason, "slow") { // the result is not known yet
			h = b.Health(t.Context())
		}
		if !h.OK {
			t.Fatalf("%+v", h)
		}
	}
	next := func(change func(*Options)) *Backend {
		return newBackend(t, func(o *Options) {
			o.Dir, o.Instance = b.dir, b.instance
			if change != nil {
				change(o)
			}
		})
	}
	sandboxes := func(names []string) (n int) {
		for _, name := range names {
			if !strings.Contains(name, "carrier") {
				n++
			}
		}
		return n
	}
	began := time.Now()
	well(b)
	if got := made(t, b, began); sandboxes(got) != 1 {
		t.Errorf("the first Health made %q", got)
	}
	// Health does not wait for the record of a trial, so it may be written a moment later.
	testneed.Await(t, "the record", func() bool { _, err := os.Stat(b.proofs.Path); return err == nil })

	began = time.Now()
	second := next(nil)
	well(second)
	if h := second.QuickHealth(t.Context()); !h.OK || h.Version == "" {
		t.Errorf("%+v", h)
	}
	if got := made(t, b, began); len(got) > 0 {
		t.Errorf("the second program made the trial sandboxes %q", got)
	}
	open(t, second, sandbox.Spec{})
	if got := made(t, b, began); len(got) != 1 {
		t.Errorf("one sandbox needed the containers %q", got)
	}

	if b.cli.IsPodman(t.Context()) { // Podman has no other runtime
		return
	}
	// With another profile, the proof is not valid.
	began = time.Now()
	well(next(func(o *Options) { o.Runtime = "runsc" }))
	if got := made(t, b, began); sandboxes(got) != 1 {
		t.Errorf("another runtime needed the containers %q", got)
	}
}

func TestWhatIsKeptIsForgottenWhenASandboxCannotBeMade(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.Network = "recluse-nonesuch" })
	b.proofs.Keep(proof{})
	b.proofs.Renew()
	if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{}); err == nil {
		t.Error("a sandbox started in a missing network")
	}
	if _, err := os.Stat(b.proofs.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the proof was kept: %v", err)
	}
	if b.proofs.Fresh() {
		t.Error("the proof of this program is still fresh")
	}
}

func TestAGuestsVolumeThatWasReplacedIsFilledAgain(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.GuestPath = guestCopy(t) })
	if err := open(t, b, sandbox.Spec{}).Close(); err != nil {
		t.Fatal(err)
	}
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	guest, err := b.guestProgram(t.Context(), f.Arch)
	if err != nil {
		t.Fatal(err)
	}
	volume := "recluse-guest-" + guest.Hash[:16] + "-" + f.Arch
	t.Cleanup(func() { docker(t, "volume", "rm", volume) })
	if err := b.cli.PrepareOnce(t.Context(), b.guestNote(volume), volume, map[string]string{labelGuest: guest.Hash}, func() error {
		return errors.New("that the guest was brought is not noted")
	}); err != nil {
		t.Fatal(err)
	}
	// A volume with the same name and without content, made by another program.
	docker(t, "volume", "rm", volume)
	docker(t, "volume", "create", volume)
	next := newBackend(t, func(o *Options) { o.Dir, o.Instance, o.GuestPath = b.dir, b.instance, b.opts.GuestPath })
	shell(t, open(t, next, sandbox.Spec{}), "true")
}
