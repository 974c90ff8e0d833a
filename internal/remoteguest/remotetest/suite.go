//go:build linux

package remotetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/spend"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// Backend is what the tests need of a backend.
type Backend interface {
	sandbox.Backend
	Dir() string
	Close() error
}

// Subject is a backend to test.
type Subject struct {
	// New returns a service.
	New func(t *testing.T) Service
	// Open returns a backend that uses a service at an address with a valid key.
	Open func(address string, o remoteguest.Options) (Backend, error)
	// Key must not be in errors.
	Key string
}

// Run runs the tests. In make test, only those that show something that other tests do not.
func (s Subject) Run(t *testing.T) {
	t.Run("a life", s.life)
	t.Run("connections that break", s.breaks)
	t.Run("faults of the service", s.faults)
	t.Run("the sandbox of a lost answer is ended", s.lost)
	t.Run("a forgotten sandbox is lost", s.forgotten)
	t.Run("a half uploaded guest is not started", s.half)
	t.Run("a revoked key", s.revoked)
	t.Run("slow links", s.slow)
	t.Run("orphans are ended", s.orphans)
	t.Run("a hostile guest", s.hostile)
	t.Run("features", s.features)
}

// Backend returns a backend that uses a service at an address.
func (s Subject) Backend(t *testing.T, at string, change func(*remoteguest.Options)) Backend {
	t.Helper()
	o := remoteguest.Options{Dir: t.TempDir(), Guest: Guest}
	if change != nil {
		change(&o)
	}
	b, err := s.Open(at, o)
	return sandboxtest.Use(t, b, err)
}

// Open makes a sandbox.
func Open(t *testing.T, b sandbox.Backend) *sandbox.Sandbox {
	t.Helper()
	return sandboxtest.Open(t, b, sandbox.Spec{})
}

// Refused checks that a backend with FixedLife refuses what its service cannot enforce, without a request.
func Refused(t *testing.T, b sandbox.Backend, s Service) {
	t.Helper()
	for name, spec := range map[string]sandbox.Spec{
		"disk":      {Limits: sandbox.Limits{Disk: 64 << 20}},
		"processes": {Limits: sandbox.Limits{Processes: 33}},
		"mount":     {Mounts: []sandbox.Mount{{Host: "/opt", Path: "/opt"}}},
		"network":   {Network: v1.Network{Preset: v1.NetworkPackages}},
		"volume":    {Volumes: []v1.Volume{{Name: "data", Path: "/data"}}},
	} {
		if _, err := sandbox.Open(t.Context(), b, spec); v1.CodeOf(err) != v1.CodeNotSupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.Creates(); n != 0 {
		t.Fatalf("%d requests for what is refused", n)
	}
}

// Sh runs a shell script and returns its output.
func Sh(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: script})
	if err != nil || !v.OK() {
		t.Fatalf("%s: %v, %+v", script, err, v)
	}
	return v.Stdout.String()
}

func cell(t *testing.T, sb *sandbox.Sandbox, code, want string) {
	t.Helper()
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil || !v.OK() || want != "" && v.Result.Text() != want {
		t.Fatalf("%s: %v %+v", code, err, v)
	}
}

func nothingLeft(t *testing.T, svc Service) {
	t.Helper()
	if left := svc.Running(t); len(left) > 0 {
		t.Errorf("left at the service: %q", left)
	}
}

// life is the life of a sandbox with the real protocol on both ends.
func (s Subject) life(t *testing.T) {
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), nil)
	sb := Open(t, b)
	if got := Sh(t, sb, "echo hello; id -u"); got != "hello\n1000\n" {
		t.Errorf("%q", got)
	}
	cell(t, sb, "x = 41", "")
	if _, err := b.Attach(t.Context(), sb.ID()); v1.CodeOf(err) != v1.CodeBusy {
		t.Errorf("attached twice: %v", err)
	}
	// Neither the arguments nor the environment of a process show a token or the key.
	show := "cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ci '[t]oken\\|" + s.Key[:4] + "[" + s.Key[4:5] + "]' || true"
	if got := Sh(t, sb, show); got != "0\n" {
		t.Errorf("%s lines have a token or the key", strings.TrimSpace(got))
	}
	if n := svc.Uploads(); n != 1 {
		t.Errorf("the guest was uploaded %d times", n)
	}
	if h := b.Health(t.Context()); !h.OK || !strings.Contains(h.Reason, "1 sandboxes, $") {
		t.Errorf("%+v", h)
	}

	// Another program continues after this one has died.
	id, dir := sb.ID(), b.Dir()
	sb.Detach()
	later := s.Backend(t, svc.Address(), func(o *remoteguest.Options) { o.Dir = dir })
	again, err := sandbox.Attach(t.Context(), later, id)
	if err != nil {
		t.Fatal(err)
	}
	cell(t, again, "x + 1", "42")
	s.noKey(t, dir)
	if b.Capabilities(t.Context()).Snapshots != sandbox.SnapshotsMemory {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, svc)
		return
	}

	// A snapshot has the memory.
	snap, err := again.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, svc)
	restored, err := sandbox.Restore(t.Context(), later, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cell(t, restored, "x + 2", "43")
	s.noKey(t, dir)
	if err := restored.Close(); err != nil {
		t.Error(err)
	}
	if err := later.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
	nothingLeft(t, svc)
}

