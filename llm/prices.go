package llm

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// What is assumed of a model that is not in the table. The window is careful: a prompt too small for the model costs a turn, one
// too large is refused by it.
const (
	defaultWindow = 128_000
	defaultOutput = 16_384
	// ollamaWindow is what we ask Ollama to give a model. It takes memory there, and Ollama's own default of a few thousand
	// silently drops the beginning of a longer prompt.
	ollamaWindow = 32_768
)

// known is what is known of a model: its window, its longest reply, and its price for a million tokens: input, cached input, output.
type known struct {
	window, output            int64
	input, cached, outputCost float64
	long                      *LongPrice
}

// longer is OpenAI's price of long inputs: twice for what comes in, half as much again for what goes out.
func longer(input, cached, output float64) *LongPrice {
	return &LongPrice{Above: 272_000, Input: 2 * input, CachedInput: 2 * cached, Output: 1.5 * output}
}

// models holds well-known models by provider and name, with prices as they were published by November 2026; where sources differed, the higher one.
// A model that is newer than this table
// works as well, without a price until Config.Models gives one. Dated names (gpt-4o-2024-11-20) are found under the plain one.
var models = map[string]known{
	"openai/gpt-6-sol":     {1_050_000, 128_000, 2, 0.2, 10, longer(2, 0.2, 10)},
	"openai/gpt-6-luna":    {1_050_000, 128_000, 0.1, 0.01, 0.5, longer(0.1, 0.01, 0.5)},
	"openai/gpt-5.6-sol":   {1_000_000, 128_000, 5, 0.5, 30, longer(5, 0.5, 30)},
	"openai/gpt-5.6-terra": {1_000_000, 128_000, 2, 0.2, 12, longer(2, 0.2, 12)},
	"openai/gpt-5.6-luna":  {1_000_000, 128_000, 0.2, 0.02, 1.2, longer(0.2, 0.02, 1.2)},
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
	"anthropic/claude-haiku-5-5":  {1_000_000, 128_000, 0.1, 0.01, 0.5, &LongPrice{Above: 100_000, Input: 0.5, CachedInput: 0.05, Output: 2.5}},
	"anthropic/claude-haiku-4-5":  {200_000, 64_000, 1, 0.1, 5, nil},
}

// preferred is the model taken of a provider that was found by its key when none was named: one that is in the table, so that its
// cost is known.
var preferred = map[string]string{
	"openai":    "gpt-6-sol",
	"anthropic": "claude-sonnet-5-5",
}

// dated is the end of a name that pins a version.
var dated = lazyregexp.New(`-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$`)

// describe gives what is known of a model. OpenRouter's names are those of the makers, under a name of its own.
func describe(provider, model string) Info {
	info := Info{Name: provider + "/" + model, Window: defaultWindow, Output: defaultOutput}
	name := info.Name
	if provider == "openrouter" {
		name = strings.ReplaceAll(model, ".", "-")
		if strings.HasPrefix(model, "openai/") {
			name = model
		}
	}
	k, ok := models[name]
	if !ok {
		k, ok = models[dated().ReplaceAllString(name, "")]
	}
	if !ok {
		return info
	}
	info.Window, info.Output = k.window, k.output
	info.Price = &Price{Input: k.input, CachedInput: k.cached, Output: k.outputCost, Long: k.long}
	return info
}

// priced puts the cost on a usage.
func priced(u Usage, info Info) Usage {
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

// Cost is the price of one call in US dollars.
func (p Price) Cost(u Usage) float64 {
	input, cached, output := p.rates(u)
	return (float64(u.Input-u.CachedInput)*input + float64(u.CachedInput)*cached + float64(u.Output)*output) / 1e6
}

// rates are the prices that hold for a call.
func (p Price) rates(u Usage) (input, cached, output float64) {
	if p.Long != nil && u.Input > p.Long.Above {
		return p.Long.Input, p.Long.CachedInput, p.Long.Output
	}
	return p.Input, p.CachedInput, p.Output
}

// negative tells whether somebody has set a price below nothing.
func (p Price) negative() bool {
	if l := p.Long; l != nil && min(l.Input, l.CachedInput, l.Output) < 0 {
		return true
	}
	return min(p.Input, p.CachedInput, p.Output) < 0
}
