package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// The demo's haystack and what is hidden in it.
const (
	demoBytes    = 10_000_000
	demoQuestion = "Who met the most others, and where was the last of these meetings?"
	demoAnswer   = "Mira met 4 others; the last meeting was at the lighthouse."
	demoPause    = 40 * time.Millisecond // a model takes its time, also a scripted one
)

// demoMeetings are the needles, in the order of the days.
var demoMeetings = []string{
	"On day 03 Mira met Tomas at the harbour.", "On day 11 Jonas met Edda at the mill.", "On day 17 Mira met Edda at the market.",
	"On day 23 Tomas met Jonas at the harbour.", "On day 38 Mira met Jonas at the station.", "On day 41 Pavel met Edda at the mill.",
	"On day 56 Mira met Pavel at the lighthouse.",
}

func (a *app) demoRLMCommand() *cobra.Command {
	var f sandboxFlags
	c := &cobra.Command{
		Use:   "rlm",
		Short: "Show a run over 10 MB of text, with a scripted model and everything else real",
		Long: `Show how a question is answered over a text that no model could read at once. The model is scripted: its replies are written down in
this program, and it is no proof of cleverness. Everything else is real: the text of 10 MB, the sandbox, the calls from code inside it,
the child run with a sandbox of its own, the budget, and the record of the run. It needs no network and no key; the prices are made up.

The exit status is 1 if the answer is not the one that is hidden in the text.`,
		Example: "  recluse demo rlm\n  recluse demo rlm --json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.demoRLM(c.Context(), &f) },
	}
	f.register(c.Flags())
	return c
}

func (a *app) demoRLM(ctx context.Context, f *sandboxFlags) error {
	ctx, w := a.watch(ctx)
	defer w.stop()
	dir, err := os.MkdirTemp("", "recluse-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "haystack.txt")
	if err := writeHaystack(path); err != nil {
		return err
	}
	root, sub := demoRoot(), demoSub()
	e, err := a.engineOf(ctx, w, f, rlm.Options{
		Models: func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return root, nil
			}
			return sub, nil
		},
		Limits: v1.RunLimits{Tokens: new(int64(6_000_000)), Cost: new(2.0), Time: new(v1.Duration(5 * time.Minute)), Depth: new(2)}, PlainBelow: -1,
	})
	if err != nil {
		return cause(ctx, err)
	}
	if !a.json {
		fmt.Fprintf(a.stderr, "\n  The model is scripted: its replies are written down in this program. The text of %s MB, the sandboxes,\n"+
			"  the calls from code inside, the child run and the budget are real. Nothing is paid: the prices are made up.\n\n", fmt.Sprint(demoBytes/1_000_000))
	}
	var last following
	err = a.follow(ctx, w, false, func(ctx context.Context) (following, error) {
		r, err := started(e.Start(ctx, rlm.Question{Query: demoQuestion, Inputs: []rlm.Input{rlm.File(path)}, Labels: map[string]string{"demo": "rlm"}}))
		last = r
		return r, err
	})
	if err != nil {
		return err
	}
	res, _ := last.Wait() // it has ended well, or follow would have told
	if !a.json {
		fmt.Fprintf(a.stderr, "\n  recluse runs show %s tells what it did, recluse runs replay runs it again.\n", res.Run)
	}
	if res.Answer != demoAnswer {
		a.say("that is not what is hidden in the text: %s", demoAnswer)
		return exit(1)
	}
	return nil
}

// writeHaystack writes lines that say nothing, with the meetings among them.
func writeHaystack(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	words := strings.Fields("river stone window garden letter morning bridge candle forest hammer island jacket kettle ladder mirror needle orchard pencil quarry ribbon")
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // the text is to be the same each time
	word := func() string { return words[r.IntN(len(words))] }
	w := bufio.NewWriterSize(f, 1<<20)
	written, hidden := 0, 0
	for line := 0; written < demoBytes; line++ {
		text := fmt.Sprintf("%07d The %s by the %s kept a %s and a %s.\n", line, word(), word(), word(), word())
		if hidden < len(demoMeetings) && written >= (hidden*2+1)*demoBytes/(2*len(demoMeetings)) {
			text = fmt.Sprintf("%07d %s\n", line, demoMeetings[hidden])
			hidden++
		}
		n, _ := w.WriteString(text) // Flush tells
		written += n
	}
	return errors.Join(w.Flush(), f.Close())
}

// demoRoot writes the code that a good model would write.
func demoRoot() *llm.Scripted {
	cells := []string{
		`
print(type(context), len(context))
print(context[:240])`, `
parts = chunks(context, 200_000)
replies = llm_query_batched(["Which meetings between people does this text tell of? One a line, nothing else.\n\n" + p for p in parts])
meetings = [line for r in replies for line in r.splitlines() if " met " in line]
print(len(parts), "parts,", len(meetings), "meetings;", budget())
for m in meetings:
    print(m)`, `
from collections import defaultdict
partners = defaultdict(set)
for m in meetings:
    one, other = m.split(" at ")[0].split(" met ")
    one = one.split()[-1]
    partners[one].add(other)
    partners[other].add(one)
who = max(partners, key=lambda name: len(partners[name]))
mine = [m for m in meetings if who in m]
where = rlm_query("Where was the last of these meetings? Only the place.\n\n" + "\n".join(mine))
print(who, len(partners[who]), "others; last at", where)`, `
FINAL(f"{who} met {len(partners[who])} others; the last meeting was at {where}.")`,
	}
	said := []string{
		"Let me look at the text first.", "It is far too long for me, so sub-models read it in pieces, many at once.",
		"Counting is work for code. Where the last meeting was, a child run finds out.", "That is the answer.",
	}
	rules := make([]llm.Rule, len(cells))
	for i, c := range cells {
		rules[i] = llm.Rule{Nth: i + 1, Reply: said[i] + "\n```repl\n" + strings.TrimSpace(c) + "\n```\n", Delay: 10 * demoPause, Chunk: 40, ChunkDelay: demoPause / 4}
	}
	return llm.NewScripted("demo", rules...).WithInfo(llm.Info{Window: 128_000, Output: 8_000, Price: &llm.Price{Input: 1, CachedInput: 0.1, Output: 4}})
}

var demoMeeting = regexp.MustCompile(`On day \d+ \w+ met \w+ at the \w+`)

// demoSub reads what it is given and nothing else; as a child run it writes code.
func demoSub() *llm.Scripted {
	read := func(_ context.Context, req llm.Request) (string, error) {
		found := demoMeeting.FindAllString(req.Messages[len(req.Messages)-1].Content, -1)
		if found == nil {
			return "none", nil
		}
		return strings.Join(found, "\n"), nil
	}
	return llm.NewScripted("demo-reader",
		llm.Rule{Tags: map[string]string{"call": v1.CallSub}, Respond: read, Delay: demoPause},
		llm.Rule{Tags: map[string]string{"call": v1.CallTurn, "turn": "1"}, Delay: 5 * demoPause, Reply: "```repl\nlines = sorted(l for l in context.splitlines() if l.startswith('On day'))\nprint(lines[-1])\n```"},
		llm.Rule{Delay: 5 * demoPause, Reply: "```repl\nFINAL('the ' + lines[-1].rstrip('.').split(' at the ')[1])\n```"},
	).WithInfo(llm.Info{Window: 128_000, Output: 8_000, Price: &llm.Price{Input: 0.1, CachedInput: 0.01, Output: 0.4}})
}
