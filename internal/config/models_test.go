package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// yamlOf returns the YAML examples of a document.
func yamlOf(t *testing.T, doc string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", doc))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, part := range strings.Split(string(b), "```") {
		if text, ok := strings.CutPrefix(part, "yaml\n"); ok && i%2 == 1 {
			out = append(out, text)
		}
	}
	return out
}

func TestModelsAsDocumented(t *testing.T) {
	examples := yamlOf(t, "RLM.md")
	if len(examples) != 6 { // the first is in the sample of a run, which has a test of its own
		t.Fatalf("%d examples", len(examples))
	}
	if c, _, err := load(t, examples[1]); err != nil || !slices.Equal(c.Models.Prompts, []string{"ollama/*=compact", "1:plan"}) {
		t.Errorf("%v", err)
	}
	if _, _, err := load(t, "models:\n  prompts: [terse]\n"); err == nil || !strings.Contains(err.Error(), `unknown prompt profile "terse"`) {
		t.Errorf("%v", err)
	}
	if c, _, err := load(t, examples[5]); err != nil || len(c.MCP.Servers) != 2 || c.MCP.File == "" || c.MCP.Timeout.Std() != 2*time.Minute {
		t.Errorf("%v", err)
	}
	dir := t.TempDir()
	providers, script := filepath.Join(dir, "providers.yaml"), filepath.Join(dir, "script.yaml")
	for path, text := range map[string]string{providers: examples[3], script: examples[4]} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := load(t, examples[2], "RECLUSE_MODELS_PROVIDERS="+providers, "RECLUSE_MODELS_SCRIPTS="+script, "RECLUSE_MODELS_MAX_TOKENS=0", "RECLUSE_MODELS_MAX_TIME=none")
	if err != nil {
		t.Fatal(err)
	}
	l := c.Models.Limits
	if *l.Cost != 5 || *l.Tokens != v1.NoLimit || *l.Time != v1.NoLimit || *l.Depth != 2 || *l.Turns != *rlm.DefaultLimits().Turns {
		t.Errorf("%+v", l)
	}
	t.Setenv("WORK_LLM_KEY", "secret")
	set, err := c.Models.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if m, err := set.Model("work/large"); err != nil || m.Info().Window != 200_000 || m.Info().Price.Output != 8 {
		t.Errorf("%v", err)
	}
	m, err := set.Model("scripted/reader")
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Complete(t.Context(), llm.Request{Messages: []llm.Message{{Role: llm.User, Content: "the password is sesame"}}})
	if err != nil || r.Text != "sesame" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestModelsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		m    Models
		code v1.Code
	}{
		"providers that are not there": {Models{Providers: filepath.Join(dir, "not")}, CodeInvalid},
		"providers with a mistake":     {Models{Providers: bad}, CodeInvalid},
		"a script with a mistake":      {Models{Scripts: []string{bad}}, v1.CodeModelScript},
		"a cassette with a mistake":    {Models{Cassettes: []string{bad}}, v1.CodeModelCassette},
		"a cassette that is not there": {Models{Cassettes: []string{filepath.Join(dir, "not")}}, v1.CodeModelCassette},
		"a recording to nowhere":       {Models{Record: filepath.Join(dir, "not", "there")}, v1.CodeModelCassette},
	} {
		if _, err := tt.m.Open(); v1.CodeOf(err) != tt.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsOfRunsAreConfiguredAsFlagsAre(t *testing.T) {
	c, _, err := load(t, "models: {max_time: 1m, depth: 0, max_cost: 0}", "RECLUSE_MODELS_MAX_TOKENS=none")
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Models.Limits; l.Time.Std() != time.Minute || *l.Depth != 0 || *l.Cost != v1.NoLimit || *l.Tokens != v1.NoLimit || *l.Errors != *rlm.DefaultLimits().Errors {
		t.Errorf("%+v", l)
	}
	if *Default().Models.Limits.Depth == 0 {
		t.Error("the default was changed")
	}
	for text, want := range map[string]string{"depth: -1": "-1 is below zero", "max_cost: -2": "negative", "max_tokens: many": "not a whole number", "max_time: soon": "invalid duration"} {
		if _, _, err := load(t, "models: {"+text+"}"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWhatIsRecordedAnswersWithoutItsModel(t *testing.T) {
	dir := t.TempDir()
	script, cassette := filepath.Join(dir, "script.yaml"), filepath.Join(dir, "calls.jsonl")
	if err := os.WriteFile(script, []byte("name: echo\nrules:\n  - match: '(.+)'\n    reply: 'you said {{1}}'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(m Models, text string) (*llm.Reply, error) {
		set, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		model, err := set.Model("scripted/echo")
		if err != nil {
			t.Fatal(err)
		}
		return model.Complete(t.Context(), llm.Request{Messages: []llm.Message{{Role: llm.User, Content: text}}})
	}
	if r, err := ask(Models{Scripts: []string{script}, Record: cassette}, "hello"); err != nil || r.Text != "you said hello" {
		t.Fatal(r, err)
	}
	again := Models{Cassettes: []string{cassette}}
	if r, err := ask(again, "hello"); err != nil || r.Text != "you said hello" {
		t.Error(r, err)
	}
	if _, err := ask(again, "something else"); v1.CodeOf(err) != v1.CodeModelCassette {
		t.Errorf("what was not recorded: %v", err)
	}
}

func TestHowSmallAContextNeedsNoRun(t *testing.T) {
	for text, want := range map[string]int64{"": rlm.DefaultPlainBelow, "models: {plain_below: 100}": 100, "models: {plain_below: 0}": -1} {
		c, _, err := load(t, text)
		if err != nil || c.Models.Small() != want {
			t.Errorf("%q: %d %v", text, c.Models.Small(), err)
		}
	}
}
