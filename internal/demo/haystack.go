package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// Size of the text, the question about it, and the expected answer.
const (
	HaystackBytes = 10_000_000
	Question      = "Who met the most others, and where was the last of these meetings?"
	Answer        = "Mira met 4 others; the last meeting was at the lighthouse."
)

// pause is the unit of the delays of the scripted models, which imitate real ones.
const pause = 40 * time.Millisecond

// meetings are the sentences that are hidden in the text, by day.
var meetings = []string{
	"On day 03 Mira met Tomas at the harbour.",
	"On day 11 Jonas met Edda at the mill.",
	"On day 17 Mira met Edda at the market.",
	"On day 23 Tomas met Jonas at the harbour.",
	"On day 38 Mira met Jonas at the station.",
	"On day 41 Pavel met Edda at the mill.",
	"On day 56 Mira met Pavel at the lighthouse.",
}

// Models returns the scripted models of a run: one for the run, and one for its sub-calls and child runs.
func Models() func(depth int, name string) (llm.Model, error) {
	root, sub := rootModel(), subModel()
	return func(depth int, _ string) (llm.Model, error) {
		if depth == 0 {
			return root, nil
		}
		return sub, nil
	}
}

// WriteHaystack writes a text of meaningless lines with the meetings hidden among them.
func WriteHaystack(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	words := strings.Fields(
		"river stone window garden letter morning bridge candle forest hammer island jacket kettle ladder mirror needle orchard pencil quarry ribbon",
	)
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // the text must be the same each time
	word := func() string { return words[r.IntN(len(words))] }
	w := bufio.NewWriterSize(f, 1<<20)
	written, hidden := 0, 0
	for line := 0; written < HaystackBytes; line++ {
		text := fmt.Sprintf("%07d The %s by the %s kept a %s and a %s.\n", line, word(), word(), word(), word())
		if hidden < len(meetings) && written >= (hidden*2+1)*HaystackBytes/(2*len(meetings)) {
			text = fmt.Sprintf("%07d %s\n", line, meetings[hidden])
			hidden++
		}
		n, _ := w.WriteString(text) // Flush returns the error
		written += n
	}
	return errors.Join(w.Flush(), f.Close())
}

// rootModel returns the model of the run. It writes the code that a good model would write.
func rootModel() *llm.Scripted {
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
	comments := []string{
		"Let me look at the text first.", "It is too long for one call, so sub-calls read parts of it in parallel.",
		"Code counts the meetings. A child run finds out where the last one was.", "That is the answer.",
	}
	rules := make([]llm.Rule, len(cells))
	for i, c := range cells {
		rules[i] = llm.Rule{
			Nth:        i + 1,
			Reply:      comments[i] + "\n```repl\n" + strings.TrimSpace(c) + "\n```\n",
			Delay:      10 * pause,
			Chunk:      40,
			ChunkDelay: pause / 4,
		}
	}
	return llm.NewScripted("demo", rules...).WithInfo(llm.Info{
		Window: 128_000,
		Output: 8_000,
		Price:  &llm.Price{Input: 1, CachedInput: 0.1, Output: 4},
	})
}

var meeting = regexp.MustCompile(`On day \d+ \w+ met \w+ at the \w+`)

// subModel returns the model of sub-calls, which finds meetings in its prompt, and of child runs, which writes code.
func subModel() *llm.Scripted {
	read := func(_ context.Context, req llm.Request) (string, error) {
		found := meeting.FindAllString(req.Messages[len(req.Messages)-1].Content, -1)
		if found == nil {
			return "none", nil
		}
		return strings.Join(found, "\n"), nil
	}
	return llm.NewScripted("demo-reader",
		llm.Rule{Tags: map[string]string{"call": v1.CallSub}, Respond: read, Delay: pause},
		llm.Rule{
			Tags:  map[string]string{"call": v1.CallTurn, "turn": "1"},
			Delay: 5 * pause,
			Reply: "```repl\nlines = sorted(l for l in context.splitlines() if l.startswith('On day'))\nprint(lines[-1])\n```",
		},
		llm.Rule{Delay: 5 * pause, Reply: "```repl\nFINAL('the ' + lines[-1].rstrip('.').split(' at the ')[1])\n```"},
	).WithInfo(llm.Info{Window: 128_000, Output: 8_000, Price: &llm.Price{Input: 0.1, CachedInput: 0.01, Output: 0.4}})
}
