package backendkit

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAProofIsBelievedForAWhile(t *testing.T) {
	type what struct{ Engine, Guest string }
	is := what{"a", "b"}
	for _, tt := range []struct {
		name string
		at   time.Duration // relative to now
		ok   bool
	}{
		{"just now", 0, true},
		{"a while ago", -30 * time.Minute, true},
		{"too long ago", -time.Hour, false},
		{"by a clock that was wrong", time.Hour, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Proof[what]{Path: filepath.Join(t.TempDir(), "proof.json")}
			if err := atomicfile.WriteJSON(p.Path, proven[what]{is, time.Now().Add(tt.at)}); err != nil {
				t.Fatal(err)
			}
			if got, ok := p.Kept(); ok != tt.ok || got != is {
				t.Errorf("%+v, %v", got, ok)
			}
		})
	}
	p := &Proof[what]{Path: filepath.Join(t.TempDir(), "new", "proof.json")}
	if _, ok := p.Kept(); ok || p.Fresh() {
		t.Error("a missing proof was found")
	}
	p.Keep(is)
	if got, ok := p.Kept(); !ok || got != is || p.Fresh() {
		t.Errorf("%+v, %v, %v", got, ok, p.Fresh())
	}
	p.Renew()
	if !p.Fresh() {
		t.Error("a new proof is not fresh")
	}
	p.Forget()
	if _, ok := p.Kept(); ok || p.Fresh() {
		t.Error("the proof was not dropped")
	}
}

func TestASweepIsDoneOnceAndAgainWhenItWasIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sweeps, later := 0, 0
		result := errors.New("busy")
		s := &Sweeper{
			Limit: time.Second,
			Sweep: func(ctx context.Context) error { sweeps++; return errors.Join(result, ctx.Err()) },
			Go:    func(f func(context.Context)) bool { later++; f(t.Context()); return true },
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		s.Once(gone)
		if s.Err() != nil {
			t.Errorf("a cancelled sweep counts: %v", s.Err())
		}
		s.Once(t.Context())
		s.Once(t.Context())
		if sweeps != 2 || !errors.Is(s.Err(), result) {
			t.Errorf("%d sweeps, %v", sweeps, s.Err())
		}
		result = nil
		time.Sleep(time.Minute)
		s.Once(t.Context())
		if sweeps != 3 || later != 1 || s.Err() != nil {
			t.Errorf("%d sweeps, %d of them later, %v", sweeps, later, s.Err())
		}
		time.Sleep(time.Minute)
		s.Once(t.Context())
		if sweeps != 3 {
			t.Error("a complete sweep was repeated")
		}
	})
}

func TestEndAllJoinsTheErrors(t *testing.T) {
	err := EndAll(20, func(i int) error {
		if i%10 == 0 {
			return io.EOF
		}
		return nil
	})
	if err == nil || strings.Count(err.Error(), "EOF") != 2 {
		t.Errorf("%v", err)
	}
}

func TestTheEndOfAMachineHasOneCause(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	r := NewRecord("x-", sandbox.Spec{Shell: "zsh"}, "")
	m := NewMachine(r)
	if m.ID() != r.ID || m.Spec().Shell != "zsh" || m.Generation() != r.Generation || len(m.Token()) != wire.TokenSize {
		t.Errorf("%+v", m)
	}
	if !m.SetCause(first) || m.SetCause(second) || !m.End(second) || m.End(nil) || m.Cause() != first { //nolint:errorlint // this very error
		t.Errorf("the cause is %v", m.Cause())
	}
	<-m.Gone()
	if m.SetCause(second) {
		t.Error("the cause was set after the end")
	}
	asked := NewMachine(r)
	asked.Stopping()
	if asked.SetCause(first) || !asked.End(second) || asked.Cause() != nil {
		t.Errorf("a requested end has the cause %v", asked.Cause())
	}
}

func TestACopyHasItsOwnIdentity(t *testing.T) {
	r := NewRecord("x-", sandbox.Spec{}, "hash")
	c := r.Copy("y")
	if c.ID == r.ID || c.ID[0] != 'y' || c.Generation == r.Generation || c.Token != r.Token || c.Guest != "hash" || c.Owner != Self() {
		t.Errorf("wrong copy %+v of %+v", c, r)
	}
}

