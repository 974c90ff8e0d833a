package llm

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The kinds of providers.
const (
	TypeOpenAI    = "openai"    // whoever speaks OpenAI's chat completions
	TypeAnthropic = "anthropic" // Anthropic's messages
	TypeOllama    = "ollama"    // Ollama's own API
	TypeCLI       = "cli"       // an agent's command line on this machine
)

// The defaults of Provider and Retry.
const (
	DefaultTimeout     = v1.Duration(15 * time.Minute) // of one attempt
	DefaultIdle        = v1.Duration(3 * time.Minute)  // without a byte from the provider; thinking models are silent for long
	DefaultConcurrency = 128
	// DefaultLocalConcurrency is for Ollama and command lines, which work on this machine.
	DefaultLocalConcurrency = 4
	DefaultAttempts         = 5
	DefaultBackoff          = v1.Duration(500 * time.Millisecond)
	DefaultMaxBackoff       = v1.Duration(60 * time.Second)
)

// Config says which models there are. The zero value is useful: it takes keys from the environment and finds Ollama on this machine.
// Its form in YAML or JSON has the names below.
type Config struct {
	// Default is the model when none is named. Empty: RECLUSE_MODEL, or one that is found; see Set.Default.
	Default string `json:"default,omitempty" yaml:"default"`
	// Providers adds providers and changes built-in ones, by name.
	Providers map[string]Provider `json:"providers,omitempty" yaml:"providers"`
	// Models overrides what is known of models, by provider/model.
	Models map[string]ModelConfig `json:"models,omitempty" yaml:"models"`
	Retry  Retry                  `json:"retry" yaml:"retry"`
	// Env reads the environment; nil: os.Getenv.
	Env func(name string) string `json:"-" yaml:"-"`
}

