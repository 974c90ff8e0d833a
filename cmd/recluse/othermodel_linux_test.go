package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server/servertest"
)

// cost is the cost of some requests to a model of the test, in US dollars.
func cost(requests int, input, output float64) float64 {
	return float64(requests) * (servertest.PromptTokens*input + servertest.ReplyTokens*output) / 1e6
}

func TestARunGoesOnWithItsOwnModelOrAnother(t *testing.T) {
	models := servertest.NewOpenAI(t, func(model string, messages []v1.Message) string {
		last := messages[len(messages)-1].Content
		switch {
		case strings.HasPrefix(last, "part of the work"):
			return "done by " + model
		case model == "cheap":
			return "```repl\nsaid = llm_query(f'part of the work {len(context)}')\nprint(said)\n```"
		}
		return "```repl\nFINAL(llm_query(f'part of the work for {said}'))\n```"
	})
	a := newAsker(t, "0s")
	a.write("providers.yaml", fmt.Sprintf(`
providers:
  work: {type: openai, base_url: %q, key: "a key of the company"}
models:
  work/cheap: {price: {input: 1, output: 2}}
  work/dear: {price: {input: 10, output: 20}}
`, models.BaseURL()))
	// No model is the default.
	a.env = append(a.env, "RECLUSE_MODELS_SCRIPTS=", "RECLUSE_MODELS_DEFAULT=", "RECLUSE_MODELS_SUB=",
		"OPENAI_API_KEY=", "ANTHROPIC_API_KEY=", "OPENAI_BASE_URL=", "OLLAMA_HOST=127.0.0.1:1",
		"RECLUSE_MODELS_PROVIDERS="+a.dir+"/providers.yaml")
	unanswered := func(args ...string) {
		t.Helper()
		if got := a.run("", args...); got.status != 1 || !strings.Contains(got.stderr, "--max-turns") {
			t.Fatalf("%v: %+v", args, got)
		}
	}
	info := func() (i v1.Run) {
		t.Helper()
		decodeJSON(t, a.must("runs", "show", "last", "--json"), &i)
		return i
	}
	unanswered("ask", "Who did it?", "--context", a.big, "--model", "work/cheap", "--max-turns", "1")
	first := info()
	before := models.Requests("cheap")
	unanswered("runs", "resume", "last", "--max-turns", "2")
	if after := models.Requests("cheap"); after <= before || models.Requests("dear") > 0 || info().Model != "work/cheap" {
		t.Errorf("without a model, the run is continued with %q: %d requests, then %d", info().Model, before, after)
	}
	cheap := models.Requests("cheap")

	if got := a.must("runs", "resume", "last", "--max-turns", "5", "--model", "work/dear", "-q"); got != "done by dear\n" {
		t.Errorf("resume: %q", got)
	}
	resumed := info()
	if models.Requests("cheap") != cheap || models.Requests("dear") != 2 {
		t.Errorf("requests: %d of the first model, want %d; %d of the other, want 2",
			models.Requests("cheap"), cheap, models.Requests("dear"))
	}
	want := cost(cheap, 1, 2) + cost(2, 10, 20)
	if resumed.ID != first.ID || resumed.Model != "work/dear" || !about(resumed.Usage.Cost, want) || resumed.Usage.Estimated {
		t.Errorf("resumed: %+v, want %f", resumed, want)
	}

	if got := a.must("runs", "fork", first.ID, "--at", "1", "--model", "work/dear", "--max-turns", "5", "-q"); got != "done by dear\n" {
		t.Errorf("fork: %q", got)
	}
	fork := info()
	if fork.ID == first.ID || fork.Model != "work/dear" || !about(fork.Usage.Cost, cost(2, 10, 20)) ||
		models.Requests("cheap") != cheap || models.Requests("dear") != 4 {
		t.Errorf("fork: %+v", fork)
	}
	// A fork of the fork has the same model.
	if got := a.must("runs", "fork", fork.ID, "--at", "1", "-q"); got != "done by dear\n" || models.Requests("cheap") != cheap {
		t.Errorf("second fork: %q", got)
	}
	if got := a.run("", "runs", "fork", fork.ID, "--at", "1", "--model", "work2/x"); got.status == 0 || !strings.Contains(got.stderr, "work2") {
		t.Errorf("a fork with an unknown model: %+v", got)
	}
	a.noSecret("a key of the company")

	// A run that began with the default model continues with it, whatever the default is now.
	without := a.env
	a.env = append(without[:len(without):len(without)], "RECLUSE_MODELS_DEFAULT=work/cheap")
	unanswered("ask", "Who did it?", "--context", a.big, "--max-turns", "1")
	for _, other := range []string{"", "work/dear"} {
		a.env = append(without[:len(without):len(without)], "RECLUSE_MODELS_DEFAULT="+other)
		dear := models.Requests("dear")
		unanswered("runs", "resume", "last", "--max-turns", "2")
		unanswered("runs", "fork", "last", "--at", "1", "--max-turns", "2")
		if models.Requests("dear") != dear || info().Model != "work/cheap" {
			t.Errorf("with the default %q, the run is continued with %s", other, info().Model)
		}
	}
}

func about(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// noSecret fails if a text is in a file of a run.
func (a *asker) noSecret(text string) {
	a.t.Helper()
	err := filepath.WalkDir(filepath.Join(a.data, "recluse", "runs"), func(path string, f fs.DirEntry, err error) error {
		if err != nil || !f.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			a.t.Errorf("%q is in %s", text, path)
		}
		return err
	})
	if err != nil {
		a.t.Error(err)
	}
}

func TestRemediesNameFlagsThatExist(t *testing.T) {
	root, named := (&app{}).root(), 0
	for _, reason := range []v1.RunReason{
		v1.ReasonTurns, v1.ReasonTokens, v1.ReasonCost, v1.ReasonTime, v1.ReasonCalls, v1.ReasonCPU, v1.ReasonErrors,
		v1.ReasonFormat, v1.ReasonLength, v1.ReasonRefused, v1.ReasonCancelled, v1.ReasonModel, v1.ReasonSandbox,
	} {
		flag := v1.LimitFlag(reason)
		if flag == "" {
			continue
		}
		named++
		for _, command := range [][]string{{"ask"}, {"runs", "resume"}, {"runs", "fork"}} {
			c, _, err := root.Find(command)
			if err != nil || c.Flags().Lookup(flag) == nil {
				t.Errorf("recluse %s has no --%s, which the error for %q names: %v", strings.Join(command, " "), flag, reason, err)
			}
		}
	}
	if named != 8 {
		t.Errorf("%d reasons have a flag", named)
	}
}
