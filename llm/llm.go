package llm

import (
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The types that travel to a server and back are declared in package v1; these are other names for them.
type (
	// Role is who speaks in a conversation.
	Role = v1.Role
	// Message is one turn of a conversation.
	Message = v1.Message
	// Request asks a model for one reply.
	Request = v1.ModelRequest
	// Reply is what a model said.
	Reply = v1.ModelReply
	// Finish is why a reply ended.
	Finish = v1.Finish
	// Usage is what a call took.
	Usage = v1.Usage
)

// The roles that every provider knows.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// The ways a reply ends.
const (
	FinishStop   Finish = "stop"   // by itself, or at a stop word
	FinishLength Finish = "length" // at MaxTokens or the model's limit
	FinishCut    Finish = "cut"    // by Delta
	FinishFilter Finish = "filter" // refused by the provider
)

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
