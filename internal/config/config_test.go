package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

var update = flag.Bool("update", false, "write docs/CONFIG.md")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load loads a configuration file with this content.
func load(t *testing.T, content string, environ ...string) (*Config, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path, environ)
	return c, path, err
}

func TestNothingSetIsTheDefault(t *testing.T) {
	c, err := Load("", []string{"XDG_CONFIG_HOME=" + t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p := c.Session.Policy()
	if p.Idle.Std() != 15*time.Minute || p.Expires != 0 || !c.ServerQuota().IsZero() || c.Server.Listen != "" {
		t.Errorf("%+v", c)
	}
	for _, s := range c.Settings() {
		if s.Source != "default" || s.Value != s.Default {
			t.Errorf("%+v", s)
		}
	}
}

func TestFileAndEnvironment(t *testing.T) {
	c, path, err := load(t, `# a comment
server:
  listen: 127.0.0.1:7070
session:
  max_age: 8h
  idle: 90s
  hibernation: 30d
  on_idle: end
  output: 1.5g
pool:
  enabled: false
backend:
  order: [gvisor, local]
limits: {memory: 256m, cpus: 0.5}
quota: {memory: 8g, sessions: 0, spend_usd: none, disk: ""}
client:
  key: very-secret
`, "RECLUSE_SESSION_IDLE=5m", "RECLUSE_LOG_LEVEL=debug", "RECLUSE_ENV=production", "RECLUSE_ENGINE=/x", "PATH=/bin")
	if err != nil {
		t.Fatal(err)
	}
	p := c.Session.Policy()
	if q := c.ServerQuota(); *q.MaxAge != v1.Duration(8*time.Hour) || *q.Memory != 8<<30 || *q.Sessions != 0 || *q.Spend != v1.NoLimit || q.Disk != nil || len(c.Warnings) > 0 {
		t.Errorf("%+v %v", q, c.Warnings)
	}
	if p.OnIdle != v1.IdleEnd || p.Idle.Std() != 5*time.Minute || p.Hibernation.Std() != 30*24*time.Hour || p.Output != 3<<29 {
		t.Errorf("%+v", p)
	}
	if c.Pool.Enabled || strings.Join(c.Backend.Order, " ") != "gvisor local" || c.Limits.Memory != 256<<20 || c.Limits.CPUs != 0.5 || c.Log.Level != "debug" {
		t.Errorf("%+v", c)
	}
	got := map[string]Setting{}
	for _, s := range c.Settings() {
		got[s.Key] = s
	}
	for key, want := range map[string][2]string{
		"session.idle": {"5m", "RECLUSE_SESSION_IDLE"}, "session.max_age": {"8h", path + ":5"}, "session.hibernation": {"30d", path + ":7"},
		"session.output": {"1536m", path + ":9"}, "backend.order": {"gvisor,local", path + ":13"}, "client.key": {"[redacted]", path + ":17"},
		"pool.min": {"2", "default"},
	} {
		if s := got[key]; s.Value != want[0] || s.Source != want[1] {
			t.Errorf("%s: %+v, want %v", key, s, want)
		}
	}
	b, err := json.Marshal(c)
	if err != nil || strings.Contains(string(b)+fmt.Sprintf("%v %+v %#v", c, c, c), "very-secret") {
		t.Errorf("the secret is shown: %s %v", b, err)
	}
}

func TestAnOldNameIsReadWithAWarning(t *testing.T) {
	for name, tt := range map[string]struct{ content, environ, said string }{
		"file":     {"session:\n  ttl: 6h\n", "A=b", "session.ttl is the old name of session.max_age"},
		"variable": {"", "RECLUSE_SESSION_TTL=6h", "RECLUSE_SESSION_TTL is the old name of session.max_age"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := load(t, tt.content, tt.environ)
			if err != nil || c.Session.MaxAge != v1.Duration(6*time.Hour) || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], tt.said) {
				t.Errorf("%+v %v", c, err)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	for _, tt := range []struct {
		name, content, environ string
		want                   []string
	}{
		{"misspelt key", "server:\n  listn: x\n", "", []string{":2: unknown key server.listn; did you mean server.listen?"}},
		{"misspelt section", "sesion:\n  ttl: 1h\n", "", []string{"unknown section sesion; did you mean session?"}},
		{"key of another section", "quota:\n  max_age: 1h\n", "", []string{"did you mean session.max_age?"}},
		{"nothing like it", "log:\n  zzzzzzzzzz: 1\n", "", []string{"want one of log.level, log.format"}},
		{"several at once", "log:\n  levl: info\npool:\n  min: 0\n", "", []string{":2: unknown key log.levl", ":4: pool.min: 0 is below 1"}},
		{"not YAML", "a: b: c", "", []string{"mapping values are not allowed"}},
		{"a list", "- a\n", "", []string{"the file must be a mapping"}},
		{"section that is no mapping", "log: debug\n", "", []string{":1: log must be a mapping"}},
		{"twice", "log:\n  level: info\n  level: debug\n", "", []string{":3: duplicate key level"}},
		{"twice, once by its old name", "session:\n  max_age: 1h\n  ttl: 6h\n", "", []string{":3: session.max_age and session.ttl are the same key"}},
		{"two documents", "log: {level: info}\n---\nlog: {level: debug}\n", "", []string{"several documents"}},
		{"no value", "log:\n  level:\n", "", []string{"log.level has no value"}},
		{"mapping as a value", "log:\n  level: {a: b}\n", "", []string{"log.level must be a single value"}},
		{"word that is not known", "session:\n  on_idle: sleep\n", "", []string{`invalid value "sleep": want one of hibernate, end, keep`}},
		{"duration of nothing", "session:\n  idle: 0s\n", "", []string{"want a time above zero"}},
		{"negative duration", "session:\n  idle: -1s\n", "", []string{"want a time above zero"}},
		{"a key that was removed", "session:\n  extensions: 3\n", "", []string{":2: key session.extensions was removed: recluse session extend"}},
		{"a variable that was removed", "", "RECLUSE_SESSION_EXTENSION=1h", []string{"RECLUSE_SESSION_EXTENSION: removed: recluse session extend"}},
		{"negative bound", "quota:\n  sessions: -2\n", "", []string{"quota.sessions"}},
		{"none where it must be", "pool:\n  wait: none\n", "", []string{"none is not allowed"}},
		{"negative size", "session:\n  output: -1g\n", "", []string{"invalid size"}},
		{"NaN", "limits:\n  cpus: .nan\n", "", []string{"invalid number"}},
		{"not a number", "pool:\n  min: two\n", "", []string{`invalid number "two"`}},
		{"neither true nor false", "pool:\n  enabled: maybe\n", "", []string{"want true or false"}},
		{"half of TLS", "server:\n  tls_cert: /x\n", "", []string{":2: server.tls_cert and server.tls_key must be set together"}},
		{"misspelt variable", "", "RECLUSE_SERVER_LISTN=x", []string{"did you mean RECLUSE_SERVER_LISTEN?"}},
		{"wrong variable", "", "RECLUSE_LOG_LEVEL=loud", []string{"RECLUSE_LOG_LEVEL: invalid value \"loud\""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := load(t, tt.content, tt.environ)
			if v1.CodeOf(err) != CodeInvalid {
				t.Fatalf("got %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestWhichFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "recluse", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("log: {level: warn}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, environ := range map[string][]string{
		"XDG_CONFIG_HOME": {"XDG_CONFIG_HOME=" + dir},
		"RECLUSE_CONFIG":  {"RECLUSE_CONFIG=" + file, "HOME=/nonexistent"},
	} {
		if c, err := Load("", environ); err != nil || c.Log.Level != "warn" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, path := range map[string]string{"missing": file + ".not", "directory": dir} {
		if _, err := Load(path, nil); v1.CodeOf(err) != CodeInvalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := Load("", []string{"RECLUSE_CONFIG=" + file + ".not"}); err == nil {
		t.Error("a file that was named and is missing was passed over")
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "---\n", "null\n"} {
		if _, _, err := load(t, content); err != nil {
			t.Errorf("%q: %v", content, err)
		}
	}
}

func TestValuesAreWrittenAsTheyAreRead(t *testing.T) {
	for _, in := range []string{"90s", "30m", "1h30m", "7d", "none", "500ms", "2h"} {
		var d, again v1.Duration
		if err := d.Set(in); err != nil {
			t.Error(err)
		}
		if err := again.Set(d.String()); err != nil || again != d {
			t.Errorf("%s is written %s, %v", in, d, err)
		}
	}
	for _, in := range []string{"0", "4000", "64k", "256m", "2g", "1t"} {
		if s, err := ParseSize(in); err != nil || s.String() != in {
			t.Errorf("%s is written %s, %v", in, s, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "1": 1, "512": 512, "64k": 64 << 10, "256m": 256 << 20, "256M": 256 << 20, "256MB": 256 << 20, "256MiB": 256 << 20,
		"1.5g": 3 << 29, "1.5GiB": 3 << 29, "2t": 2 << 40, " 1g ": 1 << 30,
	} {
		if s, err := ParseSize(in); err != nil || s != want {
			t.Errorf("%q: got %d, %v, want %d", in, s, err, want)
		}
	}
	for _, in := range []string{"", "-1", "-1g", "m", "1x", "nan", "inf", "infg", "99999999t", "1e400", "1 2"} {
		if s, err := ParseSize(in); err == nil || !strings.Contains(err.Error(), "256m") {
			t.Errorf("%q: got %d, %v", in, s, err)
		}
	}
	for s, want := range map[Size]string{0: "0", 1: "1", 1000: "1000", 1 << 10: "1k", 512 << 20: "512m", 3 << 29: "1536m", 1 << 40: "1t"} {
		if got := s.String(); got != want {
			t.Errorf("%d: got %q, want %q", s, got, want)
		}
	}
}

func TestSandboxLimitsAreThoseThatSomebodySet(t *testing.T) {
	for _, f := range append(fields("limits"), field{}) {
		var environ []string
		want := &Config{}
		if f.key != "" {
			environ = append(environ, f.variable()+"=200")
			if err := set(f, f.in(want), "200"); err != nil {
				t.Fatal(err)
			}
		}
		c, _, err := load(t, "", environ...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.SandboxLimits(); got != want.Limits {
			t.Errorf("%s: %+v, want %+v", f.key, got, want.Limits)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	for _, f := range all() {
		if f.doc() == "" || strings.HasSuffix(f.key, ".") {
			t.Errorf("%s has no name or no doc", f.key)
		}
		// The text of each default is valid input.
		if v := f.text(Default()); v != "" {
			if err := set(f, f.in(Default()), v); err != nil {
				t.Errorf("%s: %v", f.key, err)
			}
		}
	}
	path := filepath.Join("..", "..", "docs", "CONFIG.md")
	want := Markdown()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/CONFIG.md is out of date; run go test ./internal/config -run TestEveryKeyIsDocumented -update")
	}
}

func TestPathsAreThoseOfWhoNamesThem(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c, path, err := load(t, "models: {providers: p.yaml, scripts: [/a.yaml, b.yaml]}\ngate: {thesaurus: [terms, cook=kitchen/terms]}\n", "RECLUSE_MODELS_RECORD=calls.jsonl", "RECLUSE_MCP_FILE=/m.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	for got, want := range map[string]string{
		c.Models.Providers: dir + "/p.yaml", strings.Join(c.Models.Scripts, " "): "/a.yaml " + dir + "/b.yaml", c.Models.Record: here + "/calls.jsonl",
		strings.Join(c.Gate.Thesaurus, " "): dir + "/terms cook=" + dir + "/kitchen/terms",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := strings.Join(c.Environ(), " "); got != "RECLUSE_MODELS_RECORD="+here+"/calls.jsonl RECLUSE_MCP_FILE=/m.json" {
		t.Errorf("environment of a server: %s", got)
	}
}

func TestFingerprintIsOfWhatAServerReads(t *testing.T) {
	script := filepath.Join(t.TempDir(), "root.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	of := func(environ ...string) string {
		t.Helper()
		c, err := Load("", append(environ, "RECLUSE_MODELS_SCRIPTS="+script))
		if err != nil {
			t.Fatal(err)
		}
		return c.Fingerprint()
	}
	first := of()
	if of() != first || of("RECLUSE_CLIENT_KEY=x") != first || of("RECLUSE_MODELS_RECORD=/dev/null") == first || of("RECLUSE_WEBHOOK_URL=x") == of("RECLUSE_WEBHOOK_URL=y") {
		t.Error("it is not of the values")
	}
	t.Setenv("OPENAI_API_KEY", "another")
	if of() == first {
		t.Error("it is not of the keys of models")
	}
	first = of()
	write("another text")
	if of() == first {
		t.Error("it is not of the files")
	}
}
