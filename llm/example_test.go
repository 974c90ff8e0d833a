package llm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/recluse-dev/recluse/llm"
)

func Example() {
	set, err := llm.Open(llm.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	// For a real model, use set.Model("openai/gpt-6-sol").
	set.Add(llm.NewScripted("demo", llm.Rule{Match: `capital of (\w+)`, Reply: "The capital of {{1}} is well known.\nGood bye."}))

	m, err := set.Model("scripted/demo")
	if err != nil {
		fmt.Println(err)
		return
	}
	var heard strings.Builder
	r, err := m.Complete(context.Background(), llm.Request{
		Messages: []llm.Message{{Role: llm.User, Content: "What is the capital of Peru?"}},
		Stop:     []string{"\n"},
		Delta:    func(text string) bool { heard.WriteString(text); return true },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(heard.String())
	fmt.Println(r.Model, r.Finish, r.Usage.Output, "tokens")
	// Output:
	// The capital of Peru is well known.
	// scripted/demo stop 9 tokens
}

func ExampleCassette() {
	dir, err := os.MkdirTemp("", "cassette")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "calls.jsonl")
	question := llm.Request{Messages: []llm.Message{{Role: llm.User, Content: "How many?"}}}

	rec, err := llm.Record(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	live := rec.Recorded(llm.NewScripted("live", llm.Rule{Reply: "Three."}))
	if _, err := live.Complete(context.Background(), question); err != nil {
		fmt.Println(err)
		return
	}
	if err := rec.Close(); err != nil {
		fmt.Println(err)
		return
	}

	tape, err := llm.Replay(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := tape.Model("scripted/live")
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := m.Complete(context.Background(), question)
	fmt.Println(r.Text, err)
	question.Messages[0].Content = "How much?"
	_, err = m.Complete(context.Background(), question)
	fmt.Println(err != nil)
	// Output:
	// Three. <nil>
	// true
}

// The second model answers if the first fails.
func ExampleFallback() {
	first := llm.NewScripted("first", llm.Rule{Error: errors.New("the provider is overloaded")})
	second := llm.NewScripted("second", llm.Rule{Reply: "Here."})
	m := llm.Fallback(first, second)
	question := []llm.Message{{Role: llm.User, Content: "Is a model there?"}}
	r, err := m.Complete(context.Background(), llm.Request{Messages: question})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Model, r.Text)
	fmt.Println(llm.Names(m))
	// Output:
	// scripted/second Here.
	// [scripted/first scripted/second]
}

// A large model is the root of a run, and a small model answers its sub-calls.
func ExampleSet_Route() {
	set, err := llm.Open(llm.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	set.Add(llm.NewScripted("large", llm.Rule{Reply: "…"}))
	set.Add(llm.NewScripted("small", llm.Rule{Reply: "…"}))

	route, err := set.Route(context.Background(), llm.Route{Root: "scripted/large", Sub: []string{"scripted/small"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for depth := range 3 {
		fmt.Println(depth, route.At(depth).Info().Name)
	}
	// Output:
	// 0 scripted/large
	// 1 scripted/small
	// 2 scripted/small
}

// A price is in US dollars for a million tokens.
func ExamplePrice_Cost() {
	price := llm.Price{Input: 3, CachedInput: 0.3, Output: 15}
	fmt.Printf("%.4f\n", price.Cost(llm.Usage{Input: 10_000, CachedInput: 8_000, Output: 500}))
	// Output: 0.0159
}
