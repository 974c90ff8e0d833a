package rlm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// TestPromptsOfEveryProfile compares the prompts with those in testdata/prompts. UPDATE=1 writes them.
func TestPromptsOfEveryProfile(t *testing.T) {
	data := PromptData{
		Query: "Who wrote most?",
		Contexts: []v1.ContextNote{
			{
				Variable: "context_0", Name: "mails.csv", Type: "str", Size: 70_000, Chars: 70_000, Lines: 801, Encoding: "cp1252",
				Head: "from,to\nAnna,Bert", Tail: "Zoe,Anna\n", Example: "context[:1000]",
				Rows: &v1.RowsNote{Format: "csv", Type: "dict", Keys: []string{"from", "to"}, Example: "rows(context)[0]['from'][:1000]"},
			},
			{
				Variable: "context_1", Name: "logs", Type: "Directory", Size: 3, Bytes: 120, Skipped: 1, Keys: []string{"a.log", "b.log"},
				Extensions: []v1.ExtensionNote{{Extension: ".log", Files: 2, Bytes: 100}, {Files: 1, Bytes: 20}},
				Example:    "context_1['a.log'][:1000]",
			},
		},
		History: 4, SubCalls: true, Child: true, Output: 20_000, Remaining: Remaining{Turns: new(30)}, Schema: `{"type":"string"}`,
		Tools: []Tool{{Name: "wiki_find", Doc: "finds pages", Help: "more"}}, SubChars: 100_000, SubTotal: 600_000, Batch: 64,
		Python: "3.11", Packages: []string{"numpy", "pandas"}, Network: "no network", CellTime: "1m0s", Terms: true,
	}
	data.nameContexts()
	for _, profile := range PromptProfiles() {
		t.Run(profile, func(t *testing.T) {
			var got strings.Builder
			for _, name := range promptNames {
				got.WriteString("=== " + name + "\n")
				if err := profiles()[profile][name].Execute(&got, data); err != nil {
					t.Fatal(err)
				}
			}
			if strings.Contains(got.String(), "\n\n\n") || strings.Contains(got.String(), "<no value>") {
				t.Errorf("gaps in the prompts:\n%s", got.String())
			}
			file := filepath.Join("testdata", "prompts", profile+".txt")
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || string(want) != got.String() {
				t.Errorf("%v: the prompts differ from %s; check them and run with UPDATE=1:\n%s", err, file, got.String())
			}
		})
	}
}

func TestARuleSelectsTheProfile(t *testing.T) {
	rules := []string{"1:openai/*=plan", "ollama/* = compact", "1:official"}
	for _, c := range []struct {
		chosen, model, want string
		depth               int
	}{
		{"", "openai/gpt-6", "default", 0},
		{"", "openai/gpt-6", "plan", 1},
		{"", "Ollama/qwen3:8b", "compact", 0},
		{"", "ollama/qwen3:8b", "compact", 1},
		{"", "anthropic/x", "official", 1},
		{"", "anthropic/x", "default", 2},
		{"plan", "ollama/qwen3:8b", "plan", 0},
	} {
		p, err := savedPrompts{Profile: c.chosen, Rules: rules}.parse()
		if err != nil {
			t.Fatal(err)
		}
		if got := p.profile(c.depth, c.model); got != c.want {
			t.Errorf("%q, %s at depth %d: %s, want %s", c.chosen, c.model, c.depth, got, c.want)
		}
	}
}

func TestAnUnknownProfileIsRefusedWithTheNamesThatExist(t *testing.T) {
	for name, err := range map[string]error{
		"chosen":       func() error { _, err := savedPrompts{Profile: "terse"}.parse(); return err }(),
		"in a rule":    CheckPromptProfiles([]string{"default", "ollama/*=terse"}),
		"without name": CheckPromptProfiles([]string{"ollama/*="}),
	} {
		e, ok := errors.AsType[*v1.Error](err)
		if !ok || e.Code != v1.CodePromptUnknown || e.Remedy != "use one of compact, default, official, plan" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (savedPrompts{System: "{{.Nonsense"}).parse(); v1.CodeOf(err) != v1.CodeInvalidRequest {
		t.Errorf("an invalid template: %v", err)
	}
}

func TestSubCallsAreSizedByWhatIsLeft(t *testing.T) {
	price := &llm.Price{Input: 10}
	for _, c := range []struct {
		name                string
		left                Remaining
		window              int64
		chars, total, batch int64
	}{
		{"nothing is limited", Remaining{}, 200_000, 100_000, 0, 64},
		{"a small window", Remaining{}, 8192, 24_000, 0, 64},
		{"few tokens", Remaining{Tokens: new(int64(30_500))}, 200_000, 30_000, 61_000, 30},
		{"little money", Remaining{Tokens: new(int64(1 << 40)), Cost: new(0.2)}, 200_000, 20_000, 40_000, 20},
		{"few calls", Remaining{Calls: new(int64(7))}, 200_000, 100_000, 0, 7},
		{"nothing is left", Remaining{Tokens: new(int64(0))}, 200_000, 0, 0, 1},
	} {
		d := PromptData{Remaining: c.left}
		d.size(llm.Info{Window: c.window, Price: price}, 16)
		if d.SubChars != c.chars || d.SubTotal != c.total || d.Batch != c.batch {
			t.Errorf("%s: %d characters, %d together, %d prompts", c.name, d.SubChars, d.SubTotal, d.Batch)
		}
	}
}