// Provider is one place where models are asked. Empty fields keep what a built-in provider has.
type Provider struct {
	Type    string `json:"type,omitempty" yaml:"type"` // openai, anthropic, ollama, cli
	BaseURL string `json:"base_url,omitempty" yaml:"base_url"`
	// Key is the provider's key. KeyEnv names the environment variable that holds it instead.
	Key     string            `json:"-" yaml:"key"`
	KeyEnv  string            `json:"key_env,omitempty" yaml:"key_env"`
	Headers map[string]string `json:"-" yaml:"headers"`

	Concurrency       int   `json:"concurrency,omitempty" yaml:"concurrency"` // calls at once
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty" yaml:"requests_per_minute"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty" yaml:"tokens_per_minute"` // as estimated before the call

	Timeout v1.Duration `json:"timeout,omitempty" yaml:"timeout"`           // of one attempt
	Idle    v1.Duration `json:"idle_timeout,omitempty" yaml:"idle_timeout"` // without a byte
	// NoStream asks for whole replies, for servers that cannot stream. The listener then hears one piece.
	NoStream bool `json:"no_stream,omitempty" yaml:"no_stream"`
	// Local says that the models cost nothing.
	Local bool `json:"local,omitempty" yaml:"local"`

	// Commands are the command lines of a cli provider, by the name of the model. The prompt comes on their standard input.
	// An empty one means what is known to work: claude, codex.
	Commands map[string][]string `json:"commands,omitempty" yaml:"commands"`
}

// ModelConfig overrides what is known of a model. Zero fields keep it.
type ModelConfig struct {
	Window int64  `json:"window_tokens,omitempty" yaml:"window_tokens"`
	Output int64  `json:"output_tokens,omitempty" yaml:"output_tokens"`
	Price  *Price `json:"price,omitempty" yaml:"price"`
}

// Retry says how often and when a failed call is tried again. Zero fields take their defaults.
type Retry struct {
	Attempts int         `json:"attempts,omitempty" yaml:"attempts"` // the first one included
	Backoff  v1.Duration `json:"backoff,omitempty" yaml:"backoff"`
	// Max is the longest wait. A provider that asks for a longer one (Retry-After) is not waited for: the error says when.
	Max v1.Duration `json:"max,omitempty" yaml:"max"`
}

// ReadConfig reads a configuration in YAML or JSON. A key that is not known is an error.
func ReadConfig(r io.Reader) (Config, error) {
	bad := func(err error) error {
		return &v1.Error{Code: v1.CodeModelConfig, Op: "read model configuration", Err: err}
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return Config{}, bad(err)
	}
	var c Config
	if err := decodeStrict(data, &c); err != nil {
		return Config{}, bad(err)
	}
	return c, nil
}

// builtin is the providers that need no configuration. Those on this machine are at their programs' usual ports.
var builtin = map[string]Provider{
	"openai":     {Type: TypeOpenAI, BaseURL: "https://api.openai.com/v1", KeyEnv: "OPENAI_API_KEY"},
	"anthropic":  {Type: TypeAnthropic, BaseURL: "https://api.anthropic.com", KeyEnv: "ANTHROPIC_API_KEY"},
	"openrouter": {Type: TypeOpenAI, BaseURL: "https://openrouter.ai/api/v1", KeyEnv: "OPENROUTER_API_KEY"},
	"gemini":     {Type: TypeOpenAI, BaseURL: "https://generativelanguage.googleapis.com/v1beta/openai", KeyEnv: "GEMINI_API_KEY"},
	"groq":       {Type: TypeOpenAI, BaseURL: "https://api.groq.com/openai/v1", KeyEnv: "GROQ_API_KEY"},
	"deepseek":   {Type: TypeOpenAI, BaseURL: "https://api.deepseek.com/v1", KeyEnv: "DEEPSEEK_API_KEY"},
	"mistral":    {Type: TypeOpenAI, BaseURL: "https://api.mistral.ai/v1", KeyEnv: "MISTRAL_API_KEY"},
	"xai":        {Type: TypeOpenAI, BaseURL: "https://api.x.ai/v1", KeyEnv: "XAI_API_KEY"},
	"together":   {Type: TypeOpenAI, BaseURL: "https://api.together.xyz/v1", KeyEnv: "TOGETHER_API_KEY"},
	"ollama":     {Type: TypeOllama, BaseURL: "http://127.0.0.1:11434", Local: true},
	"lmstudio":   {Type: TypeOpenAI, BaseURL: "http://127.0.0.1:1234/v1", Local: true},
	"llamacpp":   {Type: TypeOpenAI, BaseURL: "http://127.0.0.1:8080/v1", Local: true},
	"vllm":       {Type: TypeOpenAI, BaseURL: "http://127.0.0.1:8000/v1", Local: true},
}

// baseURLEnv is where the environment moves a built-in provider.
var baseURLEnv = map[string]string{"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "ollama": "OLLAMA_HOST"}

// Variables returns the names of the environment variables that the configuration reads, sorted.
func (c Config) Variables() []string {
	names := []string{"RECLUSE_MODEL"}
	names = slices.AppendSeq(names, maps.Values(baseURLEnv))
	for _, providers := range []map[string]Provider{builtin, c.Providers} {
		for _, p := range providers {
			if p.KeyEnv != "" {
				names = append(names, p.KeyEnv)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// provider merges what is built in, the environment and the configuration, the last being the strongest.
func (c Config) provider(name string) (Provider, bool, error) {
	p, known := builtin[name]
	if env := baseURLEnv[name]; env != "" {
		if v := c.env(env); v != "" {
			p.BaseURL = v
		}
	}
	set, configured := c.Providers[name]
	if !known && !configured {
		return Provider{}, false, nil
	}
	p = p.with(set)
	if p.Key == "" && p.KeyEnv != "" {
		p.Key = strings.TrimSpace(c.env(p.KeyEnv))
	}
	if err := p.complete(name); err != nil {
		return Provider{}, true, err
	}
	return p, true, nil
}

// with lays the fields that are set in q over p.
func (p Provider) with(q Provider) Provider {
	p.Type, p.BaseURL = cmp.Or(q.Type, p.Type), cmp.Or(q.BaseURL, p.BaseURL)
	p.Key, p.KeyEnv = cmp.Or(q.Key, p.Key), cmp.Or(q.KeyEnv, p.KeyEnv)
	p.Headers, p.Commands = q.Headers, q.Commands
	p.Concurrency, p.RequestsPerMinute, p.TokensPerMinute = q.Concurrency, q.RequestsPerMinute, q.TokensPerMinute
	p.Timeout, p.Idle, p.NoStream = q.Timeout, q.Idle, q.NoStream
	p.Local = p.Local || q.Local
	return p
}

// complete fills in defaults and checks the rest.
func (p *Provider) complete(name string) error {
	bad := func(why, remedy string) error {
		return &v1.Error{Code: v1.CodeModelConfig, Op: "configure provider " + name, Message: why, Remedy: remedy}
	}
	if p.Timeout < 0 || p.Idle < 0 || p.Concurrency < 0 || p.RequestsPerMinute < 0 || p.TokensPerMinute < 0 {
		return bad("limits and timeouts cannot be negative", "")
	}
	local := p.Type == TypeOllama || p.Type == TypeCLI
	if local {
		p.Concurrency = cmp.Or(p.Concurrency, DefaultLocalConcurrency)
	}
	p.Concurrency = cmp.Or(p.Concurrency, DefaultConcurrency)
	p.Timeout, p.Idle = cmp.Or(p.Timeout, DefaultTimeout), cmp.Or(p.Idle, DefaultIdle)
	switch p.Type {
	case TypeCLI:
		if len(p.Commands) == 0 {
			return bad("it has no commands", `write commands: {claude: []} to use the claude that is installed`)
		}
		for model, args := range p.Commands {
			if len(args) == 0 && agents[model] == nil {
				return bad(fmt.Sprintf("the command of %s is empty", model), "write the program and its arguments")
			}
			if len(args) > 0 && args[0] == "" {
				return bad(fmt.Sprintf("the command of %s has no program", model), "write the program and its arguments")
			}
		}
		return nil
	case TypeOllama:
		p.BaseURL = ollamaURL(p.BaseURL)
	case TypeOpenAI, TypeAnthropic:
	case "":
		return bad("it has no type", "say type: openai for any server that speaks OpenAI's API, or anthropic, ollama, cli")
	default:
		return bad(fmt.Sprintf("its type %q is not known", p.Type), "it can be openai, anthropic, ollama or cli")
	}
	u, err := url.Parse(p.BaseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		// The address is not repeated: it may hold a password.
		return bad("its base_url is not an http or https address", "write it like http://127.0.0.1:8000/v1")
	}
	if u.User != nil {
		return bad("its base_url holds a user or password", "put the key into key_env, or a header into headers")
	}
	return nil
}

// ollamaURL reads an address as OLLAMA_HOST has it: host, host:port or a URL. Where a server listens on every address, it is asked
// on this machine's own.
func ollamaURL(host string) string {
	host = strings.TrimRight(strings.TrimSpace(host), "/")
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	u, err := url.Parse(host)
	if err != nil || u.Host == "" {
		return host // refused by whoever checks it
	}
	name, port := u.Hostname(), u.Port()
	if name == "" || name == "0.0.0.0" || name == "::" {
		name = "127.0.0.1"
	}
	if port == "" && u.Scheme == "http" {
		port = "11434"
	}
	if strings.Contains(name, ":") {
		name = "[" + name + "]"
	}
	u.Host = name
	if port != "" {
		u.Host += ":" + port
	}
	return u.String()
}

func (c Config) env(name string) string {
	if c.Env != nil {
		return c.Env(name)
	}
	return os.Getenv(name)
}

// filled gives the policy with its defaults.
func (r Retry) filled() Retry {
	if r.Attempts <= 0 {
		r.Attempts = DefaultAttempts
	}
	if r.Backoff <= 0 {
		r.Backoff = DefaultBackoff
	}
	if r.Max <= 0 {
		r.Max = DefaultMaxBackoff
	}
	return r
}
