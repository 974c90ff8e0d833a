//go:build linux

package rlm

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// The ways in which a countingServer reports what it counted.
const (
	countsAtEnd   = "at the end"
	countsAlways  = "in every chunk"
	countsNever   = "never"
	countsAbsurd  = "absurdly"
	countsOfAKind = "in one of these ways"
)

// habits is how a countingServer behaves.
type habits struct {
	parallel int                // maximum of concurrent calls
	ratio    map[string]float64 // its tokens for one of ours, by model
	hidden   map[string]int64   // tokens of reasoning before a reply, by model
	usage    string             // how it reports usage
	markup   float64            // its prices for one of ours
	faults   float64            // part of the requests that fail
	cuts     float64            // part of the replies that go on for long after their first block
	invalid  bool               // some models refuse every request, so that others of a fallback list answer
	ops      []string           // Python that turns run, with at most one %d for a random number
}

// served is what the server counted for a request that it began to answer.
type served struct {
	llm.Usage
	messages []string
	used     bool  // the run uses the reply
	over     int64 // tokens by which our count of the reply exceeds its maximum length
}

// countingServer is an OpenAI-compatible server whose models write random programs. What it does with a request depends
// on its seed, the request, and how often it has seen the request. It never exceeds max_tokens.
type countingServer struct {
	habits
	seed uint64
	url  string

	mu       sync.Mutex
	seen     map[uint64]uint64    // guarded by mu; requests by hash
	served   map[string][]*served // guarded by mu; by model
	inFlight int                  // guarded by mu
	// blind is the number of requests of a model that were on their way when its first usage was sent: the first ones of
	// served. Guarded by mu.
	blind map[string]int
}

// chatRequest is the part of a request that the server reads.
type chatRequest struct {
	Model     string        `json:"model"`
	Messages  []llm.Message `json:"messages"`
	MaxTokens int64         `json:"max_tokens"`
	Stream    bool          `json:"stream"`
}

