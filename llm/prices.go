package llm

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// Defaults for a model that is not in the table. The window is small on purpose: a prompt that is smaller than possible
// costs an extra turn, but a prompt that is too large is refused.
const (
	defaultWindow = 128_000
	defaultOutput = 16_384
	// ollamaWindow is the window that is requested from Ollama. A larger one takes more memory there. Ollama's own
	// default is a few thousand tokens, and Ollama silently drops the beginning of a longer prompt.
	ollamaWindow = 32_768
)

// knownModel is the window and the longest reply of a model, and its prices for a million tokens of input, cached input
// and output.
type knownModel struct {
	window, output            int64
	input, cached, outputCost float64
	long                      *LongPrice
}

// longPrice returns OpenAI's price of calls with long inputs: input costs 2 times as much, output 1.5 times.
func longPrice(input, cached, output float64) *LongPrice {
	return &LongPrice{Above: 272_000, Input: 2 * input, CachedInput: 2 * cached, Output: 1.5 * output}
}

// modelTable holds well-known models by provider/model, with prices as published in November 2026. Where sources
// differ, it has the higher price. A model that is not in the table works without a price, unless Config.Models has
// one. A dated name (gpt-4o-2024-11-20) is found under the name without the date.
var modelTable = map[string]knownModel{
	"openai/gpt-6-sol":     {1_050_000, 128_000, 2, 0.2, 10, longPrice(2, 0.2, 10)},
	"openai/gpt-6-luna":    {1_050_000, 128_000, 0.1, 0.01, 0.5, longPrice(0.1, 0.01, 0.5)},
	"openai/gpt-5.6-sol":   {1_000_000, 128_000, 5, 0.5, 30, longPrice(5, 0.5, 30)},
	"openai/gpt-5.6-terra": {1_000_000, 128_000, 2, 0.2, 12, longPrice(2, 0.2, 12)},
	"openai/gpt-5.6-luna":  {1_000_000, 128_000, 0.2, 0.02, 1.2, longPrice(0.2, 0.02, 1.2)},
	"openai/gpt-5.5":       {272_000, 128_000, 5, 0.5, 30, nil},
	"openai/gpt-5.4":       {272_000, 128_000, 2.5, 0.25, 15, nil},
	"openai/gpt-5.4-mini":  {272_000, 128_000, 0.75, 0.075, 4.5, nil},
	"openai/gpt-5.2":       {400_000, 128_000, 1.75, 0.175, 14, nil},
	"openai/gpt-5.1":       {400_000, 128_000, 1.25, 0.125, 10, nil},
	"openai/gpt-5":         {400_000, 128_000, 1.25, 0.125, 10, nil},
	"openai/gpt-5-mini":    {400_000, 128_000, 0.25, 0.025, 2, nil},
	"openai/gpt-5-nano":    {400_000, 128_000, 0.05, 0.005, 0.4, nil},
	"openai/gpt-4.1":       {1_047_576, 32_768, 2, 0.5, 8, nil},
	"openai/gpt-4.1-mini":  {1_047_576, 32_768, 0.4, 0.1, 1.6, nil},
	"openai/gpt-4.1-nano":  {1_047_576, 32_768, 0.1, 0.025, 0.4, nil},
	"openai/gpt-4o":        {128_000, 16_384, 2.5, 1.25, 10, nil},
	"openai/gpt-4o-mini":   {128_000, 16_384, 0.15, 0.075, 0.6, nil},
	"openai/o3":            {200_000, 100_000, 2, 0.5, 8, nil},
	"openai/o3-mini":       {200_000, 100_000, 1.1, 0.55, 4.4, nil},
	"openai/o4-mini":       {200_000, 100_000, 1.1, 0.275, 4.4, nil},

	"anthropic/claude-fable-5-1":  {1_000_000, 128_000, 10, 0.25, 50, nil},
	"anthropic/claude-fable-5":    {1_000_000, 128_000, 10, 1, 50, nil},
	"anthropic/claude-opus-5-5":   {1_000_000, 128_000, 4, 0.4, 20, nil},
	"anthropic/claude-opus-5":     {1_000_000, 128_000, 5, 0.5, 25, nil},
	"anthropic/claude-opus-4-8":   {200_000, 128_000, 5, 0.5, 25, nil},
	"anthropic/claude-opus-4-7":   {200_000, 128_000, 5, 0.5, 25, nil},
	"anthropic/claude-opus-4-6":   {200_000, 128_000, 5, 0.5, 25, nil},
	"anthropic/claude-opus-4-5":   {200_000, 64_000, 5, 0.5, 25, nil},
	"anthropic/claude-sonnet-5-5": {1_000_000, 128_000, 2, 0.2, 10, nil},
	"anthropic/claude-sonnet-5":   {1_000_000, 128_000, 2, 0.2, 10, nil},
	"anthropic/claude-sonnet-4-6": {200_000, 64_000, 3, 0.3, 15, nil},
	"anthropic/claude-sonnet-4-5": {200_000, 64_000, 3, 0.3, 15, nil},
	"anthropic/claude-haiku-5-5": {
		1_000_000,
		128_000,
		0.1,
		0.01,
		0.5,
		&LongPrice{Above: 100_000, Input: 0.5, CachedInput: 0.05, Output: 2.5},
	},
	"anthropic/claude-haiku-4-5": {200_000, 64_000, 1, 0.1, 5, nil},
}

