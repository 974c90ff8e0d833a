package v1

import (
	"encoding/json"
	"time"
)

// Role is who speaks in a conversation.
type Role string

// Message is one turn of a conversation.
type Message struct {
	Role    Role   `json:"role"`
	Content string `json:"content"`
}

// ModelRequest asks a model for one reply.
type ModelRequest struct {
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

// ModelReply is what a model said.
type ModelReply struct {
	Text   string        `json:"text"`
	Model  string        `json:"model"` // provider/model that answered, which after a fall-back is not the one asked
	Finish Finish        `json:"finish"`
	Usage  Usage         `json:"usage"`
	Wall   time.Duration `json:"wall_ns"`
}