func newCountingServer(t *testing.T, seed uint64, h habits) *countingServer {
	t.Helper()
	s := &countingServer{
		habits: h,
		seed:   seed,
		seen:   map[uint64]uint64{},
		served: map[string][]*served{},
		blind:  map[string]int{},
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// models returns the real client of the server. The model of depth N is p/dN, and p/d1 may fall back to p/f.
func (s *countingServer) models(t *testing.T, noStream bool, window int64) func(int, string) (llm.Model, error) {
	t.Helper()
	cfg := llm.Config{
		Env:    func(string) string { return "" },
		Retry:  llm.Retry{Attempts: 3, Backoff: v1.Duration(time.Millisecond), Max: v1.Duration(10 * time.Millisecond)},
		Models: map[string]llm.ModelConfig{},
		Providers: map[string]llm.Provider{
			"p": {Type: llm.TypeOpenAI, BaseURL: s.url, Key: "none", NoStream: noStream},
		},
	}
	for _, name := range []string{"d0", "d1", "d2", "d3", "f"} {
		price := testPrice
		cfg.Models["p/"+name] = llm.ModelConfig{Window: window, Output: window / 4, Price: &price}
	}
	set, err := llm.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	return func(depth int, _ string) (llm.Model, error) {
		if depth == 1 {
			return set.Model("p/d1,p/f")
		}
		return set.Model(fmt.Sprintf("p/d%d", depth))
	}
}

var testPrice = llm.Price{Input: 20, CachedInput: 5, Output: 80}

func (s *countingServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var req chatRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(rw, err.Error(), http.StatusTeapot)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(req.Messages)
	hash := h.Sum64()
	s.mu.Lock()
	rng := rand.New(rand.NewPCG(s.seed^hash, s.seen[hash]))
	s.seen[hash]++
	s.mu.Unlock()
	if s.invalid && req.Model == "d1" {
		http.Error(rw, `{"error": {"message": "no such model"}}`, http.StatusNotFound)
		return
	}
	fault := ""
	if rng.Float64() < s.faults {
		fault = []string{"busy", "at once", "headers", "midway", "midway", "before usage"}[rng.IntN(6)]
	}
	if fault == "busy" {
		http.Error(rw, `{"error": {"message": "busy"}}`, http.StatusServiceUnavailable)
		return
	}
	one := s.begin(&req, rng)
	defer s.end()
	if fault == "at once" {
		panic(http.ErrAbortHandler)
	}
	s.reply(rw, r, &req, rng, one, fault)
}

// begin counts the prompt.
func (s *countingServer) begin(req *chatRequest, rng *rand.Rand) *served {
	one := &served{Usage: llm.Usage{Calls: 1}}
	var tokens int64
	for _, m := range req.Messages {
		tokens += llm.Count(m.Content) + perMessage
		one.messages = append(one.messages, m.Content)
	}
	one.Input = int64(math.Ceil(float64(tokens) * s.ratio[req.Model]))
	if rng.IntN(3) == 0 {
		one.CachedInput = rng.Int64N(one.Input)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight++
	s.served[req.Model] = append(s.served[req.Model], one)
	s.price(one)
	return one
}

func (s *countingServer) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
}

// price sets the cost.
//
// Preconditions: s.mu is held.
func (s *countingServer) price(one *served) { one.Cost = testPrice.Cost(one.Usage) * s.markup }

// reply writes a reply and counts it as it is written.
func (s *countingServer) reply(
	rw http.ResponseWriter, r *http.Request, req *chatRequest, rng *rand.Rand, one *served, fault string,
) {
	hidden := min(s.hidden[req.Model], req.MaxTokens/2)
	ratio := s.ratio[req.Model]
	text, finish := s.text(req, rng), "stop"
	for float64(llm.Count(text))*ratio+float64(hidden)+1 > float64(req.MaxTokens) && text != "" {
		text, finish = text[:len(text)*9/10], "length"
	}
	text = strings.ToValidUTF8(text, "")
	count := func(written string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		one.Output = hidden + int64(math.Ceil(float64(llm.Count(written))*ratio))
		one.over = max(0, llm.Count(written)-req.MaxTokens)
		s.price(one)
	}
	kind := s.habits.usage
	if kind == countsOfAKind {
		kind = []string{countsAtEnd, countsAlways, countsNever, countsAbsurd}[rng.IntN(4)]
	}
	if !req.Stream {
		count(text)
		s.used(one)
		s.sent(req.Model, one, kind)
		usage := s.usage(one, kind, rng, true)
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(map[string]any{"usage": usage, "choices": []any{
			map[string]any{"message": map[string]any{"role": "assistant", "content": text}, "finish_reason": finish},
		}})
		return
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	if kind == countsAlways {
		s.known(req.Model)
	}
	chunk := func(delta map[string]any, finish, usage any) {
		choices := []any{}
		if delta != nil {
			choices = append(choices, map[string]any{"index": 0, "delta": delta, "finish_reason": finish})
		}
		data, _ := json.Marshal(map[string]any{"choices": choices, "usage": usage})
		_, _ = fmt.Fprintf(rw, "data: %s\n\n", data)
		rw.(http.Flusher).Flush()
	}
	count("")
	chunk(map[string]any{"role": "assistant"}, nil, nil)
	if fault == "headers" {
		panic(http.ErrAbortHandler)
	}
	for at := 0; at < len(text) && r.Context().Err() == nil; at += 40 {
		end := min(len(text), at+40)
		count(text[:end])
		var usage any
		if kind == countsAlways {
			usage = s.usage(one, kind, rng, false)
		}
		chunk(map[string]any{"content": text[at:end]}, nil, usage)
		if fault == "midway" && at > len(text)/2 {
			if req.hasBlock(text[:end]) {
				s.used(one)
			}
			panic(http.ErrAbortHandler)
		}
	}
	chunk(map[string]any{}, finish, nil)
	s.used(one)
	if fault == "before usage" {
		panic(http.ErrAbortHandler)
	}
	s.sent(req.Model, one, kind)
	if usage := s.usage(one, kind, rng, true); usage != nil {
		chunk(nil, nil, usage)
	}
	_, _ = io.WriteString(rw, "data: [DONE]\n\n")
}

// used records that the run uses the reply to a request.
func (s *countingServer) used(one *served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.used = true
}

// lastWords reports whether a request is for a summary, or for an answer when a limit is reached.
func (r *chatRequest) lastWords() bool {
	last := r.Messages[len(r.Messages)-1].Content
	return strings.Contains(last, "must end here") || strings.Contains(last, "must not be forgotten")
}

// hasBlock reports whether what was sent of a turn contains its first block.
func (r *chatRequest) hasBlock(sent string) bool {
	return r.Messages[0].Role == llm.System && !r.lastWords() && firstBlockEnd(maskReasoning(sent[:strings.LastIndex(sent, "\n")+1])) > 0
}

// sent records that a reply was sent to its end.
func (s *countingServer) sent(model string, one *served, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == countsAtEnd || kind == countsAlways {
		s.knownLocked(model)
	}
}

// known records that the first usage of a model is sent now.
func (s *countingServer) known(model string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.knownLocked(model)
}

// knownLocked is known.
//
// Preconditions: s.mu is held.
func (s *countingServer) knownLocked(model string) {
	if _, known := s.blind[model]; !known {
		s.blind[model] = len(s.served[model]) + max(0, s.parallel-s.inFlight)
	}
}

// usage returns the reported usage; nil: none.
func (s *countingServer) usage(one *served, kind string, rng *rand.Rand, last bool) any {
	s.mu.Lock()
	u := one.Usage
	s.mu.Unlock()
	report := map[string]any{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Tokens(),
		"prompt_tokens_details": map[string]any{"cached_tokens": u.CachedInput},
	}
	if s.markup != 1 && last {
		report["cost"] = u.Cost
	}
	switch kind {
	case countsNever:
		return nil
	case countsAbsurd:
		wrong := []int64{-1, -u.Input, math.MinInt64, 1e9, math.MaxInt64}
		for _, name := range []string{"prompt_tokens", "completion_tokens"} {
			report[name] = wrong[rng.IntN(len(wrong))]
		}
		report["prompt_tokens_details"] = map[string]any{"cached_tokens": wrong[rng.IntN(len(wrong))]}
		report["cost"] = []float64{-1, 1e300, 0}[rng.IntN(3)]
	}
	return report
}

// text returns what a model writes.
func (s *countingServer) text(req *chatRequest, rng *rand.Rand) string {
	last := req.Messages[len(req.Messages)-1].Content
	thought := ""
	if rng.IntN(5) == 0 {
		thought = "<think>\nmaybe " + block("FINAL('draft')") + words(rng, 1+rng.IntN(60)) + "\n</think>\n"
	}
	switch {
	case req.lastWords():
		return thought + words(rng, 5+rng.IntN(60))
	case strings.Contains(last, "meets this schema") || strings.Contains(last, "Answer again."):
		return thought + []string{"7", "7", "seven"}[rng.IntN(3)]
	case req.Messages[0].Role != llm.System && rng.Float64() < s.cuts/3:
		return thought + words(rng, 4000) // more than the maximum length
	case req.Messages[0].Role != llm.System:
		return thought + words(rng, rng.IntN(200))
	}
	turn := len(req.Messages) / 2
	var code strings.Builder
	code.WriteString(`
def parts(c):
    if isinstance(c, str):
        return [c]
    c = [c[k] for k in c] if hasattr(c, "keys") else list(c)
    return [p for p in c if isinstance(p, str) and p] or [str(c)]
def P(i, most=1 << 30):
    import random
    t, r = parts(context)[i % len(parts(context))], random.Random(i)
    at, size = r.randrange(len(t)), r.randrange(1, 9000)
    return t[at:at + min(size, most)]
answer["content"] = "a draft"
`)
	for range 1 + rng.IntN(2) {
		op := s.ops[rng.IntN(len(s.ops))]
		op = strings.ReplaceAll(op, "%d", fmt.Sprint(rng.IntN(1<<20)))
		code.WriteString("try:\n    " + strings.ReplaceAll(op, "\n", "\n    ") + "\nexcept (QueryError, ValueError) as e: print(e)\n")
	}
	if rng.IntN(8) < turn-1 {
		code.WriteString("FINAL(7)\n")
	}
	out := thought + words(rng, rng.IntN(20)) + "\n" + block(code.String())
	if rng.Float64() < s.cuts {
		return out + words(rng, 2000)
	}
	return out + words(rng, rng.IntN(20))
}

// words returns n words.
func words(rng *rand.Rand, n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = []string{"some", "more", "words", "of", "a", "model"}[rng.IntN(6)]
	}
	return strings.Join(out, " ")
}

// total returns what the server counted, by model.
func (s *countingServer) total() map[string]llm.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]llm.Usage{}
	for model, all := range s.served {
		for _, one := range all {
			out[model] = out[model].Add(one.Usage)
		}
	}
	return out
}

// unforeseen returns what the run could not reserve: the calls of a model that were on their way when its first usage
// arrived, and replies that have more tokens by our count than by that of the server.
func (s *countingServer) unforeseen() llm.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out llm.Usage
	for model, all := range s.served {
		for i, one := range all {
			if n, known := s.blind[model]; known && i < n {
				out = out.Add(one.Usage)
			} else {
				out.Output += one.over
				out.Cost += float64(one.over) * testPrice.Output * s.markup / 1e6
			}
		}
	}
	return out
}

// read returns the texts of all requests that were answered to their end.
func (s *countingServer) read() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, of := range s.served {
		for _, one := range of {
			if one.used {
				for _, m := range one.messages {
					all[m] = true
				}
			}
		}
	}
	out := make([]string, 0, len(all))
	for m := range all {
		out = append(out, m)
	}
	slices.Sort(out)
	return out
}
