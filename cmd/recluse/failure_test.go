package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// missing is an error with two remedies, like that of a backend whose engine is missing.
var missing = &v1.Error{
	Code: v1.CodeEngineMissing, Op: "find engine and guest", Remedy: "run make build",
	Err: &v1.Error{Code: v1.CodeEngineMissing, Op: "find recluse-engine", Message: "it is nowhere", Remedy: "run make build, or go install", Err: errors.New("no such file")},
}

func TestOneRemedyIsTold(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	a.report(missing)
	if want := "recluse: find engine and guest: find recluse-engine: it is nowhere: no such file\n  remedy: run make build\n"; errs.String() != want || out.Len() != 0 {
		t.Errorf("got %q, want %q", errs.String(), want)
	}
	if h := backend.Unavailable("gvisor", missing).Health(t.Context()); h.Reason != "find engine and guest: find recluse-engine: it is nowhere: no such file" || h.Remedy != "run make build" {
		t.Errorf("%+v", h)
	}
	// The remedy of a cause is better than none.
	errs.Reset()
	a.report(&v1.Error{Code: v1.CodeInternal, Message: "outside", Err: missing})
	if n := strings.Count(errs.String(), "run make"); n != 1 || !strings.Contains(errs.String(), "\n  remedy: run make build\n") {
		t.Errorf("got %q", errs.String())
	}
	if missing.Remedy == "" {
		t.Error("the error itself was changed")
	}
}

func TestAFailureIsOneJSONValue(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, json: true}
	a.report(missing)
	var got struct{ Error console.Failure }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Error.Code != v1.CodeEngineMissing || got.Error.Remedy != "run make build" || strings.Contains(got.Error.Cause, "run make") {
		t.Errorf("%+v %v", got, err)
	}
	if errs.Len() != 0 {
		t.Errorf("stderr %q", errs.String())
	}
}

func TestAFailureBesideAResultLeavesOneJSONValue(t *testing.T) {
	lost := &v1.Error{Code: v1.CodeNotFound, Message: "no sandbox"}
	for _, tt := range []struct {
		name           string
		ended          []string
		errs           []error
		absent         bool
		stdout, stderr string
	}{
		{"nothing failed", nil, []error{nil}, false, `{"ended":[]}`, ""},
		{"some are ended", []string{"a"}, []error{lost, missing}, false, `{"ended":["a"]}`, "recluse: no sandbox\nrecluse: find engine"},
		{"none is ended", nil, []error{nil, lost, lost}, true, `{"error":{"code":"not_found","message":"no sandbox"`, "recluse: no sandbox\n"},
	} {
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, json: true}
		err := a.printEnded(append([]string{}, tt.ended...), tt.errs, "")
		if err != nil {
			a.report(err)
		}
		var one bytes.Buffer
		if err := json.Compact(&one, out.Bytes()); err != nil {
			t.Errorf("%s: %v: %s", tt.name, err, out.String())
		}
		if !strings.HasPrefix(one.String(), tt.stdout) || !strings.HasPrefix(errs.String(), tt.stderr) || tt.stderr == "" && errs.Len() > 0 {
			t.Errorf("%s: %s %q", tt.name, one.String(), errs.String())
		}
		if err != nil && absent(err) != tt.absent {
			t.Errorf("%s: absent is %v", tt.name, absent(err))
		}
	}
}

func TestUnkeptLimits(t *testing.T) {
	some := sandbox.Capabilities{ProcessLimit: true, DiskLimit: true, OpenFileLimit: true}
	if got := unkept(sandbox.Limits{}, some); got != nil {
		t.Errorf("nothing was asked for: %q", got)
	}
	if got := unkept(sandbox.Limits{Memory: 1, CPUs: 1, Processes: 1, Disk: 1}, some); !slices.Equal(got, []string{"memory", "cpus"}) {
		t.Errorf("%q", got)
	}
}
