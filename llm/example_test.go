package llm_test

import (
	"context"
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
	// A real one would be set.Model("openai/gpt-6-sol").
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
