package v1

import (
	"encoding/json"
	"time"
)

// Role is the author of a message: system, user or assistant.
type Role string

// Message is one message of a conversation.
type Message struct {
	Role    Role   `json:"role" enum:"system,user,assistant" doc:"author of the message"`
	Content string `json:"content" doc:"text of the message"`
}

// ModelRequest is one request to a model.
type ModelRequest struct {
	Messages    []Message       `json:"messages" doc:"conversation so far"`
	MaxTokens   int64           `json:"max_tokens,omitempty" doc:"maximum tokens of the reply; 0: the model's own limit"`
	Temperature *float64        `json:"temperature,omitempty" doc:"sampling temperature; left out: the model's own"`
	Stop        []string        `json:"stop,omitempty" doc:"texts that end the reply"`
	Schema      json.RawMessage `json:"schema,omitempty" doc:"JSON Schema of the reply, for providers that support it; others ignore it"`
	// Delta receives the reply in pieces as it arrives. It returns false to stop the generation: the reply is then what
	// was received so far. Nil: the reply is not streamed.
	Delta func(text string) bool `json:"-"`
	// Repeat is called before a request is sent again, to the same model or to the next one of a fallback list, after a
	// provider has begun to answer it. paid is the usage of all requests so far. Repeat discards what Delta has received
	// and returns true, or returns false: then the request is not sent again. Nil: the request is sent again unless Delta
	// has received a part of the reply.
	Repeat func(paid Usage) bool `json:"-"`
	// Tags describe the caller (run, call, depth). They are not sent to a provider; a scripted model can match on them.
	Tags map[string]string `json:"-"`
}

// Finish is why a reply ended.
type Finish string

// Usage is what one or more model calls used.
type Usage struct {
	Calls       int64   `json:"calls" doc:"requests that models began to answer"`
	Input       int64   `json:"input_tokens" doc:"tokens of the prompts"`
	CachedInput int64   `json:"cached_input_tokens,omitempty" doc:"part of the input tokens that the provider had cached"`
	Output      int64   `json:"output_tokens" doc:"tokens of the replies"`
	Cost        float64 `json:"cost_usd" doc:"US dollars"`
	Estimated   bool    `json:"estimated,omitempty" doc:"some tokens were counted by recluse, because the provider did not report them"`
	Unpriced    bool    `json:"unpriced,omitempty" doc:"a model without a known price took part, so the cost is too low"`
}

// Add returns the sum of two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		Calls:       u.Calls + v.Calls,
		Input:       u.Input + v.Input,
		CachedInput: u.CachedInput + v.CachedInput,
		Output:      u.Output + v.Output,
		Cost:        u.Cost + v.Cost,
		Estimated:   u.Estimated || v.Estimated,
		Unpriced:    u.Unpriced || v.Unpriced,
	}
}

// Tokens returns the number of input and output tokens.
func (u Usage) Tokens() int64 { return u.Input + u.Output }

// ModelReply is the reply of a model.
type ModelReply struct {
	Text   string `json:"text" doc:"the reply"`
	Model  string `json:"model" doc:"provider/model that answered; after a fallback it differs from the requested model"`
	Finish Finish `json:"finish" enum:"stop,length,cut,filter" doc:"why the reply ended"`
	Usage  Usage  `json:"usage" doc:"tokens and cost of the call"`
	// By is the usage by model, if several models of a fallback list were called.
	By   map[string]Usage `json:"by,omitempty" doc:"the same usage by model, if several models of a fallback list were called"`
	Wall time.Duration    `json:"wall_ns" doc:"duration of the call"`
}
