package llm

import (
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Aliases of the types that are part of the HTTP API, which are declared in package v1.
type (
	// Role is the author of a message.
	Role = v1.Role
	// Message is one message of a conversation.
	Message = v1.Message
	// Request is one request to a model.
	Request = v1.ModelRequest
	// Reply is the reply of a model.
	Reply = v1.ModelReply
	// Finish is why a reply ended.
	Finish = v1.Finish
	// Usage is the tokens and the cost of calls.
	Usage = v1.Usage
)

// The roles of messages.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// The reasons why a reply ends.
const (
	FinishStop   Finish = "stop"   // the reply is complete, or a stop word was found
	FinishLength Finish = "length" // MaxTokens or the model's limit was reached
	FinishCut    Finish = "cut"    // Delta returned false, or the call failed
	FinishFilter Finish = "filter" // refused by the provider
)

// Info is the name, limits and price of a model.
type Info struct {
	Name   string `json:"name"`            // provider/model
	Window int64  `json:"window_tokens"`   // input and output together; never 0: unknown models have a default
	Output int64  `json:"output_tokens"`   // the longest reply
	Price  *Price `json:"price,omitempty"` // nil: unknown
	Local  bool   `json:"local,omitempty"` // costs nothing
}

// Price is the price of a model in US dollars for a million tokens.
type Price struct {
	Input       float64 `json:"input" yaml:"input"`
	CachedInput float64 `json:"cached_input" yaml:"cached_input"`
	Output      float64 `json:"output" yaml:"output"`
	// Long is the price of calls with a long input; nil: the same price.
	Long *LongPrice `json:"long,omitempty" yaml:"long"`
}

// LongPrice is the price of all tokens of a call whose input is longer than Above.
type LongPrice struct {
	Above       int64   `json:"above_tokens" yaml:"above_tokens"`
	Input       float64 `json:"input" yaml:"input"`
	CachedInput float64 `json:"cached_input" yaml:"cached_input"`
	Output      float64 `json:"output" yaml:"output"`
}

// Model is a language model. Its methods may be called from several goroutines.
type Model interface {
	// Info returns the name, limits and price of the model.
	Info() Info
	// Count estimates the tokens of a text. The estimate is rather too high than too low.
	Count(text string) int64
	// Complete requests one reply. The call ends at once when ctx ends. If the call fails after a part of the reply
	// arrived, Complete returns that part and its usage together with the error.
	Complete(ctx context.Context, req Request) (*Reply, error)
}
