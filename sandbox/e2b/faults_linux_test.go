package e2b

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/spend"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// refused opens a sandbox that must fail with a code, and checks that nothing is left.
func refused(t *testing.T, s *service, b *Backend, code v1.Code) error {
	t.Helper()
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err == nil {
		_ = sb.Close()
	}
	if got := v1.CodeOf(err); got != code {
		t.Errorf("code %q (%v), want %q", got, err, code)
	}
	if err != nil && strings.Contains(err.Error(), key) {
		t.Error("the error has the key")
	}
	testneed.Await(t, "the end of what was made", func() bool { return len(s.running(t)) == 0 })
	left, err := os.ReadDir(b.dir() + "/sandboxes")
	if err != nil || len(left) > 0 {
		t.Errorf("records are left: %v %v", left, err)
	}
	return err
}

func isCreate(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == "/v2/sandboxes"
}

// TestFaultsOfTheService needs no sandboxes: the service refuses to make one, and bounds are ours.
func TestFaultsOfTheService(t *testing.T) {
	s := newService(t)
	b := s.backend(t, s.server.URL, nil)
	for status, code := range map[int]v1.Code{
		http.StatusPaymentRequired:     v1.CodeQuotaExceeded,
		http.StatusTooManyRequests:     v1.CodeRateLimited,
		http.StatusInternalServerError: v1.CodeBackendMissing,
		http.StatusBadGateway:          v1.CodeBackendMissing,
		http.StatusUnauthorized:        v1.CodeUnauthorized,
	} {
		s.on(func(w http.ResponseWriter, r *http.Request) bool {
			if isCreate(r) {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"code":1,"message":"no, ` + key + `"}`))
			}
			return isCreate(r)
		})
		_ = refused(t, s, b, code)
	}
	s.on(func(http.ResponseWriter, *http.Request) bool { return false })
	before := s.count("/v2/sandboxes")
	poor := s.backend(t, s.server.URL, func(o *Options) {
		o.Remote.Price, o.Remote.Limits = 1, spend.Limits{PerHour: 0.5}
	})
	_ = refused(t, s, poor, v1.CodeQuotaExceeded)
	if n := s.count("/v2/sandboxes"); n != before {
		t.Errorf("the service was called %d times for a sandbox that may not be made", n-before)
	}
}

func TestASandboxOfALostAnswerIsEnded(t *testing.T) {
	testneed.All(t, "TestFaultsOfTheService has errors of the same call")
	s := newService(t)
	b := s.backend(t, s.server.URL, nil)
	inner := s.server.Config.Handler
	var made atomic.Int64
	s.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isCreate(r) {
			inner.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		if answer.Code == http.StatusCreated {
			made.Add(1)
		}
		panic(http.ErrAbortHandler) // the caller gets no answer
	})
	_ = refused(t, s, b, v1.CodeBackendMissing)
	if made.Load() != 1 {
		t.Errorf("%d sandboxes were made", made.Load())
	}
}

func TestAForgottenSandboxIsLost(t *testing.T) {
	testneed.All(t, "the errors of a lost sandbox are tested with a killed guest")
	s := newService(t)
	b := s.backend(t, s.server.URL, nil)
	sb := open(t, b)
	for i, err := range s.manager.List(t.Context(), listAll) {
		if err != nil {
			t.Fatal(err)
		}
		ses, err := s.manager.Get(t.Context(), i.Key)
		if err != nil {
			t.Fatal(err)
		}
		if err := ses.End(t.Context(), "the service loses it"); err != nil {
			t.Fatal(err)
		}
	}
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

func TestAHalfUploadedGuestIsNotStarted(t *testing.T) {
	testneed.All(t, "the check of the hash is one line of the script")
	s := newService(t)
	b := s.backend(t, s.server.URL, nil)
	s.on(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/files" {
			all, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(all[:len(all)/2]))
		}
		return false
	})
	_ = refused(t, s, b, v1.CodeGuestLost)
}

func TestARevokedKey(t *testing.T) {
	testneed.All(t, "TestFaultsOfTheService has a refused key")
	s := newService(t)
	b := s.backend(t, s.server.URL, func(o *Options) { o.Remote.Patience = time.Second })
	sb := open(t, b)
	s.revoked.Store(true)
	_, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
	if v1.CodeOf(err) != v1.CodeGuestLost {
		t.Errorf("%v", err)
	}
	s.revoked.Store(false) // the sandbox still runs, and can be attached to
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, again, "echo still here"); got != "still here\n" {
		t.Errorf("%q", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestSlowLinks(t *testing.T) {
	testneed.All(t, "TestConnectionsThatBreak uses a link")
	s := newService(t)
	for _, delay := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		l := &remotetest.Link{Delay: delay}
		sb := open(t, s.backend(t, l.Listen(t, s.server.URL), nil))
		v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1 + 1"})
		if err != nil || v.Result.Text() != "2" {
			t.Errorf("%v %v", v, err)
		}
	}
}

func TestOrphansAreEnded(t *testing.T) {
	testneed.All(t, "TestASandboxAtTheService has a program that continues")
	s := newService(t)
	b := s.backend(t, s.server.URL, func(o *Options) { o.Remote.Instance = "one" })
	other := s.backend(t, s.server.URL, func(o *Options) { o.Remote.Instance = "two" })
	lost, kept := open(t, b), open(t, other)
	if err := os.RemoveAll(b.dir() + "/sandboxes"); err != nil { // its records
		t.Fatal(err)
	}
	next := s.backend(t, s.server.URL, func(o *Options) { o.Remote = remoteguest.Options{Dir: t.TempDir(), Guest: guest, Instance: "one"} })
	fresh := open(t, next) // sweeps first
	if got := run(t, fresh, "echo a") + run(t, kept, "echo b"); got != "a\nb\n" {
		t.Errorf("%q", got)
	}
	if n := len(s.running(t)); n != 2 {
		t.Errorf("%d sandboxes, want 2", n)
	}
	lost.Detach()
}

func TestAddressesThatWouldLeakTheKey(t *testing.T) {
	t.Parallel()
	for at, ok := range map[string]bool{
		"https://api.e2b.app": true, "http://127.0.0.1:1": true, "http://localhost:1": true, "https://box.example:8": true,
		"http://box.example": false, "ftp://127.0.0.1": false, "https://user:pass@box.example": false, "box.example": false,
	} {
		b, err := New(Options{URL: at, Key: key, Remote: remoteguest.Options{Dir: t.TempDir()}})
		if (err == nil) != ok {
			t.Errorf("%s: %v", at, err)
		}
		if err == nil {
			_ = b.Close()
		}
	}
}
