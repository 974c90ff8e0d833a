//go:build linux

package servertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The usage that OpenAI reports for each request.
const (
	PromptTokens = 1000
	ReplyTokens  = 100
)

// OpenAI is a server with the chat API of OpenAI, whose replies come from a function.
type OpenAI struct {
	*httptest.Server
	reply func(model string, messages []v1.Message) string

	mu       sync.Mutex
	requests map[string]int // guarded by mu; by model
}

// NewOpenAI starts a server that ends with the test.
func NewOpenAI(t *testing.T, reply func(model string, messages []v1.Message) string) *OpenAI {
	t.Helper()
	o := &OpenAI{reply: reply, requests: map[string]int{}}
	o.Server = httptest.NewServer(http.HandlerFunc(o.serve))
	t.Cleanup(o.Close)
	return o
}

// BaseURL returns the URL for the configuration of a provider.
func (o *OpenAI) BaseURL() string { return o.URL + "/v1" }

// Requests returns the number of requests so far, by model.
func (o *OpenAI) Requests(model string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.requests[model]
}

func (o *OpenAI) serve(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model    string       `json:"model"`
		Messages []v1.Message `json:"messages"`
		Stream   bool         `json:"stream"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.URL.Path != "/v1/chat/completions" {
		http.Error(w, fmt.Sprintf("%s: %v", r.URL.Path, err), http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	o.requests[in.Model]++
	o.mu.Unlock()
	type object = map[string]any
	text := o.reply(in.Model, in.Messages)
	usage := object{"prompt_tokens": PromptTokens, "completion_tokens": ReplyTokens}
	if !in.Stream {
		choice := object{"message": object{"role": "assistant", "content": text}, "finish_reason": "stop"}
		_ = json.NewEncoder(w).Encode(object{"choices": []object{choice}, "usage": usage}) // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, chunk := range []object{
		{"choices": []object{{"delta": object{"content": text}}}},
		{"choices": []object{{"delta": object{}, "finish_reason": "stop"}}},
		{"choices": []object{}, "usage": usage},
	} {
		b, err := json.Marshal(chunk)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "data: %s\n\n", b)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
