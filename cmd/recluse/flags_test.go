package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// parse parses a command line with the flags of a sandbox.
func parse(t *testing.T, args ...string) (*sandboxFlags, error) {
	t.Helper()
	f, set := &sandboxFlags{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.register(set)
	return f, set.Parse(args)
}

func TestSandboxFlagsMakeASpec(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("COPIED", "from here")
	f, err := parse(t, "--image", "tar:box.tar", "--memory", "1.5GiB", "--cpus", "0.5", "--processes", "100", "--mount", "/a:/b:rw", "--mount", ".:/work", "--mount", "sub/..:/x", "--volume", "v:/c",
		"-e", "K=V=W", "--env", "COPIED", "--dir", "/d", "--user", "7:8", "--shell", "dash", "--hostname", "h", "--cold", "--oom-score-adj", "0", "--host-config", "{}")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	got, err := f.spec(&app{cfg: cfg})
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.Spec{
		Image: "tar:" + filepath.Join(here, "box.tar"), Limits: sandbox.Limits{Memory: 3 << 29, CPUs: 0.5, Processes: 100},
		Mounts:   []sandbox.Mount{{Host: "/a", Path: "/b", Writable: true}, {Host: here, Path: "/work"}, {Host: here, Path: "/x"}},
		Volumes:  []sandbox.Volume{{Name: "v", Path: "/c"}},
		Env:      map[string]string{"K": "V=W", "COPIED": "from here"},
		Dir:      "/d",
		User:     "7:8",
		Shell:    "dash",
		Hostname: "h",
		Cold:     true,
		Options:  map[string]json.RawMessage{"docker": json.RawMessage(`{"host_config":{},"oom_score_adj":0}`)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestRelativePathsAreNotThoseOfAnotherMachine(t *testing.T) {
	cfg := config.Default()
	cfg.Client.URL = "https://far.example"
	for flag, taken := range map[string]bool{"--mount=.:/work": false, "--rootfs=root": false, "--mount=/a:/work": true, "--rootfs=/root": true} {
		f, err := parse(t, flag)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.spec(&app{cfg: cfg}); (err == nil) != taken {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestEachSandboxFlagHasItsScope(t *testing.T) {
	values := map[string]string{"K=V": "a=b", "host:path[:rw]": "/a:/b", "name:path[:rw]": "a:/b", "none|container|kernel|vm": "kernel", "missing|always|never": "never", "none|packages|public|all": "public", "bool": "true"}
	for _, o := range new(sandboxFlags).options() {
		value, ok := values[o.Type()]
		if !ok {
			value = "1"
		}
		f, err := parse(t, "--"+o.name()+"="+value)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, scope := range []string{"", "backend", "command", "server"} {
			if got := f.given(scope); (got == o.name()) != (scope == o.scope()) {
				t.Errorf("--%s: %q was given for the scope %q", o.name(), got, scope)
			}
		}
		if !slices.Contains([]string{"", "backend", "command", "server"}, o.scope()) || o.field.Tag.Get("doc") == "" {
			t.Errorf("--%s has the scope %q and the doc %q", o.name(), o.scope(), o.field.Tag.Get("doc"))
		}
	}
}

func TestRequirementsAreThoseOfFlagsOverTheConfiguration(t *testing.T) {
	cfg := config.Default()
	cfg.Backend = config.Backend{Order: []string{"docker"}, MinIsolation: "container", AllowNoIsolation: true, AllowContainer: true}
	for _, tt := range []struct {
		args []string
		want backend.Requirements
	}{
		{nil, backend.Requirements{Order: []string{"docker"}, MinIsolation: sandbox.IsolationContainer, AllowNone: true, AllowContainer: true}},
		{
			[]string{"--backend", "gvisor, local", "--min-isolation", "kernel", "--allow-no-isolation=false", "--allow-container=false"},
			backend.Requirements{Order: []string{"gvisor", "local"}, MinIsolation: sandbox.IsolationKernel},
		},
		{
			[]string{"--backend", "gvisor,firecracker,vm", "--allow-no-isolation=false", "--allow-container=false"},
			backend.Requirements{Order: []string{"gvisor", "vm"}, MinIsolation: sandbox.IsolationContainer},
		},
	} {
		f, err := parse(t, tt.args...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.requirements(&app{cfg: cfg})
		got.Logger = nil
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v: %+v, %v", tt.args, got, err)
		}
	}
	if cfg.VM.Monitor != "firecracker" {
		t.Errorf("--backend firecracker: the monitor is %s", cfg.VM.Monitor)
	}
}

func TestValuesThatAreNone(t *testing.T) {
	t.Setenv("ABSENT", "")
	os.Unsetenv("ABSENT")
	for flag, values := range map[string][]string{
		"memory":          {"", "0", "0m", "-1", "-1g", "m", "1x", "nan", "inf", "infg", "99999999t", "1e400", "0.1", "1 2"},
		"cpus":            {"", "0", "-1", "nan", "inf", "x"},
		"processes":       {"", "0", "-1", "nan", "inf", "x"},
		"oom-score-adj":   {"", "x"},
		"mount":           {"", "/a", ":/b", "/a:", "/a:/b:", "/a:/b:wr", "/a:/b:/c:rw"},
		"volume":          {"", "/a", "a:/b:wr"},
		"env":             {"ABSENT"},
		"min-isolation":   {"", "strong"},
		"pull":            {"sometimes"},
		"cold":            {"maybe"},
		"allow-container": {"maybe"},
	} {
		for _, value := range values {
			if f, err := parse(t, "--"+flag+"="+value); err == nil {
				t.Errorf("--%s=%s was taken: %+v", flag, value, f.sandbox)
			}
		}
	}
}

func TestTimeout(t *testing.T) {
	for in, want := range map[string]time.Duration{"5s": 5 * time.Second, "5": 5 * time.Second, "0.5": 500 * time.Millisecond, "1m30s": 90 * time.Second} {
		var d v1.Duration
		if err := d.Set(in); err != nil || timeout(d) != want {
			t.Errorf("%q: got %s, %v, want %s", in, timeout(d), err, want)
		}
	}
	for _, in := range []string{"", "0", "0s", "-1s", "soon", "5 s"} {
		var d v1.Duration
		if err := d.Set(in); err == nil {
			t.Errorf("%q was taken as %s", in, timeout(d))
		}
	}
	if got := timeout(0); got != v1.NoLimit {
		t.Errorf("unset: got %s, want none", got)
	}
}

func TestMount(t *testing.T) {
	for in, want := range map[string]sandbox.Mount{
		"/a:/b":    {Host: "/a", Path: "/b"},
		"/a:/b:ro": {Host: "/a", Path: "/b"},
		"/a:/b:rw": {Host: "/a", Path: "/b", Writable: true},
	} {
		if got, err := parseMount(in); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	}
}

func TestRemotePath(t *testing.T) {
	for in, want := range map[string][2]string{
		"work:/a/b": {"work", "/a/b"}, "work:a": {"work", "a"}, "work:": {"work", ""}, "work:a:/x": {"work", "a:/x"}, "work:a/b:c": {"work", "a/b:c"},
	} {
		if name, file, ok := remotePath(in); !ok || name != want[0] || file != want[1] {
			t.Errorf("%q: %q, %q, %v", in, name, file, ok)
		}
	}
	for _, in := range []string{"a", "./a:b", "/a:b", ":a", "a/b:c", ""} {
		if name, file, ok := remotePath(in); ok {
			t.Errorf("%q was taken as %q, %q", in, name, file)
		}
	}
}
