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

// The types of providers.
const (
	TypeOpenAI    = "openai"    // a server with OpenAI's Chat Completions API
	TypeAnthropic = "anthropic" // Anthropic's Messages API
	TypeOllama    = "ollama"    // Ollama's own API
	TypeCLI       = "cli"       // agent programs on this machine
)

// The defaults of Provider and Retry.
const (
	DefaultTimeout     = v1.Duration(15 * time.Minute) // of one attempt
	DefaultIdle        = v1.Duration(3 * time.Minute)  // without a byte; thinking models are silent for minutes
	DefaultConcurrency = 128
	// DefaultLocalConcurrency is the default for Ollama and agent programs, which use this machine's CPUs.
	DefaultLocalConcurrency = 4
	DefaultAttempts         = 5
	DefaultBackoff          = v1.Duration(500 * time.Millisecond)
	DefaultMaxBackoff       = v1.Duration(60 * time.Second)
)

// Config configures providers and models. The zero value is usable: it takes keys from the environment and finds Ollama
// on this machine.
type Config struct {
	// Default is the model of requests that name none. Empty: see Set.Default.
	Default string `json:"default,omitempty" yaml:"default"`
	// Providers adds providers and changes built-in ones, by name.
	Providers map[string]Provider `json:"providers,omitempty" yaml:"providers"`
	// Models overrides windows and prices of models, by provider/model.
	Models map[string]ModelConfig `json:"models,omitempty" yaml:"models"`
	Retry  Retry                  `json:"retry" yaml:"retry"`
	// Env returns the value of an environment variable; nil: os.Getenv.
	Env func(name string) string `json:"-" yaml:"-"`
}