// preferred is the default model of a provider that is found by its key. It is in the table, so that its price is
// known.
var preferred = map[string]string{
	"openai":    "gpt-6-sol",
	"anthropic": "claude-sonnet-5-5",
}

// dated matches the end of a name that pins a version.
var dated = lazyregexp.New(`-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$`)

// describe returns the table's information about a model, or defaults. OpenRouter's models are looked up under the
// provider that made them: openrouter/anthropic/claude-opus-4.8 is anthropic/claude-opus-4-8.
func describe(provider, model string) Info {
	info := Info{Name: provider + "/" + model, Window: defaultWindow, Output: defaultOutput}
	name := info.Name
	if provider == "openrouter" {
		name = strings.ReplaceAll(model, ".", "-")
		if strings.HasPrefix(model, "openai/") {
			name = model
		}
	}
	k, ok := modelTable[name]
	if !ok {
		k, ok = modelTable[dated().ReplaceAllString(name, "")]
	}
	if !ok {
		return info
	}
	info.Window, info.Output = k.window, k.output
	info.Price = &Price{Input: k.input, CachedInput: k.cached, Output: k.outputCost, Long: k.long}
	return info
}

// withCost returns u with its cost. If the price is unknown, it sets Unpriced.
func withCost(u Usage, info Info) Usage {
	if info.Local {
		return u
	}
	if info.Price == nil {
		u.Unpriced = true
		return u
	}
	u.Cost = info.Price.Cost(u)
	return u
}

// Cost returns the cost of one call in US dollars.
func (p Price) Cost(u Usage) float64 {
	input, cached, output := p.rates(u)
	return (float64(u.Input-u.CachedInput)*input + float64(u.CachedInput)*cached + float64(u.Output)*output) / 1e6
}

// rates returns the prices for a million tokens that apply to a call.
func (p Price) rates(u Usage) (input, cached, output float64) {
	if p.Long != nil && u.Input > p.Long.Above {
		return p.Long.Input, p.Long.CachedInput, p.Long.Output
	}
	return p.Input, p.CachedInput, p.Output
}

// negative reports whether one of the prices is negative.
func (p Price) negative() bool {
	if l := p.Long; l != nil && min(l.Input, l.CachedInput, l.Output) < 0 {
		return true
	}
	return min(p.Input, p.CachedInput, p.Output) < 0
}