// noKey checks that no record has the key.
func (s Subject) noKey(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), s.Key) {
			t.Errorf("%s has the key", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// breaks has a link that cuts connections at random offsets.
func (s Subject) breaks(t *testing.T) {
	svc := s.New(t)
	l := &Link{Cut: Between(500_000, 4_000_000)}
	b := s.Backend(t, svc.Address(), nil)
	sb := Open(t, b) // without cuts, because a failed upload is not repeated
	id, dir := sb.ID(), b.Dir()
	sb.Detach()
	cut := s.Backend(t, l.Listen(t, svc.Address()), func(o *remoteguest.Options) { o.Dir = dir })
	sb, err := sandbox.Attach(t.Context(), cut, id)
	if err != nil {
		t.Fatal(err)
	}
	const size = 20 << 20
	counted := &counter{}
	v, err := sb.Run(t.Context(), sandbox.Command{
		Shell:      "head -c 20971520 /dev/urandom >&2",
		RunOptions: sandbox.RunOptions{Stderr: counted, Timeout: v1.NoLimit},
	})
	if err != nil || !v.OK() || counted.n != size {
		t.Errorf("%d bytes, %v, %+v", counted.n, err, v)
	}
	if n := l.Cuts.Load(); n < 3 {
		t.Errorf("the link was cut %d times only", n)
	}
	sb.Detach()
}

type counter struct{ n int64 }

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

// refused opens a sandbox that must fail with a code, and checks that nothing is left.
func (s Subject) refused(t *testing.T, svc Service, b Backend, code v1.Code) {
	t.Helper()
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err == nil {
		_ = sb.Close()
	}
	if got := v1.CodeOf(err); got != code {
		t.Errorf("code %q (%v), want %q", got, err, code)
	}
	if err != nil && strings.Contains(err.Error(), s.Key) {
		t.Error("the error has the key")
	}
	testneed.Await(t, "the end of what was made", func() bool { return len(svc.Running(t)) == 0 })
	left, err := os.ReadDir(filepath.Join(b.Dir(), "sandboxes"))
	if err != nil || len(left) > 0 {
		t.Errorf("records are left: %v %v", left, err)
	}
}

// faults needs no sandboxes: the service refuses to make one, and bounds are ours.
func (s Subject) faults(t *testing.T) {
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), nil)
	for status, code := range map[int]v1.Code{
		http.StatusPaymentRequired:     v1.CodeQuotaExceeded,
		http.StatusTooManyRequests:     v1.CodeRateLimited,
		http.StatusInternalServerError: v1.CodeBackendMissing,
		http.StatusBadGateway:          v1.CodeBackendMissing,
		http.StatusUnauthorized:        v1.CodeUnauthorized,
	} {
		svc.SetFaults(Faults{Status: status})
		s.refused(t, svc, b, code)
	}
	svc.SetFaults(Faults{})
	before := svc.Creates()
	poor := s.Backend(t, svc.Address(), func(o *remoteguest.Options) {
		o.Price, o.Limits = 1, spend.Limits{PerHour: math.SmallestNonzeroFloat64}
	})
	s.refused(t, svc, poor, v1.CodeQuotaExceeded)
	if n := svc.Creates(); n != before {
		t.Errorf("the service was called %d times for a sandbox that may not be made", n-before)
	}
}

