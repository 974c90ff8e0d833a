package dockersetup

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestARuntimeIsRegisteredAndTheRestStays(t *testing.T) {
	for name, tt := range map[string]struct{ before, after string }{
		"no file":       {"", `{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`},
		"an empty file": {" \n", `{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`},
		"other keys, in their order": {
			`{"log-level":"warn","bridge":"none","a":[1,2.50]}`, `{"log-level":"warn","bridge":"none","a":[1,2.50],"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`,
		},
		"another runtime": {
			`{"runtimes":{"kata":{"path":"/k","runtimeArgs":["-x"]}},"z":true}`, `{"runtimes":{"kata":{"path":"/k","runtimeArgs":["-x"]},"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}},"z":true}`,
		},
		"without the argument": {
			`{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--debug"]}}}`, `{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--debug","--net-raw","--in-sandbox-cgroup=v2"]}}}`,
		},
		"with one argument":       {`{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw"]}}}`, `{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`},
		"from an earlier version": {`{"runtimes":{"runsc":{"path":"/p"}}}`, `{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`},
		"there already":           {`{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`, `{"runtimes":{"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "etc", "daemon.json")
			if tt.before != "" {
				write(t, file, tt.before)
			}
			c, err := PlanRuntime(file, "runsc", "/p")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(file); tt.before == "" && err == nil {
				t.Error("planning wrote the file")
			}
			if err := c.Apply(); err != nil {
				t.Fatal(err)
			}
			if got := compact(t, file); got != tt.after {
				t.Errorf("got  %s\nwant %s", got, tt.after)
			}
			if c.Needed() && c.Backup != "" {
				if b, err := os.ReadFile(c.Backup); err != nil || string(b) != tt.before {
					t.Errorf("the backup: %q, %v", b, err)
				}
			}
			again, err := PlanRuntime(file, "runsc", "/p")
			if err != nil || again.Needed() {
				t.Errorf("a second time: %+v, %v", again, err)
			}
			undo, err := PlanRuntimeRemoval(file, "runsc")
			if err != nil || undo.Program != "/p" {
				t.Fatalf("%+v, %v", undo, err)
			}
			if err := undo.Apply(); err != nil {
				t.Fatal(err)
			}
			want := strings.NewReplacer(`,"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}`, "", `"runsc":{"path":"/p","runtimeArgs":["--net-raw","--in-sandbox-cgroup=v2"]}`, "", `"runsc":{"path":"/p","runtimeArgs":["--debug","--net-raw","--in-sandbox-cgroup=v2"]}`, "").Replace(tt.after)
			if got := compact(t, file); got != want {
				t.Errorf("after it was undone: %s, want %s", got, want)
			}
		})
	}
}

func TestARuntimeThatIsSomebodyElsesStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	for _, text := range []string{`{"runtimes":{"runsc":{"path":"/usr/bin/runsc"}}}`, `{"runtimes":[]}`, `[]`, `{"a":1`, `{} {}`} {
		write(t, file, text)
		if c, err := PlanRuntime(file, "runsc", "/p"); v1.CodeOf(err) != v1.CodeInvalidRequest {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

func TestAFileThatChangedMeanwhileIsNotOverwritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	write(t, file, `{}`)
	c, err := PlanRuntime(file, "runsc", "/p")
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, `{"debug":true}`)
	if err := c.Apply(); err == nil || compact(t, file) != `{"debug":true}` {
		t.Errorf("%v: %s", err, compact(t, file))
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func compact(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
