package doctor

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDiagnose(t *testing.T) {
	guest, err := testbin.Guest()
	if err != nil {
		t.Fatal(err)
	}
	why := &v1.Error{Code: v1.CodeUnavailable, Op: "open", Message: "not on this machine", Remedy: "install it"}
	o := Options{
		Backends: []sandbox.Backend{backend.Unavailable("gvisor", why), local.New(local.Options{Dir: t.TempDir(), GuestPath: guest.Path})},
		Require:  backend.Requirements{AllowNone: true},
		Made:     func(*sandbox.Sandbox) {},
		Failed:   func(err error) { t.Error(err) },
	}
	r := Diagnose(t.Context(), o)
	if r.Chosen != "local" || r.Trial == nil || !r.Trial.OK || !strings.Contains(r.Trial.Kernel, HostKernel()) || r.Trial.First <= 0 || r.Error != nil || r.Isolates() {
		t.Errorf("%+v, %+v", r, r.Trial)
	}
	if len(r.Backends) != 2 || len(r.Checks) < 6 || r.System == "" || r.User == "" {
		t.Errorf("%+v", r)
	}
	printed(t, r, "not on this machine", "install it", "selected: ", "isolation: none; egress: unfiltered; can: ", HostKernel(),
		"local cannot limit their size: the local backend has no limits")

	o.Require.AllowNone = false
	r = Diagnose(t.Context(), o)
	if r.Chosen != "" || r.Trial != nil || r.Error == nil || r.Error.Code != v1.CodeNoBackend || r.Isolates() {
		t.Errorf("%+v", r)
	}
	printed(t, r, "no backend is selected")
}

func TestToExpect(t *testing.T) {
	if got, want := startAndLifetime(sandbox.Capabilities{ColdStart: time.Second, MaxLifetime: time.Hour}), "the first sandbox starts in about 1s; maximum lifetime 1h0m0s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFeatures(t *testing.T) {
	got := features(sandbox.Capabilities{Isolation: sandbox.IsolationVM, Emulated: true, Egress: sandbox.EgressAllPorts})
	if !strings.HasPrefix(got, "isolation: vm, emulated; egress: all-ports; can: ") || strings.Contains(got, "omitempty") {
		t.Error(got)
	}
}

// printed checks that the report for people contains parts.
func printed(t *testing.T, r *Report, parts ...string) {
	t.Helper()
	var out bytes.Buffer
	r.Print(&out)
	for _, p := range parts {
		if !strings.Contains(out.String(), p) {
			t.Errorf("%q is missing in\n%s", p, out.String())
		}
	}
	if strings.Contains(out.String(), "omitempty") {
		t.Errorf("a tag is in the report:\n%s", out.String())
	}
}
