package llm

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// probeTime bounds the question whether Ollama is there. It is on this machine: it answers at once or not at all.
const probeTime = 2 * time.Second

// Set is the models that can be asked, by provider/model. Its methods may be called from several goroutines.
type Set struct {
	cfg   Config
	retry Retry
	http  *http.Transport

	mu        sync.Mutex
	providers map[string]*provider // guarded by mu; made when first asked for
	added     map[string]Model     // guarded by mu
	tape      *Cassette            // guarded by mu; nil: nothing is recorded
}

// Open makes a set from a configuration. It checks what is written there and asks nobody. Close it.
func Open(cfg Config) (*Set, error) {
	s := &Set{cfg: cfg, retry: cfg.Retry.filled(), http: newTransport(), providers: map[string]*provider{}, added: map[string]Model{}}
	for _, name := range slices.Sorted(maps.Keys(cfg.Providers)) {
		if name == "" || strings.ContainsAny(name, "/, \t\n") {
			return nil, &v1.Error{Code: v1.CodeModelConfig, Op: "configure providers", Message: fmt.Sprintf("%q is no name for a provider", name), Remedy: "take letters, digits and dashes"}
		}
		if _, _, err := cfg.provider(name); err != nil {
			return nil, err
		}
	}
	for name, m := range cfg.Models {
		if !strings.Contains(name, "/") {
			return nil, &v1.Error{Code: v1.CodeModelConfig, Op: "configure models", Message: fmt.Sprintf("%q has no provider", name), Remedy: "write it as provider/model"}
		}
		if m.Window < 0 || m.Output < 0 || (m.Price != nil && m.Price.negative()) {
			return nil, &v1.Error{Code: v1.CodeModelConfig, Op: "configure model " + name, Message: "windows and prices cannot be negative"}
		}
	}
	return s, nil
}

// Close closes idle connections, and the cassette that is recorded on. Calls under way go on; they are no longer recorded, and fail if they should have been.
func (s *Set) Close() {
	s.http.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tape != nil {
		_ = s.tape.Close() // each call is on disk already
	}
}

// Record has all calls of the set's models written to a cassette, which the set closes. Models that were given out before are not recorded.
func (s *Set) Record(c *Cassette) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tape = c
}

// Add makes a model known by its own name, before those of providers: a scripted one, a recording, or one of yours.
func (s *Set) Add(m Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added[m.Info().Name] = m
}

// bare are the makers of models that are known by their names alone.
var bare = []struct {
	name     *regexp.Regexp
	provider string
}{
	{regexp.MustCompile(`^(gpt-|o\d|chatgpt-)`), "openai"},
	{regexp.MustCompile(`^claude-`), "anthropic"},
}

// split finds the provider in a name, and what the model is called there. It is empty where there is none.
func split(name string) (provider, model string) {
	if provider, model, ok := strings.Cut(name, "/"); ok {
		return provider, model
	}
	for _, b := range bare {
		if b.name.MatchString(name) {
			return b.provider, name
		}
	}
	return "", name
}