func TestRestored(t *testing.T) {
	spec := sandbox.Spec{Env: map[string]string{"A": "1", "B": "1"}, Labels: map[string]string{"l": "1"}}
	got := RestoredSpec(spec, sandbox.RestoreOptions{Env: map[string]string{"B": "2"}})
	if got.Env["A"] != "1" || got.Env["B"] != "2" || got.Labels["l"] != "1" || spec.Env["B"] != "1" {
		t.Errorf("%+v of %+v", got, spec)
	}
	got = RestoredSpec(sandbox.Spec{}, sandbox.RestoreOptions{Env: map[string]string{"B": "2"}, Labels: map[string]string{"m": "2"}})
	if got.Env["B"] != "2" || got.Labels["m"] != "2" {
		t.Errorf("%+v", got)
	}
	if got = RestoredSpec(spec, sandbox.RestoreOptions{Labels: map[string]string{}}); len(got.Labels) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestIncidentsKeepTheirOrder(t *testing.T) {
	var in Incidents
	var got []string
	receive := func(i sandbox.Incident) { got = append(got, i.Message) }
	for i := range maxPending + 1 {
		in.Report(sandbox.Incident{Message: string(rune('a' + i))})
	}
	in.OnIncident(receive)
	in.Report(sandbox.Incident{Message: "last"})
	if len(got) != maxPending+1 || got[0] != "b" || got[maxPending] != "last" {
		t.Errorf("%q", got)
	}
	in.OnIncident(nil)
	in.Report(sandbox.Incident{Message: "kept"})
	in.OnIncident(receive)
	if got[len(got)-1] != "kept" {
		t.Errorf("%q", got)
	}
}

func TestNotes(t *testing.T) {
	n := Notes{Dir: filepath.Join(t.TempDir(), "notes")}
	r := NewRecord("x-", sandbox.Spec{Labels: map[string]string{"l": "1"}}, "")
	if got := n.Read(&r); got.Owner != r.Owner || got.Labels["l"] != "1" {
		t.Errorf("without a note: %+v", got)
	}
	other := Process{PID: 7, Machine: "m"}
	if err := n.Write(r.ID, Note{Owner: other}); err != nil {
		t.Fatal(err)
	}
	if got := n.Read(&r); got.Owner != other || got.Labels["l"] != "1" {
		t.Errorf("with another owner: %+v", got)
	}
	if err := n.Write(r.ID, Note{Labels: map[string]string{"l": "2"}}); err != nil {
		t.Fatal(err)
	}
	if got := n.Read(&r); got.Owner != r.Owner || got.Labels["l"] != "2" {
		t.Errorf("with other labels: %+v", got)
	}
	n.Remove(r.ID)
	n.Remove(r.ID)
	if got := n.Read(&r); got.Labels["l"] != "1" {
		t.Errorf("a removed note was read as %+v", got)
	}
}

func TestAnInstanceKeepsItsName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first, err := OpenInstance(dir, "")
	if err != nil || !ValidName(first.Name) || !first.Unused() {
		t.Fatalf("%+v, %v", first, err)
	}
	if err := errors.Join(first.MarkUsed(), first.MarkUsed()); err != nil {
		t.Fatal(err)
	}
	if again, err := OpenInstance(dir, ""); err != nil || again != first || again.Unused() {
		t.Errorf("%+v, %v", again, err)
	}
	named, err := OpenInstance(dir, "mine")
	if err != nil || named.Name != "mine" || named.Unused() || named.MarkUsed() != nil {
		t.Errorf("%+v, %v", named, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "instance"), []byte("not a name"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := OpenInstance(dir, ""); err != nil || !ValidName(again.Name) || again.Name == first.Name {
		t.Errorf("%+v, %v", again, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 3 { // the name, its lock, and the mark of its use
		t.Errorf("files: %v, %v", left, err)
	}
}

func TestTheDiskIsSharedOut(t *testing.T) {
	l := sandbox.Limits{}.WithDefaults().InMemory()
	all := TmpfsLayout(l, "/run/own", "")
	var size, inodes int64
	var paths []string
	for _, fs := range all {
		size, inodes = size+fs.Size, inodes+fs.Inodes
		paths = append(paths, fs.Path)
		if fs.Guest != (fs.Path == "/run/own") {
			t.Errorf("%+v", fs)
		}
	}
	if size != l.Disk+l.Scratch() || inodes != l.Memory/8/(2<<10) {
		t.Errorf("%d bytes of %d, %d files", size, l.Disk, inodes)
	}
	if home := all[0]; home.Size != l.Disk || home.Inodes != l.Files() {
		t.Errorf("the home directory does not match the limits: %+v", home)
	}
	for _, l := range []sandbox.Limits{{Memory: v1.MinMemory}, {Memory: 4 << 30, Disk: 3 << 30}, {Memory: 1 << 30, Disk: 1<<30 - v1.MemoryReserve - v1.MinScratch}} {
		l = l.WithDefaults()
		if err := l.Check(); err != nil {
			t.Error(err)
		}
		if l.Disk+l.Scratch() > l.Memory-v1.MemoryReserve {
			t.Errorf("files of %d and %d bytes in a memory of %d", l.Disk, l.Scratch(), l.Memory)
		}
	}
	if want := []string{"/home/user", "/tmp", "/var/tmp", "/dev/shm", "/run/own"}; !slices.Equal(paths, want) {
		t.Errorf("%q", paths)
	}
}

func TestGuestConfig(t *testing.T) {
	r := NewRecord("x-", sandbox.Spec{}.WithDefaults(), "")
	r.Spec.Limits.CPUs = 1.5
	if c := GuestConfig(r, "/state", ImageConfig{}); c.Dir != v1.DefaultHome || c.State != "/state" || c.CPUs != 2 || c.UID != -1 || c.Token != r.Token {
		t.Errorf("%+v", c)
	}
	img := ImageConfig{Env: []string{"A=1"}, Dir: "/image"}
	if c := GuestConfig(r, "/state", img); c.Dir != "/image" || !slices.Equal(c.Env, img.Env) {
		t.Errorf("%+v", c)
	}
	r.Spec.Dir = "/spec"
	if c := GuestConfig(r, "/state", img); c.Dir != "/spec" {
		t.Errorf("%+v", c)
	}
}

func TestProductionTakesNoConsent(t *testing.T) {
	for env, code := range map[string]v1.Code{"": "", "test": "", "production": v1.CodeConsentMissing, "prod": v1.CodeInvalidSpec} {
		t.Setenv("RECLUSE_ENV", env)
		if err := RefuseInProduction("start", "it", "leave it"); v1.CodeOf(err) != code {
			t.Errorf("%q: %v", env, err)
		}
	}
	for env, code := range map[string]v1.Code{"production": "", "prod": v1.CodeInvalidSpec} {
		t.Setenv("RECLUSE_ENV", env)
		if err := RefuseInProduction("start", "", ""); v1.CodeOf(err) != code {
			t.Errorf("nothing to refuse, and %q: %v", env, err)
		}
	}
}

func TestATrialOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		closed := false
		trials := &Trials{Limit: time.Minute, Go: func(f func(context.Context)) bool {
			if !closed {
				wg.Go(func() { f(t.Context()) })
			}
			return !closed
		}}
		made, broken := 0, errors.New("broken")
		try := func(result error) func(context.Context) error {
			return func(context.Context) error {
				made++
				time.Sleep(10 * time.Second)
				return result
			}
		}
		if known, err := trials.Wait(t.Context(), time.Second, try(broken)); known || err != nil {
			t.Errorf("a slow trial: %v, %v", known, err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if known, err := trials.Wait(gone, time.Minute, try(nil)); !known || !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled call: %v, %v", known, err)
		}
		if known, err := trials.Wait(t.Context(), time.Minute, try(nil)); !known || !errors.Is(err, broken) || made != 1 {
			t.Errorf("the running trial: %v, %v, %d made", known, err, made)
		}
		time.Sleep(trialRetry)
		if known, err := trials.Wait(t.Context(), time.Minute, try(nil)); !known || err != nil || made != 2 {
			t.Errorf("after a failed trial: %v, %v, %d made", known, err, made)
		}
		if known, err := trials.Wait(t.Context(), time.Minute, try(broken)); !known || !errors.Is(err, broken) || made != 3 {
			t.Errorf("after a successful trial: %v, %v, %d made", known, err, made)
		}
		if known, err := trials.Wait(t.Context(), time.Minute, try(nil)); !known || err != nil || made != 4 {
			t.Errorf("%v, %v, %d made", known, err, made)
		}
		closed = true
		if _, err := trials.Wait(t.Context(), time.Minute, try(nil)); v1.CodeOf(err) != v1.CodeBackendMissing {
			t.Errorf("of a closed backend: %v", err)
		}
		wg.Wait()
	})
}