// Provider configures one provider. Empty fields keep the values of the built-in provider of the same name.
type Provider struct {
	Type    string `json:"type,omitempty" yaml:"type"` // openai, anthropic, ollama, cli
	BaseURL string `json:"base_url,omitempty" yaml:"base_url"`
	// Key is the provider's key. KeyEnv names the environment variable that holds it instead.
	Key     string            `json:"-" yaml:"key"`
	KeyEnv  string            `json:"key_env,omitempty" yaml:"key_env"`
	Headers map[string]string `json:"-" yaml:"headers"`

	Concurrency       int   `json:"concurrency,omitempty" yaml:"concurrency"` // maximum number of concurrent calls
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty" yaml:"requests_per_minute"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty" yaml:"tokens_per_minute"` // estimated before the call

	Timeout v1.Duration `json:"timeout,omitempty" yaml:"timeout"`           // of one attempt
	Idle    v1.Duration `json:"idle_timeout,omitempty" yaml:"idle_timeout"` // without a byte
	// NoStream requests replies in one piece, for servers that cannot stream. Request.Delta then receives one piece.
	NoStream bool `json:"no_stream,omitempty" yaml:"no_stream"`
	// Local marks models that cost nothing.
	Local bool `json:"local,omitempty" yaml:"local"`

	// Commands are the programs and arguments of a cli provider, by model name. They read the prompt from standard
	// input. An empty command is allowed for claude and codex, and means their known arguments.
	Commands map[string][]string `json:"commands,omitempty" yaml:"commands"`
}

// ModelConfig overrides the window, reply length and price of a model. Zero fields override nothing.
type ModelConfig struct {
	Window int64  `json:"window_tokens,omitempty" yaml:"window_tokens"`
	Output int64  `json:"output_tokens,omitempty" yaml:"output_tokens"`
	Price  *Price `json:"price,omitempty" yaml:"price"`
}

// Retry configures how often and when a failed call is retried. Zero fields have defaults.
type Retry struct {
	Attempts int         `json:"attempts,omitempty" yaml:"attempts"` // including the first
	Backoff  v1.Duration `json:"backoff,omitempty" yaml:"backoff"`
	// Max is the longest backoff. If a provider requests a longer one with Retry-After, the call fails, and its error
	// states the requested time.
	Max v1.Duration `json:"max,omitempty" yaml:"max"`
}

// ReadConfig reads a configuration in YAML or JSON. An unknown key is an error.
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

// builtin are the providers that need no configuration. Local servers have their default ports.
var builtin = map[string]Provider{
	"openai":     {Type: TypeOpenAI, BaseURL: "https://api.openai.com/v1", KeyEnv: "OPENAI_API_KEY"},
	"anthropic":  {Type: TypeAnthropic, BaseURL: "https://api.anthropic.com", KeyEnv: "ANTHROPIC_API_KEY"},
	"openrouter": {Type: TypeOpenAI, BaseURL: "https://openrouter.ai/api/v1", KeyEnv: "OPENROUTER_API_KEY"},
	"gemini": {
		Type:    TypeOpenAI,
		BaseURL: "https://generativelanguage.googleapis.com/v1beta/openai",
		KeyEnv:  "GEMINI_API_KEY",
	},
	"groq":     {Type: TypeOpenAI, BaseURL: "https://api.groq.com/openai/v1", KeyEnv: "GROQ_API_KEY"},
	"deepseek": {Type: TypeOpenAI, BaseURL: "https://api.deepseek.com/v1", KeyEnv: "DEEPSEEK_API_KEY"},
	"mistral":  {Type: TypeOpenAI, BaseURL: "https://api.mistral.ai/v1", KeyEnv: "MISTRAL_API_KEY"},
	"xai":      {Type: TypeOpenAI, BaseURL: "https://api.x.ai/v1", KeyEnv: "XAI_API_KEY"},
	"together": {Type: TypeOpenAI, BaseURL: "https://api.together.xyz/v1", KeyEnv: "TOGETHER_API_KEY"},
	"ollama":   {Type: TypeOllama, BaseURL: "http://127.0.0.1:11434", Local: true},
	"lmstudio": {Type: TypeOpenAI, BaseURL: "http://127.0.0.1:1234/v1", Local: true},
	"llamacpp": {Type: TypeOpenAI, BaseURL: "http://127.0.0.1:8080/v1", Local: true},
	"vllm":     {Type: TypeOpenAI, BaseURL: "http://127.0.0.1:8000/v1", Local: true},
}

// baseURLEnv are the environment variables that change the base URL of a built-in provider.
var baseURLEnv = map[string]string{
	"openai":    "OPENAI_BASE_URL",
	"anthropic": "ANTHROPIC_BASE_URL",
	"ollama":    "OLLAMA_HOST",
}

// Variables returns the sorted names of the environment variables that the configuration reads.
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

// provider returns the settings of a provider, and whether there is one of that name. The configuration overrides the
// environment, and the environment overrides the built-in values.
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
	p = p.overriddenBy(set)
	if p.Key == "" && p.KeyEnv != "" {
		p.Key = strings.TrimSpace(c.env(p.KeyEnv))
	}
	if err := p.complete(name); err != nil {
		return Provider{}, true, err
	}
	return p, true, nil
}

// Secrets returns the keys of all providers, also of those that are not used, and the values of their headers.
func (c Config) Secrets() []string {
	var all []string
	for name := range builtin {
		all = append(all, c.secretsOf(name)...)
	}
	for name := range c.Providers {
		all = append(all, c.secretsOf(name)...)
	}
	return all
}

// secretsOf returns the key of a provider and the values of its headers. A provider may also have a key in the
// environment that its configuration replaces.
func (c Config) secretsOf(name string) []string {
	var all []string
	for _, p := range []Provider{builtin[name], c.Providers[name]} {
		all = append(all, p.Key)
		if p.KeyEnv != "" {
			all = append(all, strings.TrimSpace(c.env(p.KeyEnv)))
		}
		all = append(all, headerSecrets(p.Headers)...)
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// overriddenBy returns p with the fields of q. Empty fields of q keep the type, address, key and Local of p.
func (p Provider) overriddenBy(q Provider) Provider {
	p.Type, p.BaseURL = cmp.Or(q.Type, p.Type), cmp.Or(q.BaseURL, p.BaseURL)
	p.Key, p.KeyEnv = cmp.Or(q.Key, p.Key), cmp.Or(q.KeyEnv, p.KeyEnv)
	p.Headers, p.Commands = q.Headers, q.Commands
	p.Concurrency, p.RequestsPerMinute, p.TokensPerMinute = q.Concurrency, q.RequestsPerMinute, q.TokensPerMinute
	p.Timeout, p.Idle, p.NoStream = q.Timeout, q.Idle, q.NoStream
	p.Local = p.Local || q.Local
	return p
}

// complete sets defaults and validates the settings.
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
			return bad("missing commands", `write commands: {claude: []} to use the installed claude`)
		}
		for model, args := range p.Commands {
			if len(args) == 0 && knownCommands[model] == nil {
				return bad(fmt.Sprintf("empty command of %s", model), "write the program and its arguments")
			}
			if len(args) > 0 && args[0] == "" {
				return bad(fmt.Sprintf("empty program in the command of %s", model), "write the program and its arguments")
			}
		}
		return nil
	case TypeOllama:
		p.BaseURL = ollamaURL(p.BaseURL)
	case TypeOpenAI, TypeAnthropic:
	case "":
		return bad("missing type", "write type: openai for a server with OpenAI's API, or anthropic, ollama or cli")
	default:
		return bad(fmt.Sprintf("invalid type %q", p.Type), "write openai, anthropic, ollama or cli")
	}
	u, err := url.Parse(p.BaseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		// The error does not contain the URL, which may contain a password.
		return bad("base_url is not an http or https URL", "write it like http://127.0.0.1:8000/v1")
	}
	if u.User != nil {
		return bad("base_url contains a user or password", "use key_env or headers instead")
	}
	return nil
}

// ollamaURL returns the URL for an address in the format of OLLAMA_HOST: host, host:port or a URL. An address that
// means all interfaces becomes 127.0.0.1.
func ollamaURL(host string) string {
	host = strings.TrimRight(strings.TrimSpace(host), "/")
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	u, err := url.Parse(host)
	if err != nil || u.Host == "" {
		return host // complete reports it as invalid
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

// withDefaults returns r with defaults instead of zero fields.
func (r Retry) withDefaults() Retry {
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
