package server_test

import (
	"context"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestARunGoesOnWithItsModelWithoutADefault(t *testing.T) {
	models := servertest.NewOpenAI(t, func(model string, _ []v1.Message) string {
		return map[string]string{"first": "```repl\nx = 1\n```", "other": "```repl\nFINAL(x)\n```"}[model]
	})
	price := &llm.Price{Input: 1, Output: 1}
	set, err := llm.Open(llm.Config{
		Env:       func(name string) string { return map[string]string{"OLLAMA_HOST": "127.0.0.1:1"}[name] },
		Providers: map[string]llm.Provider{"work": {Type: llm.TypeOpenAI, BaseURL: models.BaseURL(), Key: "any"}},
		Models:    map[string]llm.ModelConfig{"work/first": {Price: price}, "work/other": {Price: price}},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &runBench{}
	keeper := runs.New(runs.Options{
		Models: set, DataDir: t.TempDir(), Limits: v1.RunLimits{Cost: new(1.0)},
		Backend: func(context.Context) (sandbox.Backend, error) { return k.Backend, nil },
	})
	k.Bench = servertest.New(t, server.Options{Runs: keeper})
	t.Cleanup(keeper.Close) // before the server's own end
	ctx := t.Context()
	for who, c := range map[string]*client.Client{"over the network": k.Client(k.Key("acme", "execute")), "over the socket": k.Trusted} {
		t.Run(who, func(t *testing.T) {
			ended := func(id string, turns int) (i *v1.Run) {
				t.Helper()
				testneed.Await(t, "the end of the run", func() bool {
					i, err = c.Run(ctx, id)
					return err != nil || !i.Running && i.Result != nil && i.Turns == turns
				})
				if err != nil {
					t.Fatal(err)
				}
				return i
			}
			i, err := c.StartRun(ctx, client.RunOptions{
				Query: "?", Contexts: []client.RunContext{{Text: new(haystack)}}, Model: "work/first", Limits: v1.RunLimits{Turns: new(1)},
			})
			if err != nil {
				t.Fatal(err)
			}
			ended(i.ID, 1)
			if _, err = c.ResumeRun(ctx, i.ID, client.RunAgain{Limits: v1.RunLimits{Turns: new(2)}}); err != nil {
				t.Fatal(err)
			}
			before := ended(i.ID, 2)
			same := models.Requests("first")
			if _, err := c.ResumeRun(ctx, i.ID, client.RunAgain{Model: "work/other", Limits: v1.RunLimits{Turns: new(5)}}); err != nil {
				t.Fatal(err)
			}
			after := ended(i.ID, 3)
			if after.Result.Answer != "1" || after.Model != "work/other" || after.Usage.Calls != before.Usage.Calls+1 || models.Requests("first") != same {
				t.Errorf("%+v, before %+v", after, before)
			}
			f, err := c.ForkRun(ctx, i.ID, 2, client.RunAgain{})
			if err != nil {
				t.Fatal(err)
			}
			if f = ended(f.ID, 2); f.Model != "work/first" || models.Requests("first") <= same {
				t.Errorf("the fork before the change has %+v", f)
			}
		})
	}
}