// Model gives a model by its name, provider/model. Several with commas between are a fall-back list. It asks nobody whether the model exists:
// that the first call tells.
func (s *Set) Model(name string) (Model, error) {
	parts := strings.Split(name, ",")
	list := make([]Model, 0, len(parts))
	for _, part := range parts {
		m, err := s.one(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return Fallback(list[0], list[1:]...), nil
}

// RunsHere reports whether a name stands for a program on this machine, alone or in a fall-back list.
func (s *Set) RunsHere(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range strings.SplitSeq(name, ",") {
		part = strings.TrimSpace(part)
		if s.added[part] != nil {
			continue
		}
		of, _ := split(part)
		if cfg, ok, err := s.cfg.provider(of); err == nil && ok && cfg.Type == TypeCLI {
			return true
		}
	}
	return false
}

// one gives a model by its name alone, recorded if that is wanted.
func (s *Set) one(name string) (Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(name)
	if err != nil || s.tape == nil {
		return m, err
	}
	return s.tape.Recorded(m), nil
}

// find finds a model.
// Preconditions: s.mu is held.
func (s *Set) find(name string) (Model, error) {
	if m, ok := s.added[name]; ok {
		return m, nil
	}
	unknown := func(why, remedy string) error {
		return &v1.Error{Code: v1.CodeModelUnknown, Op: "find model", Message: why, Remedy: remedy}
	}
	providerName, model := split(name)
	if providerName == "" || model == "" {
		return nil, unknown(fmt.Sprintf("%q is no name of a model", name), "write it as provider/model, e.g. openai/gpt-6-sol or ollama/qwen3:8b")
	}
	p, err := s.provider(providerName)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, unknown(fmt.Sprintf("there is no provider %q", providerName), "known are "+strings.Join(s.names(), ", ")+"; others are configured with a type and a base_url")
	}
	return p.model(model, s.cfg.Models[providerName+"/"+model])
}

// provider gives a provider by name, nil when there is none.
// Preconditions: s.mu is held.
func (s *Set) provider(name string) (*provider, error) {
	if p, ok := s.providers[name]; ok {
		return p, nil
	}
	cfg, ok, err := s.cfg.provider(name)
	if err != nil || !ok {
		return nil, err
	}
	p := newProvider(name, cfg, s.retry, s.http)
	s.providers[name] = p
	return p, nil
}

// names lists the providers, and those of added models.
// Preconditions: s.mu is held.
func (s *Set) names() []string {
	all := map[string]bool{}
	for name := range builtin {
		all[name] = true
	}
	for name := range s.cfg.Providers {
		all[name] = true
	}
	for name := range s.added {
		all[strings.SplitN(name, "/", 2)[0]] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// Default gives the model when nobody has named one: the configured one, RECLUSE_MODEL, the usual one of a provider whose key is
// in the environment, or the first that Ollama on this machine has. When there is none, the error says how to get one.
func (s *Set) Default(ctx context.Context) (Model, error) {
	for _, name := range []string{s.cfg.Default, s.cfg.env("RECLUSE_MODEL")} {
		if name != "" {
			return s.Model(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(preferred)) {
		cfg, _, err := s.cfg.provider(name)
		if err != nil {
			return nil, err
		}
		// With another base URL there is no telling which models are there.
		if cfg.Key != "" && cfg.BaseURL == builtin[name].BaseURL {
			return s.Model(name + "/" + preferred[name])
		}
	}
	found, err := s.Installed(ctx)
	if ctx.Err() != nil {
		return nil, cancelled(ctx, "ollama")
	}
	if err == nil && len(found) > 0 {
		return s.Model("ollama/" + found[0])
	}
	return nil, &v1.Error{
		Code: v1.CodeModelMissing, Op: "find model", Message: "no model is configured and none was found",
		Remedy: "there are three ways: set ANTHROPIC_API_KEY or OPENAI_API_KEY; " +
			"or run Ollama and pull a model (ollama pull qwen3:8b), which is then found by itself; " +
			"or set OPENAI_BASE_URL to any OpenAI-compatible server and name its model as openai/NAME",
	}
}

// Installed lists the models that Ollama has, latest first, without "ollama/" before them.
func (s *Set) Installed(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	p, err := s.provider("ollama")
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	return ollamaModels(ctx, p)
}

// Route finds the models of a route.
func (s *Set) Route(ctx context.Context, r Route) (*Routing, error) {
	out := &Routing{set: s}
	var err error
	if r.Root == "" {
		out.root, err = s.Default(ctx)
	} else {
		out.root, err = s.Model(r.Root)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range r.Sub {
		m, err := s.Model(name)
		if err != nil {
			return nil, err
		}
		out.subs = append(out.subs, m)
	}
	return out, nil
}
