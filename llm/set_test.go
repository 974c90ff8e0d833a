package llm

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// env returns an environment.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func openSet(t *testing.T, cfg Config) *Set {
	t.Helper()
	if cfg.Env == nil {
		cfg.Env = env()
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestModelsAreFoundByName(t *testing.T) {
	s := openSet(t, Config{
		Env: env("OPENAI_API_KEY", secret, "ANTHROPIC_API_KEY", secret, "OPENROUTER_API_KEY", secret, "MINE_KEY", secret),
		Providers: map[string]Provider{
			"lab":   {Type: TypeOpenAI, BaseURL: "http://lab:8000/v1"},
			"mine":  {Type: TypeOpenAI, BaseURL: "http://mine/v1", KeyEnv: "MINE_KEY"},
			"agent": {Type: TypeCLI, Commands: map[string][]string{"claude": nil}},
		},
		Models: map[string]ModelConfig{"lab/qwen": {Window: 1000, Output: 100, Price: &Price{Input: 3}}},
	})
	s.Add(NewScripted("demo", Rule{Reply: "hi"}))
	for _, tc := range []struct {
		name   string
		want   string
		window int64
		priced bool
		local  bool
	}{
		{"openai/gpt-4o", "openai/gpt-4o", 128_000, true, false},
		{"openai/gpt-4o-2024-11-20", "openai/gpt-4o-2024-11-20", 128_000, true, false},
		{"openai/gpt-4o-audio", "openai/gpt-4o-audio", defaultWindow, false, false},
		{"gpt-4.1", "openai/gpt-4.1", 1_047_576, true, false},
		{"claude-haiku-4-5", "anthropic/claude-haiku-4-5", 200_000, true, false},
		{"openrouter/anthropic/claude-sonnet-4.5", "openrouter/anthropic/claude-sonnet-4.5", 200_000, true, false},
		{"openrouter/openai/gpt-4.1", "openrouter/openai/gpt-4.1", 1_047_576, true, false},
		{"ollama/qwen3:8b", "ollama/qwen3:8b", ollamaWindow, false, true},
		{"vllm/org/some-model", "vllm/org/some-model", defaultWindow, false, true},
		{"lab/qwen", "lab/qwen", 1000, true, false},
		{"lab/other", "lab/other", defaultWindow, false, false},
		{"mine/x", "mine/x", defaultWindow, false, false},
		{"agent/claude", "agent/claude", defaultWindow, false, false},
		{"scripted/demo", "scripted/demo", defaultWindow, false, true},
		{"scripted/demo, lab/qwen", "scripted/demo", 1000, true, false},
	} {
		m, err := s.Model(tc.name)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if i := m.Info(); i.Name != tc.want || i.Window != tc.window || (i.Price != nil) != tc.priced || i.Local != tc.local || i.Output <= 0 {
			t.Errorf("%s: %+v", tc.name, i)
		}
	}
}

func TestModelsThatAreNotThere(t *testing.T) {
	s := openSet(t, Config{Providers: map[string]Provider{"mine": {Type: TypeOpenAI, BaseURL: "http://mine", KeyEnv: "MINE_KEY"}, "cli": {Type: TypeCLI, Commands: map[string][]string{"claude": nil}}}})
	for name, want := range map[string]struct {
		code   v1.Code
		remedy string
	}{
		"anthropic/claude-haiku-4-5": {v1.CodeModelKeyMissing, "set ANTHROPIC_API_KEY"},
		"openai/gpt-5":               {v1.CodeModelKeyMissing, "set OPENAI_API_KEY"},
		"openrouter/x/y":             {v1.CodeModelKeyMissing, "set OPENROUTER_API_KEY"},
		"mine/x":                     {v1.CodeModelKeyMissing, "set MINE_KEY"},
		"nowhere/x":                  {v1.CodeModelUnknown, "anthropic"},
		"llama":                      {v1.CodeModelUnknown, "provider/model"},
		"":                           {v1.CodeModelUnknown, "provider/model"},
		"openai/":                    {v1.CodeModelUnknown, "provider/model"},
		"/x":                         {v1.CodeModelUnknown, "provider/model"},
		"cli/codex":                  {v1.CodeModelUnknown, "commands"},
		"ollama/a,nowhere/b":         {v1.CodeModelUnknown, "use one of"},
	} {
		_, err := s.Model(name)
		if e := wantCode(t, err, want.code); !strings.Contains(e.Remedy, want.remedy) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheDefaultModel(t *testing.T) {
	tags := `{"models": [{"name": "qwen3:8b"}, {"name": "old:1b"}]}`
	there := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/tags" {
			io.WriteString(rw, tags)
		}
	}))
	defer there.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"configured", Config{Default: "ollama/a", Env: env("RECLUSE_MODEL", "ollama/b", "OPENAI_API_KEY", secret)}, "ollama/a"},
		{"from the environment", Config{Env: env("RECLUSE_MODEL", "ollama/b", "OPENAI_API_KEY", secret)}, "ollama/b"},
		{"by OpenAI's key", Config{Env: env("OPENAI_API_KEY", secret, "OLLAMA_HOST", there.URL)}, "openai/" + preferred["openai"]},
		{"by Anthropic's key", Config{Env: env("ANTHROPIC_API_KEY", secret)}, "anthropic/" + preferred["anthropic"]},
		{"found with Ollama", Config{Env: env("OLLAMA_HOST", there.URL)}, "ollama/qwen3:8b"},
		{"found with Ollama by host and port", Config{Env: env("OLLAMA_HOST", strings.TrimPrefix(there.URL, "http://"))}, "ollama/qwen3:8b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := openSet(t, tc.cfg)
			m, err := s.Default(t.Context())
			if err != nil || m.Info().Name != tc.want {
				t.Fatalf("%+v, %v", m, err)
			}
		})
	}
	for name, host := range map[string]string{"nobody": gone.URL, "no models": there.URL} {
		t.Run("none: "+name, func(t *testing.T) {
			tags = `{"models": []}`
			_, err := openSet(t, Config{Env: env("OLLAMA_HOST", host)}).Default(t.Context())
			e := wantCode(t, err, v1.CodeModelMissing)
			for _, way := range []string{"ANTHROPIC_API_KEY", "ollama pull", "OPENAI_BASE_URL"} {
				if !strings.Contains(e.Remedy, way) {
					t.Errorf("the remedy %q does not contain %s", e.Remedy, way)
				}
			}
		})
	}
}

