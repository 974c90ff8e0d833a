package llm

import (
	"context"
	"encoding/json"
	"time"
)

// Role is who speaks in a conversation.
type Role string

// The roles that every provider knows.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// Message is one turn of a conversation.
type Message struct {
	Role    Role   `json:"role"`
	Content string `json:"content"`
}

// Request asks a model for one reply.
type Request struct {
	Messages    []Message `json:"messages"`
	MaxTokens   int64     `json:"max_tokens,omitempty"` // of the reply; 0: the model's own limit
	Temperature *float64  `json:"temperature,omitempty"`
	Stop        []string  `json:"stop,omitempty"`
	// Schema asks for a reply that is JSON of this schema, where the provider can; others ignore it.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Delta hears the reply as it comes. It returns false to cut the generation there: the reply is then what came so far.
	// Nil: the reply is not streamed.
	Delta func(text string) bool `json:"-"`
	// Tags tell who asks (run, call, depth). They are never sent to a provider; a scripted model may match on them.
	Tags map[string]string `json:"-"`
}

// Finish is why a reply ended.
type Finish string

// The ways a reply ends.
const (
	FinishStop   Finish = "stop"   // by itself, or at a stop word
	FinishLength Finish = "length" // at MaxTokens or the model's limit
	FinishCut    Finish = "cut"    // by Delta
	FinishFilter Finish = "filter" // refused by the provider
)

// Usage is what a call took.
type Usage struct {
	Calls       int64   `json:"calls"`
	Input       int64   `json:"input_tokens"`
	CachedInput int64   `json:"cached_input_tokens,omitempty"` // part of Input
	Output      int64   `json:"output_tokens"`
	Cost        float64 `json:"cost_usd"`
	// Estimated says that some of it was counted by us: the provider did not tell, e.g. because the reply was cut.
	Estimated bool `json:"estimated,omitempty"`
	// Unpriced says that a model without a known price took part, so Cost is too low.
	Unpriced bool `json:"unpriced,omitempty"`
}

// Add sums two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		Calls: u.Calls + v.Calls, Input: u.Input + v.Input, CachedInput: u.CachedInput + v.CachedInput, Output: u.Output + v.Output,
		Cost: u.Cost + v.Cost, Estimated: u.Estimated || v.Estimated, Unpriced: u.Unpriced || v.Unpriced,
	}
}

// Tokens is input and output together.
func (u Usage) Tokens() int64 { return u.Input + u.Output }

// Reply is what a model said.
type Reply struct {
	Text   string        `json:"text"`
	Model  string        `json:"model"` // provider/model that answered, which after a fall-back is not the one asked
	Finish Finish        `json:"finish"`
	Usage  Usage         `json:"usage"`
	Wall   time.Duration `json:"wall_ns"`
}

// Info is what is known about a model before it is asked.
type Info struct {
	Name   string `json:"name"`            // provider/model
	Window int64  `json:"window_tokens"`   // input and output together; never 0: unknown models get a careful default
	Output int64  `json:"output_tokens"`   // the longest reply
	Price  *Price `json:"price,omitempty"` // nil: unknown
	Local  bool   `json:"local,omitempty"` // costs nothing
}

// Price is in US dollars for a million tokens.
type Price struct {
	Input       float64 `json:"input" yaml:"input"`
	CachedInput float64 `json:"cached_input" yaml:"cached_input"`
	Output      float64 `json:"output" yaml:"output"`
	// Long is the price of a call whose input is longer than a limit, where there is another one for those.
	Long *LongPrice `json:"long,omitempty" yaml:"long"`
}

// LongPrice is what a call costs, all of it, when its input is longer than Above.
type LongPrice struct {
	Above       int64   `json:"above_tokens" yaml:"above_tokens"`
	Input       float64 `json:"input" yaml:"input"`
	CachedInput float64 `json:"cached_input" yaml:"cached_input"`
	Output      float64 `json:"output" yaml:"output"`
}

// Model is one model that can be asked. Its methods may be called from several goroutines.
type Model interface {
	// Info tells its name, window and price.
	Info() Info
	// Count estimates the tokens of a text, never far too low.
	Count(text string) int64
	// Complete asks for one reply. When ctx ends, so does the call, at once. A reply is given beside an error
	// when some of it came: its usage was paid.
	Complete(ctx context.Context, req Request) (*Reply, error)
}
