//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/gate/terms"
)

// gates measures the cost of the gate: loading a large thesaurus, judging a megabyte of code with it, and the default
// rules. The baselines are the simplest ways to do about the same: decoding the same JSON into a map, and looking up
// every word in it.
func gates(ctx context.Context, b *bench) {
	count := b.times(100_000, 10_000)
	data, code := thesaurus(count), knownCode(1<<20)

	var th *terms.Thesaurus
	var plain struct{ Data map[string]json.RawMessage }
	load, decode := samples{}, samples{}
	for range b.times(5, 3) {
		began := time.Now()
		th = must(terms.Parse("bench.json", data))
		load = append(load, time.Since(began))
		began = time.Now()
		check(json.Unmarshal(data, &plain))
		decode = append(decode, time.Since(began))
	}
	b.report([]row{{
		Name:     "gate_load",
		What:     fmt.Sprintf("thesaurus of %d terms, from JSON, p50", count),
		Measured: load.median(),
		Unit:     "ms",
		Baseline: decode.median(),
		Against:  "encoding/json",
		Target:   "< 1 s",
		Reached:  reached(load.median() < 1000),
	}})
	for _, strictness := range []terms.Strictness{terms.Permissive, terms.Normal, terms.Strict} {
		b.report([]row{b.judge(ctx, th, strictness, code, plain.Data)})
	}
	// Memory is measured in a separate round, without what the others have left.
	plain.Data = nil
	grown := peakGrowth(func() {
		b.judge(ctx, must(terms.Parse("bench.json", data)), terms.Strict, code, nil)
	})
	b.report([]row{{
		Name:     "gate_memory",
		What:     "our own memory for both, above idle",
		Measured: float64(grown) / 1e6,
		Unit:     "MB",
		Target:   "≤ 200 MB",
		Reached:  reached(grown <= 200_000_000),
	}})
	defaultRules(ctx, b)
}

// judge measures how long the gate takes to judge code with a thesaurus, alternating with a plain lookup of every word.
func (b *bench) judge(
	ctx context.Context, th *terms.Thesaurus, strictness terms.Strictness,
	code string, plain map[string]json.RawMessage,
) row {
	g := must(terms.NewGraph(th, terms.GraphOptions{Strictness: strictness}))
	c := must(gate.New(gate.Options{Graphs: map[string]*terms.Graph{"": g}}))
	defer closing(c.Close)
	ours, words := samples{}, samples{}
	known := 0
	var d gate.Decision
	for i := range b.times(30, 8) + 1 {
		began := time.Now()
		d = must(c.Judge(ctx, gate.Request{Language: gate.Python, Code: code}))
		judged := time.Since(began)
		began = time.Now()
		known = lookUp(plain, code)
		if i > 0 { // the first round warms the caches
			ours, words = append(ours, judged), append(words, time.Since(began))
		}
	}
	checkf(plain == nil || (len(d.ConceptsMatched) == 0) == (known == 0),
		"the gate matches %d concepts, a plain lookup %d words", len(d.ConceptsMatched), known)
	return row{
		Name:     "gate_judge_" + string(strictness),
		What:     "judge 1 MB of code, " + string(strictness) + ", p50",
		Measured: ours.median(),
		Unit:     "ms",
		Baseline: words.median(),
		Against:  "one lookup per word",
		Target:   "< 50 ms",
		Reached:  reached(ours.median() < 50),
		Note:     fmt.Sprintf("%s, %d concepts", d.Action, len(d.ConceptsMatched)),
	}
}

// lookUp counts the words of a text that are terms.
func lookUp(terms map[string]json.RawMessage, text string) int {
	n := 0
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r < 'a' || r > 'z' }) {
		if _, ok := terms[word]; ok {
			n++
		}
	}
	return n
}

// defaultRules measures the default rules on a few lines of code.
func defaultRules(ctx context.Context, b *bench) {
	set := must(rules.Default())
	c := must(gate.New(gate.Options{Rules: set, RulesMode: gate.ModeBlock}))
	defer closing(c.Close)
	for _, r := range []gate.Request{
		{Language: gate.Bash, Code: "for f in data/*.csv; do\n  head -n 3 \"$f\" | cut -d, -f1,2\ndone\n"},
		{Language: gate.Python, Code: "import csv\nwith open('data.csv') as f:\n    rows = list(csv.reader(f))\nprint(len(rows), rows[:3])\n"},
	} {
		took := samples{}
		for i := range b.times(300, 60) + 10 {
			began := time.Now()
			d := must(c.Judge(ctx, r))
			checkf(d.Action.Runs(), "harmless code got the decision %s", d.Action)
			if i >= 10 {
				took = append(took, time.Since(began))
			}
		}
		b.report([]row{{
			Name:     "gate_rules_" + string(r.Language),
			What:     "default rules on a few lines of " + string(r.Language) + ", p50",
			Measured: took.median(),
			Unit:     "ms",
		}})
	}
}

// pronounceable returns a generator of words that look like natural language. The same seed generates the same words.
func pronounceable(seed uint64) func() string {
	rng := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // the same words each time
	syllables := strings.Fields("ba con de fi gra ho in ju ker lo mi net or pre qua re so ter un vi xa zo")
	return func() string {
		var s strings.Builder
		for range 2 + rng.IntN(3) {
			s.WriteString(syllables[rng.IntN(len(syllables))])
		}
		return s.String()
	}
}

// thesaurus returns a thesaurus with a number of terms of one to three words.
func thesaurus(terms int) []byte {
	rng, word := rand.New(rand.NewPCG(1, 1)), pronounceable(1) //nolint:gosec // the same terms each time
	var s strings.Builder
	s.WriteString(`{"name": "bench", "data": {`)
	for seen := map[string]bool{}; len(seen) < terms; {
		term := word()
		for range rng.IntN(3) {
			term += " " + word()
		}
		if seen[term] {
			continue
		}
		if len(seen) > 0 {
			s.WriteByte(',')
		}
		seen[term] = true
		n := len(seen)
		fmt.Fprintf(&s, `%q: {"id": %d, "nterm": "concept %d", "url": "https://example.com/%d"}`, term, n, n/3, n)
	}
	s.WriteString("}}")
	return []byte(s.String())
}

// knownCode returns code in which many words are terms.
func knownCode(size int) string {
	word := pronounceable(2)
	var s strings.Builder
	for s.Len() < size {
		fmt.Fprintf(&s, "%s = %s(%q, other_%s)\n", word(), word(), word(), word())
	}
	return s.String()
}