func TestRoutes(t *testing.T) {
	s := openSet(t, Config{Default: "ollama/root"})
	for _, tc := range []struct {
		name  string
		route Route
		want  []string // by depth
	}{
		{"one model", Route{Root: "ollama/a"}, []string{"ollama/a", "ollama/a", "ollama/a"}},
		{"the default", Route{}, []string{"ollama/root", "ollama/root"}},
		{"one below", Route{Root: "ollama/a", Sub: []string{"ollama/b"}}, []string{"ollama/a", "ollama/b", "ollama/b"}},
		{"by depth", Route{Root: "ollama/a", Sub: []string{"ollama/b", "ollama/c"}}, []string{"ollama/a", "ollama/b", "ollama/c", "ollama/c"}},
	} {
		r, err := s.Route(t.Context(), tc.route)
		if err != nil {
			t.Fatal(tc.name, err)
		}
		for depth, want := range tc.want {
			if got := r.At(depth).Info().Name; got != want {
				t.Errorf("%s: %s at %d, not %s", tc.name, got, depth, want)
			}
		}
		if m, err := r.Named("ollama/z", 1); err != nil || m.Info().Name != "ollama/z" {
			t.Errorf("%s: by name %v, %v", tc.name, m, err)
		}
		if m, err := r.Named("", 1); err != nil || m.Info().Name != tc.want[1] {
			t.Errorf("%s: without a name %v, %v", tc.name, m, err)
		}
	}
	for _, bad := range []Route{{Root: "nowhere/x"}, {Root: "ollama/a", Sub: []string{"nowhere/x"}}} {
		_, err := s.Route(t.Context(), bad)
		wantCode(t, err, v1.CodeModelUnknown)
	}
}