func (s Subject) lost(t *testing.T) {
	testneed.All(t, "the faults of the service have errors of the same call")
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), nil)
	svc.SetFaults(Faults{Lost: math.MaxInt64})
	s.refused(t, svc, b, v1.CodeBackendMissing)
	if svc.Lost() == 0 {
		t.Error("no sandbox was made")
	}
}

func (s Subject) forgotten(t *testing.T) {
	testneed.All(t, "the errors of a lost sandbox are tested with a killed guest")
	svc := s.New(t)
	sb := Open(t, s.Backend(t, svc.Address(), nil))
	svc.Forget(t)
	select {
	case <-sb.Gone():
	case <-time.After(30 * time.Second):
		t.Fatal("its end was not noticed")
	}
	_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
	if code := v1.CodeOf(err); code != v1.CodeSandboxLost && code != v1.CodeGuestLost {
		t.Errorf("%v", err)
	}
}

func (s Subject) half(t *testing.T) {
	testneed.All(t, "the check of the hash is one line of the script")
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), nil)
	svc.SetFaults(Faults{Half: true})
	s.refused(t, svc, b, v1.CodeGuestLost)
}

func (s Subject) revoked(t *testing.T) {
	testneed.All(t, "the faults of the service have a refused key")
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), func(o *remoteguest.Options) { o.Patience = time.Second })
	sb := Open(t, b)
	svc.Revoke(true)
	_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
	if v1.CodeOf(err) != v1.CodeGuestLost {
		t.Errorf("%v", err)
	}
	svc.Revoke(false) // the sandbox still runs, and can be attached to
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := Sh(t, again, "echo still here"); got != "still here\n" {
		t.Errorf("%q", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func (s Subject) slow(t *testing.T) {
	testneed.All(t, "the connections that break use a link")
	svc := s.New(t)
	for _, delay := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		l := &Link{Delay: delay}
		cell(t, Open(t, s.Backend(t, l.Listen(t, svc.Address()), nil)), "1 + 1", "2")
	}
}

func (s Subject) orphans(t *testing.T) {
	testneed.All(t, "the life of a sandbox has a program that continues")
	svc := s.New(t)
	instance := func(name string) func(*remoteguest.Options) {
		return func(o *remoteguest.Options) { o.Instance = name }
	}
	b := s.Backend(t, svc.Address(), instance("one"))
	lost, kept := Open(t, b), Open(t, s.Backend(t, svc.Address(), instance("two")))
	if err := os.RemoveAll(filepath.Join(b.Dir(), "sandboxes")); err != nil { // its records
		t.Fatal(err)
	}
	fresh := Open(t, s.Backend(t, svc.Address(), instance("one"))) // sweeps first
	if got := Sh(t, fresh, "echo a") + Sh(t, kept, "echo b"); got != "a\nb\n" {
		t.Errorf("%q", got)
	}
	if n := len(svc.Running(t)); n != 2 {
		t.Errorf("%d sandboxes, want 2", n)
	}
	lost.Detach()
}

func (s Subject) features(t *testing.T) {
	testneed.All(t, "a life has the life of a sandbox; the guest is the same everywhere")
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), nil)
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: func(t *testing.T, sb *sandbox.Sandbox) {
			_, _ = sb.Run(t.Context(), sandbox.Command{Shell: "pkill -9 -f recluse-guest"}) // it ends, too
		},
		Leftovers: func(t *testing.T, _ []string) []string {
			all, err := b.List(context.WithoutCancel(t.Context()))
			if err != nil {
				t.Error(err)
			}
			var out []string
			for _, i := range all {
				out = append(out, i.ID)
			}
			return out
		},
		EndUnknown:  true,
		Plain:       true,
		SizeUnknown: true,
		Many:        4,
		Scope:       sandboxtest.BackendFeatures,
	})
}

// hostile has an attacker in the place of our guest, at a service that is honest otherwise.
func (s Subject) hostile(t *testing.T) {
	testneed.All(t, "tests of a hostile service have a service that is the attacker")
	path := sandboxtest.HostileGuest(t)
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	svc := s.New(t)
	b := s.Backend(t, svc.Address(), func(o *remoteguest.Options) {
		o.Guest = bundle.Program{Path: path, Hash: hex.EncodeToString(sum[:])}
	})
	sandboxtest.Attacks(t, b, "output beside the stream", "both ends closed")
	nothingLeft(t, svc)
}
