package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	guest, err := testbin.Guest()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	made := 0
	b := local.New(local.Options{Dir: t.TempDir(), GuestPath: guest.Path})
	got := Run(t.Context(), Options{Backend: b, Out: &out, Made: func(*sandbox.Sandbox) { made++ }, Failed: func(err error) { t.Error(err) }})
	if !got.OK || got.Backend != "local" || got.Took <= 0 || len(got.Steps) != 8 || made != 1 {
		t.Errorf("%+v, %d sandboxes", got, made)
	}
	for i, s := range got.Steps {
		cannot := i == 1 || i >= 5 // the local backend has no own kernel, snapshots or forks
		if !s.OK || s.Error != nil || cannot != (s.Skipped != "") || !strings.Contains(out.String(), s.Title) {
			t.Errorf("step %d: %+v", i+1, s)
		}
	}
	if !strings.Contains(out.String(), "nothing is left") {
		t.Errorf("%s", out.String())
	}
}

func TestASandboxThatCannotBeMadeEndsIt(t *testing.T) {
	var out bytes.Buffer
	why := &v1.Error{Code: v1.CodeNotSupported, Op: "open", Message: "not here", Remedy: "elsewhere"}
	got := Run(t.Context(), Options{Backend: backend.Unavailable("gone", why), Out: &out})
	if got.OK || len(got.Steps) != 1 {
		t.Errorf("%+v", got)
	}
	if text := out.String(); !strings.Contains(text, "recluse doctor") {
		t.Errorf("%s", text)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	out.Reset()
	if got := Run(ctx, Options{Backend: backend.Unavailable("gone", why), Out: &out}); got.OK || strings.Contains(out.String(), "recluse doctor") {
		t.Errorf("cancelled: %+v, %s", got, out.String())
	}
}

func TestTheHaystackHidesTheMeetings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "haystack")
	if err := WriteHaystack(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || len(text) < HaystackBytes || len(text) > HaystackBytes+200 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	for _, m := range meetings {
		if strings.Count(string(text), m) != 1 {
			t.Errorf("%q is not there once", m)
		}
	}
	models := Models()
	root, err := models(0, "")
	if err != nil {
		t.Fatal(err)
	}
	sub, err := models(1, "")
	if err != nil || sub == root {
		t.Fatalf("the models are the same, or %v", err)
	}
	reply, err := sub.Complete(t.Context(), llm.Request{
		Messages: []llm.Message{{Role: llm.User, Content: string(text[len(text)/2:len(text)/2+100_000]) + meetings[0]}},
		Tags:     map[string]string{"call": v1.CallSub},
	})
	if err != nil || !strings.Contains(reply.Text, strings.TrimSuffix(meetings[0], ".")) {
		t.Errorf("%+v, %v", reply, err)
	}
}