func TestConfigFiles(t *testing.T) {
	cfg, err := ReadConfig(strings.NewReader("default: lab/qwen\nretry: {attempts: 2, backoff: 1s}\nproviders:\n  lab: {type: openai, base_url: 'http://lab:8000/v1', key: " + secret +
		", concurrency: 3, requests_per_minute: 60, idle_timeout: 30s, timeout: 2m, no_stream: true, headers: {X-Team: a}}\n" +
		"  cli: {type: cli, commands: {claude: [], mine: [/bin/cat, -]}}\nmodels:\n  lab/qwen: {window_tokens: 1000, price: {input: 1, cached_input: 0.5, output: 2}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := cfg.Providers["lab"]
	if cfg.Default != "lab/qwen" || cfg.Retry.Backoff.Std() != time.Second || p.Idle.Std() != 30*time.Second || !p.NoStream || p.Key != secret || cfg.Models["lab/qwen"].Price.CachedInput != 0.5 {
		t.Errorf("%+v", cfg)
	}
	openSet(t, cfg)
	if b, err := json.Marshal(cfg.Providers); err != nil || strings.Contains(string(b), secret) {
		t.Errorf("the key is in %s (%v)", b, err)
	}
	for name, text := range map[string]string{"unknown key": "modles: {}\n", "not yaml": "{{{", "bad duration": "retry: {backoff: soon}\n"} {
		_, err := ReadConfig(strings.NewReader(text))
		if wantCode(t, err, v1.CodeModelConfig); err == nil {
			t.Error(name)
		}
	}
}

func TestConfigurationsThatAreWrong(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no type":              {Providers: map[string]Provider{"x": {BaseURL: "http://x"}}},
		"unknown type":         {Providers: map[string]Provider{"x": {Type: "grpc", BaseURL: "http://x"}}},
		"no address":           {Providers: map[string]Provider{"x": {Type: TypeOpenAI}}},
		"another scheme":       {Providers: map[string]Provider{"x": {Type: TypeOpenAI, BaseURL: "ftp://x"}}},
		"password in address":  {Providers: map[string]Provider{"x": {Type: TypeOpenAI, BaseURL: "http://u:" + secret + "@x"}}},
		"negative concurrency": {Providers: map[string]Provider{"openai": {Concurrency: -1}}},
		"a slash in the name":  {Providers: map[string]Provider{"a/b": {Type: TypeOpenAI, BaseURL: "http://x"}}},
		"no commands":          {Providers: map[string]Provider{"cli": {Type: TypeCLI}}},
		"an empty command":     {Providers: map[string]Provider{"cli": {Type: TypeCLI, Commands: map[string][]string{"x": nil}}}},
		"a negative price":     {Models: map[string]ModelConfig{"a/b": {Price: &Price{Input: -1}}}},
		"model, no provider":   {Models: map[string]ModelConfig{"b": {}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(cfg)
			if e := wantCode(t, err, v1.CodeModelConfig); strings.Contains(e.Error(), secret) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

func TestLongInputsCostMore(t *testing.T) {
	p := describe("anthropic", "claude-haiku-5-5").Price
	short, long := p.Cost(Usage{Input: 100_000, Output: 1000}), p.Cost(Usage{Input: 100_001, CachedInput: 1, Output: 1000})
	if short != (100_000*0.1+1000*0.5)/1e6 || long != (100_000*0.5+1*0.05+1000*2.5)/1e6 {
		t.Errorf("%v and %v", short, long)
	}
	for name := range modelTable {
		if k := modelTable[name]; k.window < k.output || k.input <= 0 || k.cached <= 0 || k.cached > k.input || k.outputCost < k.input {
			t.Errorf("%s: %+v", name, k)
		}
	}
}

func TestOllamaAddresses(t *testing.T) {
	if p, ok, err := (Config{Env: func(string) string { return "" }}).provider("ollama"); err != nil || !ok || p.BaseURL != "http://127.0.0.1:11434" || !p.Local {
		t.Errorf("without settings: %+v %v", p, err)
	}
	for in, want := range map[string]string{
		"127.0.0.1:11434": "http://127.0.0.1:11434", "0.0.0.0": "http://127.0.0.1:11434", "0.0.0.0:99": "http://127.0.0.1:99", "box": "http://box:11434",
		":5000": "http://127.0.0.1:5000", "http://box/": "http://box:11434", "https://box": "https://box", "https://box:444/x/": "https://box:444/x", "[::1]:5": "http://[::1]:5", "[::]": "http://127.0.0.1:11434",
	} {
		if got := ollamaURL(in); got != want {
			t.Errorf("%s: %s, not %s", in, got, want)
		}
	}
}
