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

// probeTimeout is the timeout of the check for Ollama, which runs on this machine and answers at once or not at all.
const probeTimeout = 2 * time.Second

// Set holds the models of a configuration, by provider/model. Its methods may be called from several goroutines.
type Set struct {
	cfg   Config
	retry Retry
	http  *http.Transport

	mu        sync.Mutex
	providers map[string]*provider // guarded by mu; made at first use
	added     map[string]Model     // guarded by mu
	cassette  *Cassette            // guarded by mu; nil: calls are not recorded
}

// Open returns the set of a configuration. It validates the configuration, but contacts no provider. The caller must
// close the set.
func Open(cfg Config) (*Set, error) {
	s := &Set{
		cfg:       cfg,
		retry:     cfg.Retry.withDefaults(),
		http:      newTransport(),
		providers: map[string]*provider{},
		added:     map[string]Model{},
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Providers)) {
		if name == "" || strings.ContainsAny(name, "/, \t\n") {
			return nil, &v1.Error{
				Code:    v1.CodeModelConfig,
				Op:      "configure providers",
				Message: fmt.Sprintf("invalid provider name %q", name),
				Remedy:  "use letters, digits and dashes",
			}
		}
		if _, _, err := cfg.provider(name); err != nil {
			return nil, err
		}
	}
	for name, m := range cfg.Models {
		if !strings.Contains(name, "/") {
			return nil, &v1.Error{
				Code:    v1.CodeModelConfig,
				Op:      "configure models",
				Message: fmt.Sprintf("missing provider in model name %q", name),
				Remedy:  "write it as provider/model",
			}
		}
		if m.Window < 0 || m.Output < 0 || (m.Price != nil && m.Price.negative()) {
			return nil, &v1.Error{
				Code:    v1.CodeModelConfig,
				Op:      "configure model " + name,
				Message: "windows and prices cannot be negative",
			}
		}
	}
	return s, nil
}

// Close closes idle connections and the cassette of a recording. Running calls continue; if they should be recorded,
// they fail.
func (s *Set) Close() {
	s.http.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cassette != nil {
		_ = s.cassette.Close() // each call was synced to disk
	}
}

// Record records the calls of all models that the set returns from now on. The set closes the cassette.
func (s *Set) Record(c *Cassette) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cassette = c
}

// Add adds a model under its own name: a scripted model, a recording, or an implementation of the caller. It takes
// precedence over a provider's model of the same name.
func (s *Set) Add(m Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added[m.Info().Name] = m
}

// bareNames are the providers of models whose name needs no provider.
var bareNames = []struct {
	name     *regexp.Regexp
	provider string
}{
	{regexp.MustCompile(`^(gpt-|o\d|chatgpt-)`), "openai"},
	{regexp.MustCompile(`^claude-`), "anthropic"},
}

// splitName returns the provider and the provider's name of a model. The provider is empty if the name has none.
func splitName(name string) (provider, model string) {
	if provider, model, ok := strings.Cut(name, "/"); ok {
		return provider, model
	}
	for _, b := range bareNames {
		if b.name.MatchString(name) {
			return b.provider, name
		}
	}
	return "", name
}

// Model returns a model by its name, provider/model. Several names, separated by commas, are a fallback list. Model
// does not check whether the provider has the model; the first call does.
func (s *Set) Model(name string) (Model, error) {
	parts := strings.Split(name, ",")
	list := make([]Model, 0, len(parts))
	for _, part := range parts {
		m, err := s.named(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return Fallback(list[0], list[1:]...), nil
}

// RunsHere reports whether a name, or one in a fallback list, means a program on this machine (type cli).
func (s *Set) RunsHere(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range strings.SplitSeq(name, ",") {
		part = strings.TrimSpace(part)
		if s.added[part] != nil {
			continue
		}
		of, _ := splitName(part)
		if cfg, ok, err := s.cfg.provider(of); err == nil && ok && cfg.Type == TypeCLI {
			return true
		}
	}
	return false
}

// named returns a model by a single name. Its calls are recorded if the set has a cassette.
func (s *Set) named(name string) (Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(name)
	if err != nil || s.cassette == nil {
		return m, err
	}
	return s.cassette.Recorded(m), nil
}

// find returns a model by a single name.
//
// Preconditions: s.mu is held.
func (s *Set) find(name string) (Model, error) {
	if m, ok := s.added[name]; ok {
		return m, nil
	}
	unknown := func(why, remedy string) error {
		return &v1.Error{Code: v1.CodeModelUnknown, Op: "find model", Message: why, Remedy: remedy}
	}
	providerName, model := splitName(name)
	if providerName == "" || model == "" {
		return nil, unknown(fmt.Sprintf("invalid model name %q", name),
			"write it as provider/model, for example openai/gpt-6-sol or ollama/qwen3:8b")
	}
	p, err := s.provider(providerName)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, unknown(fmt.Sprintf("provider %q not found", providerName),
			"use one of "+strings.Join(s.names(), ", ")+"; or configure the provider with a type and a base_url")
	}
	return p.model(model, s.cfg.Models[providerName+"/"+model])
}

// provider returns a provider by name, or nil if there is none.
//
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

// names returns the sorted names of all providers, including those of added models.
//
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

// Default returns the model of requests that name none: Config.Default, else RECLUSE_MODEL, else the preferred model of
// a provider whose key is in the environment, else the first model of Ollama on this machine. If there is none, the
// remedy of the error lists the ways to get one.
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
		// The server at another base URL may not have the preferred model.
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
		Code:    v1.CodeModelMissing,
		Op:      "find model",
		Message: "no model is configured and none was found",
		Remedy: "set ANTHROPIC_API_KEY or OPENAI_API_KEY; " +
			"or run Ollama and pull a model (ollama pull qwen3:8b), which is then found automatically; " +
			"or set OPENAI_BASE_URL to an OpenAI-compatible server and name its model as openai/NAME",
	}
}

// Secrets returns the keys of all providers, and the values of their headers.
func (s *Set) Secrets() []string { return s.cfg.Secrets() }

// Installed returns the models of Ollama, newest first, without the prefix "ollama/".
func (s *Set) Installed(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	p, err := s.provider("ollama")
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return ollamaModels(ctx, p)
}

// Route returns the models of a route.
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
